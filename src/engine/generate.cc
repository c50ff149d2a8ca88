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
    depth_ = session.can_draft() ? std::clamp(options.draft_depth, 0, kMaxDraftDepth) : 0;
    result_.reason = FinishReason::kStop;
  }

  Result<GenerateResult> run(std::span<const int32_t> prompt, const Session::Progress& progress) {
    const Clock::time_point start = Clock::now();
    ONELANE_ASSIGN(const std::span<const float> logits, session_.append(prompt, progress));
    prompt_length_ = session_.tokens().size();
    result_.stats.prompt_tokens = static_cast<int>(prompt_length_);
    result_.stats.prefill_seconds = seconds_since(start);

    const Clock::time_point decode = Clock::now();
    sampler_.read_prompt(session_.tokens());
    ONELANE_ASSIGN(Decision last, decide(logits, session_.tokens().size()));
    while (last.more) {
      ONELANE_ASSIGN(last, step(last.token));
    }
    result_.stats.decode_seconds = seconds_since(decode);
    // Accepted drafts behind the end were processed but are not part of the text.
    const size_t length = std::min(session_.tokens().size(), prompt_length_ + result_.tokens.size());
    session_.truncate(static_cast<int>(length));
    return std::move(result_);
  }

 private:
  // False when the generation is over.
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

  // Chooses and takes the token at `position`.
  Result<Decision> decide(std::span<const float> logits, size_t position) {
    ONELANE_ASSIGN(const int32_t token, sampler_.sample(logits, static_cast<int64_t>(position)));
    sampler_.accept(token);
    return Decision{token, take(token)};
  }

  // Appends `token` with a draft block behind it and takes what they decide. Returns the last decision.
  Result<Decision> step(int32_t token) {
    const size_t start = session_.tokens().size();
    const int room = session_.capacity() - static_cast<int>(start) - 1;
    const int wanted = options_.max_tokens - static_cast<int>(result_.tokens.size()) - 1;
    const int depth = std::min({depth_, room, wanted});
    std::vector<DraftToken> drafts;
    if (depth > 0) drafts = session_.draft(token, depth, sampler_);

    std::vector<int32_t> rows = {token};
    for (const DraftToken& draft : drafts) rows.push_back(draft.token);
    ONELANE_ASSIGN(const std::span<const float> logits, session_.append_block(rows));
    const size_t vocab = logits.size() / rows.size();
    Decision last;
    ONELANE_ASSIGN(const Verification verdict, verify(drafts, [&](int row) -> Result<Decision> {
                     const auto at = static_cast<size_t>(row);
                     ONELANE_ASSIGN(last, decide(logits.subspan(at * vocab, vocab), start + 1 + at));
                     return last;
                   }));
    session_.truncate(static_cast<int>(start) + verdict.decided);

    ++result_.stats.steps;
    if (!drafts.empty()) ++result_.stats.draft_blocks;
    for (int i = 0; i < verdict.accepted; ++i) ++result_.stats.accepted[static_cast<size_t>(i)];
    return last;
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
