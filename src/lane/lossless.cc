#include "lane/lossless.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/format.h"
#include "lane/capture_run.h"
#include "lane/divergence.h"
#include "lane/stats.h"

namespace onelane {
namespace {

constexpr const char* kParity = "parity";
constexpr const char* kSampling = "sampling";
constexpr const char* kPlainRole = "plain";
constexpr const char* kDraftedRole = "drafted";
constexpr const char* kSampledRole = "sampled";

constexpr size_t kLikely = 32;         // outcomes that are told apart; the others are one
constexpr double kLeastP = 0.001;      // after Holm
constexpr int64_t kChoices = 16;       // of one request
constexpr int64_t kSampledTokens = 3;  // the second and third come out of a verification

GateJson request_of(const std::vector<int32_t>& prompt, int64_t tokens, const char* role) {
  GateJson out = forced_request(prompt, tokens, role);
  if (role == std::string_view(kPlainRole)) out["draft_depth"] = 0;
  return out;
}

class Lossless {
 public:
  Lossless(GateServer& server, const GatePlan& plan, ArmKind kind, GateArm& arm)
      : server_(server), plan_(plan), kind_(kind), arm_(arm) {
    arm.define(kParity);
    if (kind != ArmKind::kNull) arm.define(kSampling);
  }

  Result<void> run() {
    const GateProfile& profile = plan_.profile;
    CaptureCorpus corpus = corpus_of(plan_, kind_);
    corpus.continuation = 1;
    ONELANE_ASSIGN(auto documents, capture_documents(server_, corpus));
    for (CaptureDocument& document : documents) {
      document.tokens.resize(document.prompt);
      ONELANE_TRY(compare(document));
    }
    if (plain_drafted_ > 0) {
      return Error{ErrorCode::kUnsupported, format("{} tokens were drafted with draft_depth 0", plain_drafted_)};
    }
    if (drafted_ == 0) return Error{ErrorCode::kUnsupported, "nothing was drafted: there is nothing to compare"};
    arm_.observed["near_ties"] = static_cast<double>(near_ties_);
    arm_.observed["tokens"] = static_cast<double>(tokens_);
    arm_.observed["drafted_tokens"] = static_cast<double>(drafted_);
    const int64_t draws = plan_.quick || kind_ == ArmKind::kPlanted ? profile.quick_draws : profile.draws;
    const auto contexts =
        static_cast<size_t>(plan_.quick || kind_ == ArmKind::kPlanted ? profile.quick_contexts : profile.contexts);
    const size_t sampled = kind_ == ArmKind::kNull ? 0 : std::min(contexts, documents.size());
    // Evenly over the classes, which follow one another.
    for (size_t i = 0; i < sampled; ++i) ONELANE_TRY(sample(documents[i * documents.size() / sampled], draws));
    judge_samples();
    arm_.range = format(
        "{} prompts, {} greedy tokens with and without drafts, {} drafted; {} contexts with {} sampled answers each",
        documents.size(), tokens_, drafted_, sampled, draws);
    return {};
  }

 private:
  Result<void> compare(const CaptureDocument& document) {
    const int64_t count = plan_.profile.parity_tokens;
    ONELANE_ASSIGN(const CompletionAnswer plain, server_.complete(request_of(document.tokens, count, kPlainRole)));
    ONELANE_ASSIGN(const CompletionAnswer drafted, server_.complete(request_of(document.tokens, count, kDraftedRole)));
    plain_drafted_ += plain.drafted_tokens.value_or(0);
    drafted_ += drafted.drafted_tokens.value_or(0);
    const CompletionChoice &a = plain.choices.front(), &b = drafted.choices.front();
    tokens_ += static_cast<int64_t>(a.tokens.size());
    arm_.answers[document.id] = format("{}", join(b.tokens, " "));
    const size_t common = std::min(a.tokens.size(), b.tokens.size());
    size_t at = 0;
    while (at < common && a.tokens[at] == b.tokens[at]) ++at;
    std::string outcome = "equal";
    if (at < common) {
      const double margin = a.positions[at].logprob - make_position(a.positions[at].top, b.tokens[at]).logprob;
      outcome = margin < kNearTie ? "near tie" : "other";
      near_ties_ += margin < kNearTie;
      if (margin >= kNearTie) {
        arm_.find(kParity, format("{}: token {} is {} with drafts and {} without, which is better by {:.3f} nat",
                                  document.id, at, b.tokens[at], a.tokens[at], margin));
      }
    } else if (a.tokens.size() != b.tokens.size()) {
      outcome = "other";
      arm_.find(kParity,
                format("{}: {} tokens with drafts and {} without", document.id, b.tokens.size(), a.tokens.size()));
    }
    arm_.items.push_back({document.id, outcome, format("{} tokens", a.tokens.size())});
    return {};
  }

  // The first tokens of `draws` sampled answers, and the second ones of those that begin with the most likely token.
  Result<void> sample(const CaptureDocument& document, int64_t draws) {
    ONELANE_ASSIGN(const CompletionAnswer first, server_.complete(request_of(document.tokens, 1, kPlainRole)));
    std::vector<int32_t> longer = document.tokens;
    const int32_t best = first.choices.front().tokens.front();
    longer.push_back(best);
    ONELANE_ASSIGN(const CompletionAnswer second, server_.complete(request_of(longer, 1, kPlainRole)));
    std::map<int32_t, int64_t> firsts, seconds;
    for (int64_t drawn = 0; drawn < draws; drawn += kChoices) {
      GateJson request = request_of(document.tokens, kSampledTokens, kSampledRole);
      request["logprobs"] = 1;
      request["temperature"] = 1;
      request["n"] = kChoices;
      request["seed"] = static_cast<int64_t>((plan_.seed << 20) % (int64_t{1} << 52)) + drawn;
      ONELANE_ASSIGN(const CompletionAnswer answer, server_.complete(request));
      for (const CompletionChoice& choice : answer.choices) {
        if (choice.tokens.size() < 2) {
          return Error{ErrorCode::kUnsupported, "logprobs: fewer tokens than were asked for"};
        }
        ++firsts[choice.tokens[0]];
        if (choice.tokens[0] == best) ++seconds[choice.tokens[1]];
      }
    }
    judge_later(format("{}, first token", document.id), firsts, first.choices.front().positions.front());
    judge_later(format("{}, second token", document.id), seconds, second.choices.front().positions.front());
    return {};
  }

  void judge_later(std::string name, const std::map<int32_t, int64_t>& seen, const CapturePosition& expected) {
    std::vector<int64_t> counts;
    std::vector<double> probabilities;
    int64_t rest = 0;
    double rest_p = 1;
    for (const auto& [token, count] : seen) rest += count;
    for (size_t i = 0; i < std::min(kLikely, expected.top.size()); ++i) {
      const auto found = seen.find(expected.top[i].first);
      counts.push_back(found == seen.end() ? 0 : found->second);
      probabilities.push_back(std::exp(static_cast<double>(expected.top[i].second)));
      rest -= counts.back();
      rest_p -= probabilities.back();
    }
    counts.push_back(rest);
    probabilities.push_back(std::max(rest_p, 1e-9));
    // Where all but one outcome are rare there is nothing to test.
    if (const auto p = chi_squared_p(counts, probabilities)) tested_.emplace_back(std::move(name), *p);
  }

  void judge_samples() {
    std::vector<double> p_values;
    for (const auto& [name, p] : tested_) p_values.push_back(p);
    arm_.samples["sampling_p"] = p_values;
    const std::vector<double> adjusted = holm(p_values);
    for (size_t i = 0; i < adjusted.size(); ++i) {
      if (adjusted[i] >= kLeastP) continue;
      arm_.find(kSampling, format("{}: chi-squared p {:.2g} (Holm, of {}) that it is the model's distribution",
                                  tested_[i].first, adjusted[i], adjusted.size()));
    }
  }

  GateServer& server_;
  const GatePlan& plan_;
  const ArmKind kind_;
  GateArm& arm_;
  int64_t tokens_ = 0, drafted_ = 0, plain_drafted_ = 0, near_ties_ = 0;
  std::vector<std::pair<std::string, double>> tested_;
};

GateArm run_lossless(GateServer& server, const GatePlan& plan, ArmKind kind) {
  GateArm arm;
  const auto done = Lossless(server, plan, kind, arm).run();
  if (!done && !server.lost()) arm.not_run.push_back(done.error().message);
  return arm;
}

std::vector<GateFault> faults() {
  const auto fault = [](const char* name, const char* check, const char* role, void (*change)(CompletionChoice&)) {
    return GateFault{.name = name,
                     .check = check,
                     .in_completion = [role, change](const GateJson& request, CompletionAnswer& answer) {
                       if (request.value("user", "") != role) return;
                       for (CompletionChoice& choice : answer.choices) change(choice);
                     }};
  };
  return {fault("a draft that nobody verified", kParity, kDraftedRole,
                [](CompletionChoice& choice) {
                  const size_t middle = choice.tokens.size() / 2;
                  if (!choice.tokens.empty()) choice.tokens[middle] = choice.positions[middle].top.back().first;
                }),
          fault("samples that are always the best token", kSampling, kSampledRole, [](CompletionChoice& choice) {
            for (size_t i = 0; i < choice.tokens.size(); ++i) choice.tokens[i] = choice.positions[i].top.front().first;
          })};
}

}  // namespace

Gate lossless_gate() {
  return {.name = "lossless",
          .id = "lossless/1",
          .about = "greedy and sampled answers, with drafts and without",
          .missing =
              [](const GateServer& server, const GatePlan&) {
                if (!server.info().onelane) {
                  return std::string("this server has no request field that turns speculation off (draft_depth)");
                }
                return server.forced_problem();
              },
          .run = run_lossless,
          .faults = faults};
}

}  // namespace onelane
