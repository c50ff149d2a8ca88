// Session: one sequence and everything it needs: its caches, its forward pass, its tokens so far.
//
// What a command-line tool runs on. It appends tokens, drafts and takes tokens back; it does not choose them
// (sampler.h) and knows no requests.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/verify.h"
#include "model/forward.h"

namespace onelane {

struct SessionOptions {
  int max_tokens = 0;  // capacity; 0 takes the model's max_position_embeddings
  int chunk = 256;     // rows per step while a prompt is read
  bool draft = true;   // keep the draft rings, if the model has a drafter
};

class Session {
 public:
  // Called between steps with tokens done and to do.
  using Progress = std::function<void(int done, int total)>;
  // Called for each appended token's logits [vocab], in order.
  using RowSink = std::function<void(int row, std::span<const float> logits)>;

  static Result<std::unique_ptr<Session>> create(const Model& model, Kernels& kernels, const SessionOptions& options);

  std::span<const int32_t> tokens() const { return tokens_; }
  int capacity() const { return max_tokens_; }
  bool can_draft() const { return draft_; }

  // Appends `tokens` and returns the logits [vocab] after the last of them; valid until the next call. Refused, with
  // nothing changed, when they do not fit or one is not in the vocabulary.
  Result<std::span<const float>> append(std::span<const int32_t> tokens, const Progress& progress = {});

  // The same, handing out the logits after every token.
  Result<void> append_rows(std::span<const int32_t> tokens, const RowSink& sink, const Progress& progress = {});

  // The same for few tokens at once (at most a step's rows): logits [tokens, vocab], valid until the next call.
  Result<std::span<const float>> append_block(std::span<const int32_t> tokens);

  // Drafts for what follows `anchor`, the token about to be appended, as `sampler` chooses among the drafter's
  // (verify.h); without one, the best. At most `depth`, at most the trained block.
  std::vector<DraftToken> draft(int32_t anchor, int depth, Sampler& sampler);
  Result<std::vector<DraftToken>> draft(int32_t anchor, int depth);

  // Forgets all tokens from `length` on. Rings hold a window and one draft block: at most a block can be taken back, or
  // everything.
  void truncate(int length);

 private:
  Session(const Model& model, Kernels& kernels, const SessionOptions& options, int max_tokens);
  Result<void> check(std::span<const int32_t> tokens) const;
  void run_chunk(std::span<const int32_t> tokens, std::span<const int32_t> logit_rows);

  const Model& model_;
  const int max_tokens_;
  const int chunk_;
  const bool draft_;
  KvStore store_;
  ForwardPass forward_;
  Step step_;
  std::vector<int32_t> page_table_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> every_row_;
  std::vector<float> logits_;
};

}  // namespace onelane
