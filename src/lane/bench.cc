#include "lane/bench.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/format.h"
#include "lane/receipt_server.h"
#include "lane/utc.h"

namespace onelane {
namespace {

constexpr int64_t kCalibrationTokens = 8192;

Result<void> check(const BenchOptions& options) {
  const auto refuse = [](std::string message) { return Error{ErrorCode::kInvalidArgument, std::move(message)}; };
  if (options.concurrency.empty() || options.contexts.empty()) {
    return refuse("--concurrency and --contexts need at least one number");
  }
  for (const int c : options.concurrency) {
    if (c < 1 || c > 4096) return refuse(format("--concurrency: {} is not a number from 1 to 4096", c));
  }
  for (const auto* list : {&options.contexts, &options.prefill_contexts, &options.mixed_contexts}) {
    for (const int64_t tokens : *list) {
      if (tokens < 0 || tokens > (int64_t{1} << 24))
        return refuse(format("a context of {} tokens is out of range", tokens));
    }
  }
  if (options.mode == BenchMode::kStrict && options.classes.empty()) return refuse("--classes: none is named");
  if (options.max_tokens < 1) return refuse("--max-tokens must be at least 1");
  if (!(options.timing.window_s > 0)) return refuse("--duration must be above 0");
  if (options.mode == BenchMode::kLib && options.respect_eos && options.held_out) {
    return refuse("--held-out: only strict mode has such prompts");
  }
  return {};
}

// Grades what came to its end. The same answer to the same prompt is graded once: some oracles run programs.
void grade(CellResult& cell) {
  std::map<std::pair<std::string, std::string>, Grade> known;
  for (const StreamTrace& stream : cell.streams) {
    for (size_t i = 0; i < stream.requests.size(); ++i) {
      const ChatResult& request = stream.requests[i];
      const WorkloadPrompt* prompt = builtin_workloads().find_prompt(stream.prompt_ids[i]);
      if (prompt == nullptr || prompt->oracle.kind == Oracle::Kind::kNone || !request.complete()) continue;
      std::string key = request.content;
      for (const ChatToolCall& call : request.tool_calls) key += "\n" + call.name + call.arguments;
      const auto [at, is_new] = known.try_emplace({prompt->id, std::move(key)}, Grade::kNotGraded);
      if (is_new) at->second = grade_answer(prompt->oracle, request).grade;
      ++(at->second == Grade::kRight ? cell.right : at->second == Grade::kWrong ? cell.wrong : cell.not_graded);
    }
  }
}

class Runner {
 public:
  Runner(const BenchOptions& options, const BenchHooks& hooks) : options_(options), hooks_(hooks) {}

  Result<BenchReport> run() {
    ONELANE_TRY(check(options_));
    const auto lookup = options_.mode == BenchMode::kLib ? MetricLookup::kLib : MetricLookup::kExact;
    ONELANE_ASSIGN(server_, BenchServer::connect(options_.url, options_.api_key, options_.model, lookup));
    ONELANE_ASSIGN(asker_, BenchAsker::create(options_, server_->info().model));
    report_.options = options_;
    report_.server = server_->info();
    report_.started_utc = utc_now("%Y-%m-%dT%H:%M:%SZ");
    report_.prompts_sha256 = asker_->prompts_sha256();
    report_.original_texts = asker_->original_texts();
    cells_ = plan_cells(options_, asker_->workloads(), server_->info());
    ONELANE_TRY(calibrate());
    report_.characters_per_token = asker_->characters_per_token();
    const auto watch = watch_server(server_->info(), options_.url);
    const auto done = phases();
    if (watch) {
      report_.machine = watch->machine();
      report_.environment = watch->stop();
    }
    if (!done) {
      const bool nothing = report_.prefill.empty() && report_.cells.empty() && report_.bursts.empty();
      if (nothing) return done.error();
      report_.interrupted = done.error().message;
    }
    return std::move(report_);
  }

 private:
  bool interrupted() {
    if (hooks_.interrupt == nullptr || !*hooks_.interrupt) return false;
    report_.interrupted = "interrupted";
    return true;
  }
  void say(const std::string& line) {
    if (hooks_.said) hooks_.said(line);
  }

  // Documents are only asked for where a context is.
  Result<void> calibrate() {
    int64_t longest = options_.mixed_contexts.empty() ? 0 : options_.mixed_prompt_tokens;
    for (const auto* list : {&options_.contexts, &options_.prefill_contexts, &options_.mixed_contexts}) {
      for (const int64_t tokens : *list) longest = std::max(longest, tokens);
    }
    if (longest == 0 || options_.characters_per_token) return {};
    ONELANE_ASSIGN(const double ratio, asker_->calibrate(server_->control(), std::min(longest, kCalibrationTokens),
                                                         options_.timing.request_s));
    say(format("{:.3f} characters a token", ratio));
    return {};
  }

  Result<void> warm_up() {
    if (options_.warmup_s <= 0) return {};
    const PlannedCell* largest = nullptr;
    for (const PlannedCell& cell : cells_) {
      if (cell.skip.empty() && (largest == nullptr || cell.context_tokens > largest->context_tokens)) largest = &cell;
    }
    if (largest == nullptr) return {};
    CellPlan plan = asker_->cell(largest->workload, 1, largest->context_tokens);
    BenchTiming timing = options_.timing;
    timing.window_s = options_.warmup_s;
    timing.ready_least_s = timing.ready_hold_s = 0;
    const auto progress = [&](BenchProgress now) {
      now.what = "warm-up";
      if (hooks_.progress) hooks_.progress(now);
    };
    ONELANE_ASSIGN(const CellResult hidden, run_cell(*server_, plan, timing, progress));
    for (const std::string& problem : hidden.window.problems) say("warm-up: " + problem);
    return {};
  }

  // Whether a prompt of this many tokens and its answer fit; else the report says that they do not.
  bool fits(const char* phase, int64_t context, int64_t answer) {
    const auto& longest = server_->info().max_model_len_tokens;
    if (!longest || context + answer <= *longest) return true;
    report_.skipped.push_back(
        format("{}/ctx{}: {} + {} tokens do not fit a context of {}", phase, context, context, answer, *longest));
    say("skipped: " + report_.skipped.back());
    return false;
  }

  Result<void> phases() {
    for (const int64_t context : options_.prefill_contexts) {
      if (interrupted()) return {};
      if (!fits("prefill", context, 1)) continue;
      ONELANE_ASSIGN(PrefillResult result, run_prefill(*server_, *asker_, options_, context, hooks_.progress));
      report_.prefill.push_back(std::move(result));
    }
    if (options_.decode) {
      ONELANE_TRY(warm_up());
      for (const PlannedCell& cell : cells_) {
        if (interrupted()) return {};
        ONELANE_TRY(measure(cell));
      }
    }
    if (options_.burst) {
      for (const PlannedCell& cell : cells_) {
        if (interrupted()) return {};
        if (!cell.skip.empty()) continue;
        ONELANE_ASSIGN(BurstResult result, run_burst(*server_, *asker_, options_, cell, hooks_.progress));
        report_.bursts.push_back(std::move(result));
      }
    }
    for (const int64_t context : options_.mixed_contexts) {
      if (interrupted()) return {};
      if (!fits("mixed", context, kArrivalTokens)) continue;
      ONELANE_ASSIGN(MixedResult result, run_mixed(*server_, *asker_, options_, context, hooks_.progress));
      report_.mixed.push_back(std::move(result));
    }
    return {};
  }

  Result<void> measure(const PlannedCell& planned) {
    CellPlan plan = asker_->cell(planned.workload, planned.concurrency, planned.context_tokens);
    if (!planned.skip.empty()) {
      report_.cells.push_back({.id = plan.id(),
                               .workload = planned.workload,
                               .concurrency = planned.concurrency,
                               .context_tokens = planned.context_tokens,
                               .skipped = planned.skip});
      say(format("{}: skipped: {}", plan.id(), planned.skip));
      return {};
    }
    ONELANE_ASSIGN(CellResult cell, run_cell(*server_, plan, options_.timing, hooks_.progress));
    if (plan.keep_text) grade(cell);
    const std::string speed = cell.window.tok_s ? format("{:.1f} tok/s", *cell.window.tok_s) : "no tokens";
    const std::string flags = cell.window.flags.empty() ? "" : format("  [{}]", join(cell.window.flags, ", "));
    say(format("{}: {}{}", cell.id, speed, flags));
    report_.cells.push_back(std::move(cell));
    return {};
  }

  const BenchOptions& options_;
  const BenchHooks& hooks_;
  std::unique_ptr<BenchServer> server_;
  std::unique_ptr<BenchAsker> asker_;
  std::vector<PlannedCell> cells_;
  BenchReport report_;
};

}  // namespace

Result<BenchReport> run_bench(const BenchOptions& options, const BenchHooks& hooks) {
  return Runner(options, hooks).run();
}

}  // namespace onelane
