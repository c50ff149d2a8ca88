// ForwardPass: the model, written once. It walks the layer list and calls the kernels' stages; it does no arithmetic.
//
// One object serves one KvStore and one caller at a time. All working memory is sized for `max_rows` when it is built,
// and lies where the kernels want it; a step allocates nothing. Logits come to the host, wherever they are made.
//
// Where kernels work beside the host (beside_host()), a step can be asked for before the one ahead of it is read:
// chain() leaves drafts and target() verdicts where rows of later steps refer to them (StepRows::later), and collect()
// is the one call that waits.
#pragma once

#include <array>
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

  // Whether the host can do something else while kernels work: memory is a device's.
  bool beside_host() const { return logits_ != nullptr; }

  // Runs every row through the backbone and writes its keys and values. For the rows numbered in `logit_rows` it also
  // makes the logits: out [logit_rows.size(), vocab], where they are all there for the host when it returns. With
  // `on_demand` those of a device stay there, and the call does not wait; collect() does.
  void target(const Step& step, std::span<const int32_t> logit_rows, float* logits, bool on_demand = false);
  // Waits for the oldest target() on demand that has not been collected; at most two are not.
  void collect();
  // Waits for all that was asked for; nothing is left to collect.
  void abandon();
  // Of the i-th logit row of the target() collected last: the best token, ties to the lower id, -1 when they are not
  // all finite; nothing when the logits are the host's, which has to look itself.
  std::optional<int32_t> best(int i) const;
  // Of that target(): the draft that chain() left for it under `number`.
  int32_t drafted(int number) const;
  // Brings the logits of that row to its place in `logits`. Only while no target() and no draft() came after its own.
  void fetch(int i);

  // What the last target() decided about its `run`, by number, for later rows to refer to (kernels.h, VerifyArgs): how
  // many of its rows count; behind that the token that follows, and the kHistory tokens before it. It must have asked
  // for the logits of every row.
  int32_t verdict(int run) const { return static_cast<int32_t>(2 * results_ + run * kVerdict); }

  // Puts the rows of the last target() step into the draft rings (6.4). `step` must be that step, with nothing called
  // in between. Rows of rejected drafts may be included: the next step that holds their positions overwrites them, and
  // no draft block looks past its anchor.
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
  // The same, and nobody waits: the best token of row r is left under the number r.
  void chain(int first_row, int depth);

 private:
  void check_step(const Step& step) const;
  void start_stream(const StepRows& rows);
  // Where the kernels write logits that are meant for `logits` on the host.
  float* logits_at(float* logits) { return logits_ != nullptr ? logits_ : logits; }
  size_t row_bytes() const { return static_cast<size_t>(spec_.vocab) * sizeof(float); }
  int32_t* best_at() { return later_ + results_; }
  void markov(int row, const int32_t* previous, float* logits, float* confidence);
  // One block on stream_; what collapses the stream after it is in ffn_pre_.
  void block(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights);
  void mix(const StepRows& rows, const MixWeights& weights, const bf16* norm, const float* previous, float* pre);
  void expand(const StepRows& rows);
  void attention(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights);
  // Asks project_qkv for the compressor's products, into columns of pooled_ from `column` on or, without a gate, into
  // latents_.
  Compressor pooled(const CompressorWeights& weights, const CompressorState& state, int column, SideProduct* kv,
                    SideProduct* gate) const;
  void index(const StepRows& rows, const LayerSpec& layer);
  void feed_forward(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights);
  template <class T>
  T* copy_of(std::span<const T> values);
  void address_engram(const StepRows& rows);
  void write_engram(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights);
  void tap(const StepRows& rows, const LayerSpec& layer);
  void head(const StepRows& rows, const MixWeights& mix, const bf16* norm, bf16* hidden, float* logits, int32_t* best);

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
  float* pooled_ = nullptr;          // the products that compressors pool, [rows, channels] one after the other
  bf16* latents_ = nullptr;          // [rows, 512] those of a compressor that pools nothing
  bf16* index_queries_ = nullptr;    // [rows, index heads, 128]
  bf16* head_weights_ = nullptr;     // [rows, index heads]
  int32_t* picks_ = nullptr;         // [rows, topk] of the last indexer, shared by the layers after it
  uint32_t* candidates_ = nullptr;   // [rows, candidate_words_]
  int candidate_words_ = 0;
  int32_t* expert_ids_ = nullptr;    // [rows, topk]
  float* expert_weights_ = nullptr;  // [rows, topk]
  std::vector<AddressArgs> engram_;  // of each Engram layer; table_rows [rows, columns] hold a step's
  bf16* taps_ = nullptr;             // [rows, tap width]
  bf16* main_x_ = nullptr;           // [rows, hidden]
  bf16* hidden_ = nullptr;           // [rows, hidden] of the last draft
  float* logits_ = nullptr;          // [logit rows, vocab] on a device; null: the caller's are used
  float* host_logits_ = nullptr;     // those of the caller, of the last target() or draft()
  StepRows target_rows_;             // of the last target(), valid as long as its step
  StepRows draft_rows_;              // of the last draft()
  int max_logit_rows_ = 0;
  size_t results_ = 0;            // most drafts, and most best tokens, of a step
  int32_t* later_ = nullptr;      // drafts [results_], best tokens [results_], verdicts [results_, kVerdict]
  float* confidences_ = nullptr;  // [results_]
  int32_t* collected_ = nullptr;  // drafts and best tokens of the last two targets on demand, where the host sees them
  std::array<uint64_t, 2> sent_{};  // their copies
  uint64_t asked_ = 0;              // targets on demand
  uint64_t read_ = 0;               // of those, collected
  std::vector<int32_t> every_row_;  // 0, 1, 2, ...
};

}  // namespace onelane
