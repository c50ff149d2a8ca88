#include "lane/bench_plan.h"

#include <algorithm>
#include <memory>

#include "base/format.h"
#include "lane/sha256.h"

namespace onelane {
namespace {

constexpr const char* kFiller = "filler";
constexpr double kCalibrated = 0.05;
constexpr int kProbes = 3;

std::vector<const WorkloadPrompt*> prompts_of(const WorkloadClass& of, bool held_out) {
  std::vector<const WorkloadPrompt*> prompts;
  for (const WorkloadPrompt& prompt : of.prompts) {
    if (prompt.held_out == held_out) prompts.push_back(&prompt);
  }
  return prompts;
}

}  // namespace

Result<std::unique_ptr<BenchAsker>> BenchAsker::create(const BenchOptions& options, std::string model) {
  auto asker = std::make_unique<BenchAsker>();
  asker->options_ = options;
  asker->model_ = std::move(model);
  asker->texts_ = builtin_lib_texts();
  if (!options.lib_texts.empty()) {
    ONELANE_ASSIGN(asker->texts_, read_lib_texts(options.lib_texts));
  }
  std::vector<std::string> known;
  for (const WorkloadClass& of : builtin_workloads().classes) known.push_back(of.name);
  for (const std::string& name : options.classes) {
    if (builtin_workloads().find(name) == nullptr) {
      return Error{ErrorCode::kInvalidArgument,
                   format("--classes: \"{}\" is not a class; there are: {}", name, join(known, ", "))};
    }
  }
  if (options.characters_per_token) asker->characters_per_token_ = *options.characters_per_token;
  return asker;
}

std::vector<std::string> BenchAsker::workloads() const {
  return options_.mode == BenchMode::kLib ? std::vector<std::string>{kFiller} : options_.classes;
}

std::string BenchAsker::prompts_sha256() const {
  return options_.mode == BenchMode::kLib ? texts_.sha256() : builtin_workloads().protocol_sha256;
}

std::string BenchAsker::document(const std::string& mark, int64_t context_tokens) const {
  if (context_tokens <= 0) return {};
  return options_.mode == BenchMode::kLib ? lib_document(texts_, mark, context_tokens, characters_per_token_)
                                          : hay_document(mark, context_tokens, characters_per_token_);
}

const std::string& BenchAsker::cell_document(int64_t context_tokens) {
  for (const auto& [context, text] : documents_) {
    if (context == context_tokens) return text;
  }
  documents_.emplace_back(context_tokens, document(document_mark("BENCH", context_tokens), context_tokens));
  return documents_.back().second;
}

ChatRequest BenchAsker::base(int64_t max_tokens, bool stream) const {
  ChatRequest request;
  request.model = model_;
  request.max_tokens = max_tokens;
  request.stream = stream;
  request.continuous_usage = stream;
  request.ignore_eos = !options_.respect_eos;
  request.temperature = options_.temperature;
  request.top_p = options_.top_p;
  request.seed = options_.seed;
  return request;
}

CellPlan BenchAsker::cell(const std::string& workload, int concurrency, int64_t context_tokens) {
  const bool lib = options_.mode == BenchMode::kLib;
  CellPlan plan;
  plan.workload = workload;
  plan.concurrency = concurrency;
  plan.context_tokens = context_tokens;
  plan.max_tokens = options_.max_tokens;
  plan.ignore_eos = !options_.respect_eos;
  plan.keep_text = options_.respect_eos && !lib;
  plan.literal_space = plan.count_restarts = lib;
  const std::string& document = cell_document(context_tokens);
  const auto json = [](const ChatRequest& request) { return *chat_request_json(request); };
  if (lib) {
    ChatRequest request = base(options_.max_tokens, true);
    request.messages = lib_messages(texts_, document);
    const auto body = std::make_shared<const std::string>(json(request));
    plan.next = [body](int, int64_t, int64_t) { return LoadRequest{*body, ""}; };
    request.max_tokens = 1;
    request.continuous_usage = false;
    plan.scout = json(request);
    return plan;
  }
  const WorkloadClass& of = *builtin_workloads().find(workload);
  const auto prompts = prompts_of(of, options_.held_out);
  const int64_t limit = options_.respect_eos ? 0 : options_.max_tokens;
  plan.max_tokens = options_.respect_eos ? of.max_tokens : options_.max_tokens;
  std::vector<LoadRequest> requests;
  for (const WorkloadPrompt* prompt : prompts) {
    ChatRequest request = base(0, true);
    request.more = class_request(of, *prompt, document, limit);
    requests.push_back({json(request), prompt->id});
  }
  ChatRequest one = base(0, true);
  one.continuous_usage = false;
  one.more = class_request(of, *prompts.front(), document, 1);
  plan.scout = json(one);
  const auto shared = std::make_shared<const std::vector<LoadRequest>>(std::move(requests));
  plan.next = [shared](int, int64_t, int64_t index) { return (*shared)[static_cast<size_t>(index) % shared->size()]; };
  return plan;
}

std::string BenchAsker::request(const std::string& kind, int64_t context_tokens, int64_t max_tokens, int sample,
                                bool stream) {
  ChatRequest request = base(max_tokens, stream);
  request.messages = lib_messages(texts_, document(document_mark(kind, context_tokens, sample), context_tokens));
  return *chat_request_json(request);
}

Result<double> BenchAsker::calibrate(HttpClient& client, int64_t tokens, double seconds) {
  for (int i = 0; i < kProbes; ++i) {
    const std::string json = request("WARMUP", tokens, 1, i, false);
    const ChatResult answer = start_chat(client, json, false, false, {.total_seconds = seconds})->wait();
    if (!answer.complete()) return Error{ErrorCode::kIo, "calibration: " + answer.problem};
    if (!answer.prompt_tokens || *answer.prompt_tokens <= 0) break;
    const double ratio = static_cast<double>(*answer.prompt_tokens) / static_cast<double>(tokens);
    if (std::abs(ratio - 1) <= kCalibrated) break;
    characters_per_token_ /= ratio;
  }
  return characters_per_token_;
}

std::vector<PlannedCell> plan_cells(const BenchOptions& options, const std::vector<std::string>& workloads,
                                    const ServerInfo& server) {
  std::vector<int> concurrency = options.concurrency;
  std::vector<int64_t> contexts = options.contexts;
  std::sort(concurrency.begin(), concurrency.end());
  std::sort(contexts.begin(), contexts.end());
  const std::optional<int64_t> budget = options.kv_tokens ? options.kv_tokens : server.kv_tokens;

  const auto planned = [&](const std::string& workload, int c, int64_t context) {
    PlannedCell cell{workload, c, context, ""};
    const int64_t each = context + options.max_tokens;
    const bool always = context == 0 && server.max_running && c <= *server.max_running;
    if (server.max_model_len_tokens && each > *server.max_model_len_tokens) {
      cell.skip = format("{} + {} tokens do not fit a context of {}", context, options.max_tokens,
                         *server.max_model_len_tokens);
    } else if (!always && budget && c * each > *budget) {
      cell.skip = format("{} x ({} + {}) tokens do not fit a cache of {}", c, context, options.max_tokens, *budget);
    }
    return cell;
  };
  std::vector<PlannedCell> cells;
  for (const std::string& workload : workloads) {
    for (const int64_t context : contexts) cells.push_back(planned(workload, concurrency.front(), context));
    for (const int c : concurrency) {
      if (c != concurrency.front()) cells.push_back(planned(workload, c, contexts.front()));
    }
    for (const int64_t context : contexts) {
      for (const int c : concurrency) {
        if (c == concurrency.front() || context == contexts.front()) continue;
        cells.push_back(planned(workload, c, context));
      }
    }
  }
  return cells;
}

}  // namespace onelane
