#include "engine/generate.h"

#include <algorithm>
#include <chrono>

namespace onelane {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// One generation under way. Tokens are first decided (by the model), then taken (recorded and shown); the session holds
// every decided token but the last.
class Run {
 public:
  Run(Session& session, const GenerateOptions& options, int32_t eos, const TokenSink& sink)
      : session_(session), options_(options), eos_(eos), sink_(sink), sampler_(options.sampling) {
    const bool greedy = options.sampling.temperature == 0.0f;
    depth_ = greedy && session.can_draft() ? std::clamp(options.draft_depth, 0, kMaxDraftDepth) : 0;
  }

  Result<GenerateResult> run(std::span<const int32_t> prompt, const Session::Progress& progress) {
    const Clock::time_point start = Clock::now();
    ONELANE_ASSIGN(const std::span<const float> logits, session_.append(prompt, progress));
    prompt_length_ = session_.tokens().size();
    result_.stats.prompt_tokens = static_cast<int>(prompt_length_);
    result_.stats.prefill_seconds = seconds_since(start);

    const Clock::time_point decode = Clock::now();
    std::vector<int32_t> decided;
    ONELANE_TRY(decide(logits, decided));
    while (take(decided)) {
      const int32_t last = decided.back();
      decided.clear();
      ONELANE_TRY(depth_ > 0 ? speculate(last, decided) : step(last, decided));
    }
    result_.stats.decode_seconds = seconds_since(decode);
    // Accepted drafts behind the end were processed but are not part of the text.
    const size_t length = std::min(session_.tokens().size(), prompt_length_ + result_.tokens.size());
    session_.truncate(static_cast<int>(length));
    return std::move(result_);
  }

 private:
  // False when the generation is over.
  bool take(std::span<const int32_t> decided) {
    return std::all_of(decided.begin(), decided.end(), [&](int32_t token) { return take(token); });
  }

  bool take(int32_t token) {
    ++result_.stats.tokens;
    if (token == eos_ && !options_.ignore_eos) return false;
    result_.tokens.push_back(token);
    if (sink_ && !sink_(token)) return false;
    const bool full = static_cast<int>(result_.tokens.size()) >= options_.max_tokens ||
                      prompt_length_ + result_.tokens.size() > static_cast<size_t>(session_.capacity());
    if (full) result_.reason = FinishReason::kLength;
    return !full;
  }

  Result<void> decide(std::span<const float> logits, std::vector<int32_t>& decided) {
    ONELANE_ASSIGN(const int32_t token, sampler_.sample(logits, static_cast<int64_t>(session_.tokens().size())));
    decided.push_back(token);
    return {};
  }

  Result<void> step(int32_t token, std::vector<int32_t>& decided) {
    ++result_.stats.steps;
    ONELANE_ASSIGN(const std::span<const float> logits, session_.append({&token, 1}));
    return decide(logits, decided);
  }

  // Verifies a draft block behind `token`: decides every accepted draft and the target's own token after them, exactly
  // what step() after step() would have decided.
  Result<void> speculate(int32_t token, std::vector<int32_t>& decided) {
    const auto start = static_cast<int>(session_.tokens().size());
    const int room = session_.capacity() - start - 1;
    const int wanted = options_.max_tokens - static_cast<int>(result_.tokens.size()) - 1;
    ONELANE_ASSIGN(const std::vector<DraftToken> drafts, session_.draft(token, std::min({depth_, room, wanted})));

    std::vector<int32_t> rows = {token};
    for (const DraftToken& draft : drafts) rows.push_back(draft.token);
    Result<void> failed;
    ONELANE_TRY(session_.append_rows(rows, [&](int, std::span<const float> logits) {
      auto best = best_token(logits);
      if (best) decided.push_back(*best);
      if (!best && failed) failed = std::move(best).error();
    }));
    ONELANE_TRY(std::move(failed));
    size_t accepted = 0;
    while (accepted < drafts.size() && decided[accepted] == drafts[accepted].token) ++accepted;
    decided.resize(accepted + 1);
    session_.truncate(start + 1 + static_cast<int>(accepted));

    ++result_.stats.steps;
    if (!drafts.empty()) ++result_.stats.draft_blocks;
    for (size_t i = 0; i < accepted; ++i) ++result_.stats.accepted[i];
    return {};
  }

  Session& session_;
  const GenerateOptions& options_;
  const int32_t eos_;
  const TokenSink& sink_;
  Sampler sampler_;
  int depth_ = 0;
  size_t prompt_length_ = 0;
  GenerateResult result_;
};

}  // namespace

std::string_view finish_reason_name(FinishReason reason) { return reason == FinishReason::kStop ? "stop" : "length"; }

double GenerateStats::mean_accepted() const {
  int total = 0;
  for (const int count : accepted) total += count;
  return draft_blocks > 0 ? static_cast<double>(total) / draft_blocks : 0.0;
}

Result<GenerateResult> generate(Session& session, std::span<const int32_t> prompt, const GenerateOptions& options,
                                int32_t eos, const TokenSink& sink, const Session::Progress& progress) {
  ONELANE_TRY(check_sampling(options.sampling));
  if (options.max_tokens < 1) return Error{ErrorCode::kInvalidArgument, "max_tokens must be at least 1"};
  return Run(session, options, eos, sink).run(prompt, progress);
}

}  // namespace onelane
