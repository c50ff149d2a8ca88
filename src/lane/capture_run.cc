#include "lane/capture_run.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "base/format.h"
#include "lane/workload.h"

namespace onelane {
namespace {

constexpr std::string_view kNames[] = {"prefill", "mixed", "decode", "verify", "cache"};
constexpr size_t kWorkers = 4;

std::span<const int32_t> head(const CaptureDocument& document, size_t tokens) {
  return std::span(document.tokens).first(tokens);
}

Error unsupported(std::string message) { return {ErrorCode::kUnsupported, std::move(message)}; }

// What the server counted over a capture.
struct Counts {
  int64_t cached = 0, drafted = 0;
  bool knows_cached = true, knows_drafted = true;

  void add(const CompletionAnswer& answer) {
    knows_cached = knows_cached && answer.cached_tokens;
    knows_drafted = knows_drafted && answer.drafted_tokens;
    cached += answer.cached_tokens.value_or(0);
    drafted += answer.drafted_tokens.value_or(0);
  }
};

Result<void> force_prompt(GateServer& server, CaptureDocument& document, std::string_view role) {
  const GateJson request = {{"prompt", document.tokens},
                            {"max_tokens", 1},
                            {"prompt_logprobs", kCaptureTop},
                            {"add_special_tokens", false},
                            {"user", std::string(role)}};
  ONELANE_ASSIGN(CompletionAnswer answer, server.complete(request));
  if (answer.choices.front().prompt.empty()) return unsupported("the server's answer is without prompt_logprobs");
  document.first = 1;
  document.positions = std::move(answer.choices.front().prompt);
  return {};
}

// Where the server would go on otherwise than the document, it is asked anew behind the document's token.
Result<void> force_tokens(GateServer& server, CaptureDocument& document, std::string_view role, bool plain,
                          Counts& counts) {
  document.first = document.prompt;
  document.positions.clear();
  for (size_t at = document.prompt; at < document.tokens.size();) {
    GateJson request = forced_request(head(document, at), static_cast<int64_t>(document.tokens.size() - at), role);
    if (plain && server.info().onelane) request["draft_depth"] = 0;
    ONELANE_ASSIGN(CompletionAnswer answer, server.complete(request));
    counts.add(answer);
    CompletionChoice& choice = answer.choices.front();
    if (choice.positions.empty()) return unsupported("the server's answer is without logprobs");
    for (size_t i = 0; i < choice.positions.size() && at < document.tokens.size(); ++i, ++at) {
      const int32_t token = document.tokens[at];
      const bool other = choice.tokens[i] != token;
      CapturePosition& position = choice.positions[i];
      document.positions.push_back(other ? make_position(std::move(position.top), token) : std::move(position));
      if (!other) continue;
      ++at;
      break;
    }
  }
  return {};
}

Result<void> force_at_once(GateServer& server, std::vector<CaptureDocument>& documents, std::string_view role) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  Result<void> outcome;
  std::vector<std::thread> workers;
  for (size_t worker = 0; worker < kWorkers; ++worker) {
    workers.emplace_back([&] {
      for (size_t i = next++; i < documents.size(); i = next++) {
        auto done = force_prompt(server, documents[i], role);
        const std::lock_guard lock(mutex);
        if (!done && outcome) outcome = std::move(done);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return outcome;
}

Result<void> walk(GateServer& server, CapturePath path, std::vector<CaptureDocument>& documents,
                  std::string_view role) {
  if (path == CapturePath::kMixed) return force_at_once(server, documents, role);
  Counts counts;
  for (CaptureDocument& document : documents) {
    if (path == CapturePath::kPrefill) {
      ONELANE_TRY(force_prompt(server, document, role));
      continue;
    }
    if (document.prompt == 0 || document.prompt >= document.tokens.size()) {
      return unsupported(format("document \"{}\" has no tokens behind a prompt", document.id));
    }
    if (path == CapturePath::kCache) {
      ONELANE_TRY(server.complete(forced_request(head(document, document.prompt), 1, role)));
    }
    ONELANE_TRY(force_tokens(server, document, role, path != CapturePath::kVerify, counts));
  }
  if (path == CapturePath::kVerify && counts.drafted == 0) {
    return unsupported(counts.knows_drafted ? "nothing was drafted" : "the server does not say what it drafted");
  }
  if (path == CapturePath::kDecode && counts.drafted > 0) {
    return unsupported(format("{} tokens were drafted although none were to be", counts.drafted));
  }
  if (path == CapturePath::kCache && counts.cached == 0) {
    return unsupported(counts.knows_cached ? "nothing came from the cache" : "the server does not say what it cached");
  }
  return {};
}

}  // namespace

std::string_view capture_path_name(CapturePath path) { return kNames[static_cast<size_t>(path)]; }

const CapturePath* find_capture_path(std::string_view name) {
  const auto found = std::find_if(std::begin(kCapturePaths), std::end(kCapturePaths),
                                  [&](CapturePath path) { return capture_path_name(path) == name; });
  return found == std::end(kCapturePaths) ? nullptr : found;
}

CaptureCorpus corpus_of(const GatePlan& plan, ArmKind kind) {
  const GateProfile& profile = plan.profile;
  return {.documents = kind == ArmKind::kPlanted ? 1
                       : plan.quick              ? profile.quick_documents
                                                 : profile.documents,
          .most_tokens = profile.document_tokens,
          .continuation = profile.continuation_tokens,
          .held_out = plan.held_out};
}

GateJson forced_request(std::span<const int32_t> prompt, int64_t tokens, std::string_view role) {
  return {{"prompt", prompt},         {"max_tokens", tokens},
          {"logprobs", kCaptureTop},  {"return_tokens_as_token_ids", true},
          {"ignore_eos", true},       {"add_special_tokens", false},
          {"user", std::string(role)}};
}

Result<std::vector<CaptureDocument>> capture_documents(GateServer& server, const CaptureCorpus& corpus) {
  const size_t longest = static_cast<size_t>(std::max<int64_t>(1, corpus.most_tokens - corpus.continuation));
  std::vector<CaptureDocument> out;
  for (const WorkloadClass& of : builtin_workloads().classes) {
    int taken = 0;
    for (const WorkloadPrompt& prompt : of.prompts) {
      if (prompt.held_out != corpus.held_out || taken == corpus.documents) continue;
      ++taken;
      CaptureDocument document{.id = prompt.id, .workload = of.name, .tokens = {}, .positions = {}};
      ONELANE_ASSIGN(document.tokens, server.tokenize(GateJson::parse(workload_request(of, prompt))));
      if (document.tokens.size() > longest) document.tokens.resize(longest);
      document.prompt = static_cast<uint32_t>(document.tokens.size());
      GateJson request = forced_request(document.tokens, corpus.continuation, "reference");
      if (server.info().onelane) request["draft_depth"] = 0;
      ONELANE_ASSIGN(const CompletionAnswer answer, server.complete(request));
      const std::vector<int32_t>& tokens = answer.choices.front().tokens;
      if (tokens.empty()) return unsupported("the server's answer is without logprobs");
      document.tokens.insert(document.tokens.end(), tokens.begin(), tokens.end());
      out.push_back(std::move(document));
    }
  }
  return out;
}

Result<Capture> run_capture(GateServer& server, CapturePath path, std::span<const CaptureDocument> documents,
                            std::string_view role) {
  const ServerInfo& info = server.info();
  const auto identity = info.settings.find("model_identity");
  Capture out{.model = info.model,
              .weights_sha256 = identity == info.settings.end() ? "" : identity->second,
              .corpus_sha256 = "",
              .build = info.build.empty() ? format("{} {}", info.engine_name(), info.version) : info.build,
              .path = std::string(capture_path_name(path)),
              .documents = {documents.begin(), documents.end()}};
  ONELANE_TRY(walk(server, path, out.documents, role));
  out.corpus_sha256 = corpus_digest(out.documents);
  return out;
}

}  // namespace onelane
