// ForwardPass: the model, written once. It walks the layer list and calls the kernels' stages; it does no arithmetic.
//
// One object serves one KvStore and one caller at a time. All working memory is sized for `max_rows` when it is built,
// and lies where the kernels want it; a step allocates nothing. Logits come to the host, wherever they are made.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "kernels/kernels.h"
#include "model/kv_store.h"
#include "model/model.h"
#include "model/step.h"

namespace onelane {

class ForwardPass {
 public:
  // `max_logit_rows`: most rows of one target() that ask for logits, and most rows of a draft(); 0: max_rows.
  ForwardPass(const Model& model, Kernels& kernels, KvStore& store, int max_rows, int max_logit_rows = 0);

  ~ForwardPass();
  ForwardPass(const ForwardPass&) = delete;
  ForwardPass& operator=(const ForwardPass&) = delete;

  int max_rows() const { return max_rows_; }
  // Working memory held, in bytes: what is proportional to max_rows, and on a device the logits.
  size_t bytes() const;
  size_t logit_bytes() const { return logits_buffer_.size(); }

  // Runs every row through the backbone and writes its keys and values. For the rows numbered in `logit_rows` it also
  // makes the logits: out [logit_rows.size(), vocab], where they are all there for the host when it returns. With
  // `on_demand` those of a device stay there: best() tells what most callers want to know of them, and fetch() brings
  // the others to their place in `logits`.
  void target(const Step& step, std::span<const int32_t> logit_rows, float* logits, bool on_demand = false);
  // Of the i-th of the last target()'s logit rows: the best token, ties to the lower id, -1 when they are not all
  // finite; nothing when the logits are the host's, which has to look itself.
  std::optional<int32_t> best(int i) const;
  void fetch(int i);

  // Puts the rows of the last target() step into the draft rings (6.4). `step` must be that step. Rows of rejected
  // drafts may be included: the next step that holds their positions overwrites them, and no draft block looks past its
  // anchor.
  void seed_drafter(const Step& step);

  // One draft block per run: its rows are the anchor and then noise tokens, at the following positions. What follows
  // from it is asked for row by row. `logits` [rows, vocab] is memory for it that nobody changes until then.
  void draft(const Step& step, float* logits);

  // Row `row` of the last draft(), once: writes its logits with the Markov bias of `previous` to `logits` [vocab],
  // which is that row of the memory that draft() was given; returns the confidence logit.
  float draft_token(int row, int32_t previous, float* logits);

  // The same for the rows [first_row, first_row + tokens.size()) of one block, each given the best token of the row
  // before it, the first its anchor. Writes these best tokens (-1 and no more behind a row that is not finite) and the
  // confidence logits.
  void draft_chain(int first_row, std::span<int32_t> tokens, std::span<float> confidences);

 private:
  void check_step(const Step& step) const;
  void start_stream(const StepRows& rows);
  // Where the kernels write logits that are meant for `logits` on the host.
  float* logits_at(float* logits) { return logits_ != nullptr ? logits_ : logits; }
  size_t row_bytes() const { return static_cast<size_t>(spec_.vocab) * sizeof(float); }
  float* confidences_at() { return reinterpret_cast<float*>(best_ + max_rows_); }
  void markov(int row, const int32_t* previous, float* logits, float* confidence);
  // One block on stream_; what collapses the stream after it is in ffn_pre_.
  void block(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights);
  void mix(const StepRows& rows, const MixWeights& weights, const bf16* norm, const float* previous, float* pre);
  void expand(const StepRows& rows);
  void attention(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights);
  void compress(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights);
  void index(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights);
  void feed_forward(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights);
  // Table rows of the n-th Engram layer; look_up_engram() writes those of a step.
  int32_t* engram_rows(int n) const;
  void look_up_engram(const Step& step);
  void write_engram(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights);
  void tap(const StepRows& rows, const LayerSpec& layer);
  void head(const StepRows& rows, const MixWeights& mix, const bf16* norm, bf16* hidden, float* logits);

  template <class T>
  T* scratch(size_t count_per_row);
  template <class T>
  T* scratch(size_t count, Memory& memory);

  const Model& model_;
  const ModelSpec& spec_;
  Kernels& kernels_;
  KvStore& store_;
  const int max_rows_;

  std::vector<Buffer> buffers_;
  Buffer logits_buffer_;
  bf16* stream_ = nullptr;           // [rows, 4, hidden]
  bf16* x_ = nullptr;                // [rows, hidden] a sublayer's input
  bf16* y_ = nullptr;                // [rows, hidden] and output
  float* first_copy_ = nullptr;      // [rows, 4] what collapses the stream before the first sublayer
  const float* previous_ = nullptr;  // [rows, 4] and before the one that comes next: first_copy_ or ffn_pre_
  float* attn_pre_ = nullptr;        // [rows, 4]
  float* ffn_pre_ = nullptr;         // [rows, 4]
  float* post_ = nullptr;            // [rows, 4]
  float* comb_ = nullptr;            // [rows, 4, 4]
  bf16* qr_ = nullptr;               // [rows, q_lora]
  bf16* q_ = nullptr;                // [rows, heads, 512]
  bf16* attended_ = nullptr;         // [rows, heads, 512]
  RecordBlock kv_;                   // this step's window records of the layer at work
  int32_t* picks_ = nullptr;         // [rows, topk] of the last indexer, shared by the layers after it
  uint32_t* candidates_ = nullptr;   // [rows, candidate_words_]
  int candidate_words_ = 0;
  int32_t* expert_ids_ = nullptr;    // [rows, topk]
  float* expert_weights_ = nullptr;  // [rows, topk]
  int32_t* engram_rows_ = nullptr;   // [Engram layers, rows, columns], in reach of host and kernels
  bf16* taps_ = nullptr;             // [rows, tap width]
  bf16* main_x_ = nullptr;           // [rows, hidden]
  bf16* hidden_ = nullptr;           // [rows, hidden] of the last draft
  float* logits_ = nullptr;          // [logit rows, vocab] on a device; null: the caller's are used
  float* host_logits_ = nullptr;     // those of the caller, of the last target() or draft()
  StepRows draft_rows_;              // of the last draft(), valid as long as its step
  // Of the chosen tokens, where the kernels write them and, on a device, as they were copied.
  int32_t* best_ = nullptr;  // [rows], then as many confidences
  std::vector<int32_t> best_copy_;
  int max_logit_rows_ = 0;
  std::vector<int32_t> every_row_;  // 0, 1, 2, ...
};

}  // namespace onelane
