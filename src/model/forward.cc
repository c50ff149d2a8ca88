#include "model/forward.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace onelane {
namespace {

int widest_topk(const ModelSpec& spec) {
  int widest = 0;
  for (const auto* blocks : {&spec.layers, &spec.draft_stages}) {
    for (const LayerSpec& layer : *blocks) widest = std::max(widest, layer.moe.topk);
  }
  return widest;
}

// Channels of a row that the compressors of one layer pool, kv and gate.
int widest_pooled(const Weights& weights) {
  int widest = 0;
  for (const BlockWeights& layer : weights.layers) {
    int channels = 0;
    for (const CompressorWeights* of : {&layer.compressor, &layer.index_compressor}) {
      if (of->wgate) channels += of->wkv.out + of->wgate.out;
    }
    widest = std::max(widest, channels);
  }
  return widest;
}

}  // namespace

template <class T>
T* ForwardPass::scratch(size_t count, Memory& memory) {
  buffers_.emplace_back(count * sizeof(T), memory);
  return reinterpret_cast<T*>(buffers_.back().data());
}

template <class T>
T* ForwardPass::scratch(size_t count_per_row) {
  return scratch<T>(count_per_row * static_cast<size_t>(max_rows_), kernels_.memory());
}

ForwardPass::ForwardPass(const Model& model, Kernels& kernels, KvStore& store, int max_rows, int max_logit_rows)
    : model_(model),
      spec_(model.spec),
      kernels_(kernels),
      store_(store),
      max_rows_(max_rows),
      max_logit_rows_(max_logit_rows > 0 ? max_logit_rows : max_rows) {
  const auto dim = static_cast<size_t>(spec_.hidden);
  const auto heads = static_cast<size_t>(spec_.n_heads);
  stream_ = scratch<bf16>(kStreams * dim);
  x_ = scratch<bf16>(dim);
  y_ = scratch<bf16>(dim);
  first_copy_ = scratch<float>(kStreams);
  std::vector<float> first_copies(kStreams * static_cast<size_t>(max_rows));
  for (size_t row = 0; row < first_copies.size(); row += kStreams) first_copies[row] = 1;
  kernels.memory().copy(first_copy_, first_copies.data(), first_copies.size() * sizeof(float));
  attn_pre_ = scratch<float>(kStreams);
  ffn_pre_ = scratch<float>(kStreams);
  post_ = scratch<float>(kStreams);
  comb_ = scratch<float>(kStreams * kStreams);
  qr_ = scratch<bf16>(static_cast<size_t>(spec_.q_lora));
  q_ = scratch<bf16>(heads * kHeadDim);
  attended_ = scratch<bf16>(heads * kHeadDim);
  kv_ = {scratch<std::byte>(static_cast<size_t>(record_bytes(spec_.window_record))), spec_.window_record, max_rows};
  pooled_ = scratch<float>(static_cast<size_t>(widest_pooled(model.weights)));
  latents_ = scratch<bf16>(kHeadDim);
  index_queries_ = scratch<bf16>(static_cast<size_t>(spec_.indexer.heads) * kIndexDim);
  head_weights_ = scratch<bf16>(static_cast<size_t>(spec_.indexer.heads));
  picks_ = scratch<int32_t>(static_cast<size_t>(spec_.indexer.topk));
  if (spec_.candidate.source_layer >= 0) {
    const int entries = store.pages() * kPageTokens;
    const int blocks = (entries + spec_.candidate.block_size - 1) / spec_.candidate.block_size;
    candidate_words_ = (blocks + 31) / 32;
    candidates_ = scratch<uint32_t>(static_cast<size_t>(candidate_words_));
  }
  expert_ids_ = scratch<int32_t>(static_cast<size_t>(widest_topk(spec_)));
  expert_weights_ = scratch<float>(static_cast<size_t>(widest_topk(spec_)));
  if (model.engram) {
    for (int n = 0; n < static_cast<int>(spec_.engram.layers.size()); ++n) {
      const EngramAddresses& of = *model.engram;
      AddressArgs& args = engram_.emplace_back(of.args(n));
      args.token_map = n > 0 ? engram_.front().token_map : copy_of(of.token_map());
      args.multipliers = copy_of(of.multipliers(n));
      args.primes = copy_of(of.primes(n));
      args.table_rows = scratch<int32_t>(static_cast<size_t>(of.columns()));
    }
  }
  results_ = static_cast<size_t>(max_rows_);
  later_ = scratch<int32_t>(results_ * (2 + kVerdict), kernels.memory());
  confidences_ = scratch<float>(results_, kernels.memory());
  collected_ = scratch<int32_t>(2 * 2 * results_, kernels.shared_memory());
  if (!kernels.memory().on_host()) {
    const size_t logits = static_cast<size_t>(max_logit_rows_) * static_cast<size_t>(spec_.vocab);
    logits_buffer_ = Buffer(logits * sizeof(float), kernels.memory());
    logits_ = reinterpret_cast<float*>(logits_buffer_.data());
  }
  if (model.has_drafter()) {
    taps_ = scratch<bf16>(static_cast<size_t>(spec_.tap_width()));
    main_x_ = scratch<bf16>(dim);
    hidden_ = scratch<bf16>(dim);
  }
  every_row_.resize(static_cast<size_t>(max_rows));
  std::iota(every_row_.begin(), every_row_.end(), 0);
}

ForwardPass::~ForwardPass() {
  kernels_.finish();
  kernels_.forget(this);
}

template <class T>
T* ForwardPass::copy_of(std::span<const T> values) {
  T* copy = scratch<T>(values.size(), kernels_.memory());
  kernels_.memory().copy(copy, values.data(), values.size_bytes());
  return copy;
}

size_t ForwardPass::bytes() const {
  size_t total = 0;
  for (const Buffer& buffer : buffers_) total += buffer.size();
  return total;
}

void ForwardPass::check_step(const Step& step) const {
  ONELANE_CHECK(step.count() > 0 && step.count() <= max_rows_, "a step holds 1 to max_rows rows");
  const StepRows rows = step.rows();
  for (int i = 0; i < rows.run_count; ++i) {
    ONELANE_CHECK(rows.runs[i].slot >= 0 && rows.runs[i].slot < store_.slots(), "a run needs a slot of the store");
  }
  for (int i = 0; i < rows.count; ++i) {
    const bool reference = beside_host() && rows.token[i] < 0 && rows.token[i] != kNoToken;
    ONELANE_CHECK(reference || (rows.token[i] >= 0 && rows.token[i] < spec_.vocab),
                  "a token must be in the vocabulary");
  }
}

void ForwardPass::start_stream(const StepRows& rows) {
  kernels_.embed(rows, {.table = model_.weights.embed, .dim = spec_.hidden, .stream = stream_});
  previous_ = first_copy_;
}

namespace {

enum class Part : uint64_t { kTarget, kSeed, kDraft, kChain };

// What decides which stages a part of a step calls, and how often.
uint64_t key_of(Part part, const StepRows& rows) {
  return static_cast<uint64_t>(part) | static_cast<uint64_t>(rows.count) << 2 |
         static_cast<uint64_t>(rows.run_count) << 22 | static_cast<uint64_t>(rows.logit_count) << 42;
}

}  // namespace

void ForwardPass::target(const Step& step, std::span<const int32_t> logit_rows, float* logits, bool on_demand) {
  check_step(step);
  const auto count = static_cast<int>(logit_rows.size());
  ONELANE_CHECK(count <= max_logit_rows_, "a step asks for at most max_logit_rows rows of logits");
  StepRows& rows = target_rows_;
  rows = step.rows();
  rows.logit_row = logit_rows.data();
  rows.logit_count = count;
  if (step.refers()) rows.later = later_;
  host_logits_ = logits;
  kernels_.begin(rows);
  address_engram(rows);
  kernels_.run(this, key_of(Part::kTarget, rows), [&] {
    start_stream(rows);
    for (const LayerSpec& layer : spec_.layers) {
      block(rows, layer, model_.weights.layers[static_cast<size_t>(layer.index)]);
    }
    head(rows, model_.weights.head_mix, model_.weights.norm, nullptr, logits_at(logits),
         beside_host() ? best_at() : nullptr);
    if (beside_host() && count == rows.count)
      kernels_.verify(rows, {.best = best_at(), .verdicts = later_ + 2 * results_});
  });
  if (beside_host() && on_demand) {
    ONELANE_CHECK(asked_ < read_ + 2, "at most two steps are not collected");
    int32_t* to = collected_ + asked_ % 2 * 2 * results_;
    sent_[asked_++ % 2] = kernels_.send(to, later_, (results_ + static_cast<size_t>(count)) * sizeof(int32_t));
  } else if (beside_host() && count > 0) {
    kernels_.memory().copy(logits, logits_, static_cast<size_t>(count) * row_bytes());
  } else {
    kernels_.finish();
  }
}

void ForwardPass::collect() {
  if (!beside_host()) return;
  ONELANE_CHECK(read_ < asked_, "a step is collected once");
  kernels_.wait(sent_[read_++ % 2]);
}

void ForwardPass::abandon() {
  kernels_.finish();
  read_ = asked_;
}

std::optional<int32_t> ForwardPass::best(int i) const {
  if (!beside_host()) return std::nullopt;
  return collected_[((read_ + 1) % 2 * 2 + 1) * results_ + static_cast<size_t>(i)];
}

int32_t ForwardPass::drafted(int number) const {
  // What is not finite has no best token; its rows were given the token 0.
  return std::max(0, collected_[(read_ + 1) % 2 * 2 * results_ + static_cast<size_t>(number)]);
}

void ForwardPass::fetch(int i) {
  if (!beside_host()) return;
  const size_t at = static_cast<size_t>(i) * static_cast<size_t>(spec_.vocab);
  kernels_.memory().copy(host_logits_ + at, logits_ + at, row_bytes());
}

void ForwardPass::seed_drafter(const Step& step) {
  const StepRows& rows = target_rows_;
  ONELANE_CHECK(rows.token == step.rows().token && rows.count == step.count(), "the step of the last target()");
  const DrafterWeights& drafter = model_.weights.drafter;
  kernels_.run(this, key_of(Part::kSeed, rows), [&] {
    kernels_.main_input(rows, {.taps = taps_,
                               .main_proj = drafter.main_proj,
                               .norm = drafter.main_norm,
                               .norm_eps = spec_.rms_eps,
                               .main_x = main_x_});
    for (const LayerSpec& stage : spec_.draft_stages) {
      const BlockWeights& weights = model_.weights.stages[static_cast<size_t>(stage.index)];
      kernels_.project_qkv(rows, {.x = main_x_,
                                  .dim = spec_.hidden,
                                  .wkv = weights.wkv,
                                  .kv_norm = weights.kv_norm,
                                  .norm_eps = spec_.rms_eps,
                                  .rope = &model_.rope(stage),
                                  .kv = kv_});
      kernels_.commit(rows, {.kv = kv_, .ring = store_.draft_ring(stage.index)});
    }
  });
}

void ForwardPass::draft(const Step& step, float* logits) {
  check_step(step);
  ONELANE_CHECK(step.count() <= max_logit_rows_, "a draft has at most max_logit_rows rows");
  StepRows& rows = draft_rows_;
  rows = step.rows();
  rows.logit_row = every_row_.data();
  rows.logit_count = rows.count;
  if (step.refers()) rows.later = later_;
  host_logits_ = logits;
  const DrafterWeights& drafter = model_.weights.drafter;
  kernels_.begin(rows);
  kernels_.run(this, key_of(Part::kDraft, rows), [&] {
    start_stream(rows);
    for (const LayerSpec& stage : spec_.draft_stages) {
      block(rows, stage, model_.weights.stages[static_cast<size_t>(stage.index)]);
    }
    head(rows, drafter.head_mix, drafter.norm, hidden_, logits_at(logits), nullptr);
  });
}

void ForwardPass::markov(int row, const int32_t* previous, float* logits, float* confidence) {
  const DrafterWeights& drafter = model_.weights.drafter;
  kernels_.markov(draft_rows_, {.row = row,
                                .prev = previous,
                                .w1 = drafter.markov_w1,
                                .w2 = drafter.markov_w2,
                                .confidence = drafter.confidence,
                                .hidden = hidden_ + static_cast<size_t>(row) * static_cast<size_t>(spec_.hidden),
                                .dim = spec_.hidden,
                                .rank = spec_.dspark.markov_rank,
                                .logits = logits,
                                .confidence_out = confidence});
}

float ForwardPass::draft_token(int row, int32_t previous, float* logits) {
  float* at = logits_ != nullptr ? logits_ + static_cast<size_t>(row) * static_cast<size_t>(spec_.vocab) : logits;
  float confidence = 0;
  kernels_.memory().copy(later_ + row, &previous, sizeof(previous));
  markov(row, later_ + row, at, confidences_ + row);
  kernels_.memory().copy(&confidence, confidences_ + row, sizeof(confidence));
  if (at != logits) kernels_.memory().copy(logits, at, row_bytes());
  return confidence;
}

void ForwardPass::chain(int first_row, int depth) {
  ONELANE_CHECK(first_row >= 0 && depth > 0 && first_row + depth <= draft_rows_.count, "a chain is rows of its draft");
  float* all = logits_at(host_logits_);
  StepRows rows = draft_rows_;
  rows.logit_count = first_row;  // stands for where the chain begins in the key
  rows.run_count = depth;
  kernels_.run(this, key_of(Part::kChain, rows), [&] {
    for (int row = first_row; row < first_row + depth; ++row) {
      float* logits = all + static_cast<size_t>(row) * static_cast<size_t>(spec_.vocab);
      markov(row, row == first_row ? nullptr : later_ + row - 1, logits, confidences_ + row);
      kernels_.choose(draft_rows_, {.logits = logits, .count = 1, .vocab = spec_.vocab, .best = later_ + row});
    }
  });
}

void ForwardPass::draft_chain(int first_row, std::span<int32_t> tokens, std::span<float> confidences) {
  ONELANE_CHECK(confidences.size() == tokens.size(), "one confidence for each token");
  chain(first_row, static_cast<int>(tokens.size()));
  kernels_.memory().copy(tokens.data(), later_ + first_row, tokens.size_bytes());
  kernels_.memory().copy(confidences.data(), confidences_ + first_row, confidences.size_bytes());
}

}  // namespace onelane
