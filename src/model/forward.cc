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
    const size_t layers = spec_.engram.layers.size();
    const size_t rows = layers * static_cast<size_t>(max_rows) * static_cast<size_t>(model.engram->columns());
    engram_rows_ = scratch<int32_t>(rows, kernels.shared_memory());
  }
  best_copy_.resize(2 * static_cast<size_t>(max_rows_));
  best_ = scratch<int32_t>(2);
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

ForwardPass::~ForwardPass() { kernels_.forget(this); }

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
    ONELANE_CHECK(rows.token[i] >= 0 && rows.token[i] < spec_.vocab, "a token must be in the vocabulary");
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
  ONELANE_CHECK(logits_ == nullptr || count <= max_logit_rows_,
                "a step asks for at most max_logit_rows rows of logits");
  StepRows rows = step.rows();
  rows.logit_row = logit_rows.data();
  rows.logit_count = count;
  host_logits_ = logits;
  if (model_.engram) look_up_engram(step);
  kernels_.begin(rows);
  kernels_.run(this, key_of(Part::kTarget, rows), [&] {
    start_stream(rows);
    for (const LayerSpec& layer : spec_.layers) {
      block(rows, layer, model_.weights.layers[static_cast<size_t>(layer.index)]);
    }
    head(rows, model_.weights.head_mix, model_.weights.norm, nullptr, logits_at(logits));
    if (logits_ != nullptr && count > 0) {
      kernels_.choose(rows, {.logits = logits_, .count = count, .vocab = spec_.vocab, .best = best_});
    }
  });
  if (logits_ == nullptr || count == 0) return kernels_.finish();  // the step's arrays are the caller's again
  if (on_demand) {
    kernels_.memory().copy(best_copy_.data(), best_, logit_rows.size_bytes());
  } else {
    kernels_.memory().copy(logits, logits_, static_cast<size_t>(count) * row_bytes());
  }
}

std::optional<int32_t> ForwardPass::best(int i) const {
  if (logits_ == nullptr) return std::nullopt;
  return best_copy_[static_cast<size_t>(i)];
}

void ForwardPass::fetch(int i) {
  if (logits_ == nullptr) return;
  const size_t at = static_cast<size_t>(i) * static_cast<size_t>(spec_.vocab);
  kernels_.memory().copy(host_logits_ + at, logits_ + at, row_bytes());
}

void ForwardPass::seed_drafter(const Step& step) {
  check_step(step);
  const StepRows rows = step.rows();
  const DrafterWeights& drafter = model_.weights.drafter;
  kernels_.begin(rows);
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
  ONELANE_CHECK(logits_ == nullptr || step.count() <= max_logit_rows_, "a draft has at most max_logit_rows rows");
  StepRows rows = step.rows();
  rows.logit_row = every_row_.data();
  rows.logit_count = rows.count;
  host_logits_ = logits;
  draft_rows_ = rows;
  const DrafterWeights& drafter = model_.weights.drafter;
  kernels_.begin(rows);
  kernels_.run(this, key_of(Part::kDraft, rows), [&] {
    start_stream(rows);
    for (const LayerSpec& stage : spec_.draft_stages) {
      block(rows, stage, model_.weights.stages[static_cast<size_t>(stage.index)]);
    }
    head(rows, drafter.head_mix, drafter.norm, hidden_, logits_at(logits));
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
  kernels_.memory().copy(best_, &previous, sizeof(previous));
  markov(row, best_, at, confidences_at());
  kernels_.memory().copy(&confidence, confidences_at(), sizeof(confidence));
  if (at != logits) kernels_.memory().copy(logits, at, row_bytes());
  return confidence;
}

void ForwardPass::draft_chain(int first_row, std::span<int32_t> tokens, std::span<float> confidences) {
  const auto depth = static_cast<int>(tokens.size());
  ONELANE_CHECK(depth <= max_rows_ && confidences.size() == tokens.size(), "one confidence for each token");
  float* all = logits_at(host_logits_);
  StepRows rows = draft_rows_;
  rows.logit_count = first_row;  // stands for where the chain begins in the key
  rows.run_count = depth;
  kernels_.run(this, key_of(Part::kChain, rows), [&] {
    for (int i = 0; i < depth; ++i) {
      float* logits = all + static_cast<size_t>(first_row + i) * static_cast<size_t>(spec_.vocab);
      markov(first_row + i, i == 0 ? nullptr : best_ + i - 1, logits, confidences_at() + i);
      kernels_.choose(draft_rows_, {.logits = logits, .count = 1, .vocab = spec_.vocab, .best = best_ + i});
    }
  });
  kernels_.memory().copy(best_copy_.data(), best_, best_copy_.size() * sizeof(int32_t));
  std::copy_n(best_copy_.data(), depth, tokens.data());
  std::memcpy(confidences.data(), best_copy_.data() + max_rows_, confidences.size_bytes());
}

void ForwardPass::block(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights) {
  const bool delayed = spec_.hyper.flavour == HyperFlavour::kDelayedPre;
  if (layer.engram) write_engram(rows, layer, weights);
  if (!layer.draft && spec_.dspark.taps_are_inputs) tap(rows, layer);

  mix(rows, weights.attn_mix, weights.attn_norm, delayed ? previous_ : nullptr, attn_pre_);
  attention(rows, layer, weights);
  expand(rows);

  mix(rows, weights.ffn_mix, weights.ffn_norm, delayed ? attn_pre_ : nullptr, ffn_pre_);
  previous_ = ffn_pre_;
  feed_forward(rows, layer, weights);
  expand(rows);
  if (!layer.draft && !spec_.dspark.taps_are_inputs) tap(rows, layer);
}

void ForwardPass::mix(const StepRows& rows, const MixWeights& weights, const bf16* norm, const float* previous,
                      float* pre) {
  kernels_.mix_streams(rows, {.stream = stream_,
                              .dim = spec_.hidden,
                              .weights = weights,
                              .norm_eps = spec_.rms_eps,
                              .mix_eps = spec_.hyper.eps,
                              .iterations = spec_.hyper.sinkhorn_iters,
                              .collapse_with = previous,
                              .norm = norm,
                              .pre = pre,
                              .post = post_,
                              .comb = comb_,
                              .x = x_});
}

void ForwardPass::expand(const StepRows& rows) {
  kernels_.expand_streams(rows, {.stream = stream_, .dim = spec_.hidden, .y = y_, .post = post_, .comb = comb_});
}

void ForwardPass::attention(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights) {
  kernels_.project_qkv(rows, {.x = x_,
                              .dim = spec_.hidden,
                              .wq_a = weights.wq_a,
                              .wq_b = weights.wq_b,
                              .wkv = weights.wkv,
                              .q_norm = weights.q_norm,
                              .kv_norm = weights.kv_norm,
                              .q_head_norm = spec_.q_head_norm,
                              .norm_eps = spec_.rms_eps,
                              .rope = &model_.rope(layer),
                              .heads = spec_.n_heads,
                              .qr = qr_,
                              .q = q_,
                              .kv = kv_});
  if (layer.has_compressor) compress(rows, layer, weights);
  if (layer.has_indexer) index(rows, layer, weights);
  const RingCache ring = layer.draft ? store_.draft_ring(layer.index) : store_.ring(layer.index);
  AttendArgs args{.q = q_,
                  .heads = spec_.n_heads,
                  .kv = kv_,
                  .ring = ring,
                  .block_attention = layer.draft,
                  .sink = weights.sink,
                  .rope = &model_.rope(layer),
                  .ratio = layer.ratio,
                  .out = attended_};
  if (layer.ratio > 0) {
    args.entries = store_.entries(layer.kv_owner);
    if (layer.index_owner >= 0) {
      args.picks = picks_;
      args.topk = spec_.indexer.topk;
    }
  }
  kernels_.attend(rows, args);
  // A draft block is a question, not history: its entries are gone when it is answered.
  if (!layer.draft) kernels_.commit(rows, {.kv = kv_, .ring = ring});
  kernels_.project_out(rows, {.attended = attended_,
                              .heads = spec_.n_heads,
                              .groups = spec_.o_groups,
                              .wo_a = weights.wo_a,
                              .wo_b = weights.wo_b,
                              .y = y_});
}

void ForwardPass::compress(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights) {
  Compressor main = weights.compressor;
  main.state = store_.state(layer.index);
  Compressor index_keys = weights.index_compressor;
  index_keys.state = store_.index_state(layer.index);
  kernels_.compress(rows, {.x = x_,
                           .dim = spec_.hidden,
                           .ratio = layer.ratio,
                           .norm_eps = spec_.rms_eps,
                           .rope = &model_.rope(layer),
                           .main = main,
                           .entries = store_.entries(layer.index),
                           .wk = weights.index_wk,
                           .k_norm = weights.index_k_norm,
                           .index_compressor = index_keys.wkv ? &index_keys : nullptr,
                           .keys = store_.keys(layer.index)});
}

void ForwardPass::index(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights) {
  IndexArgs args{.x = x_,
                 .qr = qr_,
                 .dim = spec_.hidden,
                 .wq_b = weights.index_wq_b,
                 .weights_proj = weights.index_weights,
                 .heads = spec_.indexer.heads,
                 .ratio = layer.ratio,
                 .hadamard = spec_.indexer.hadamard,
                 .rope = &model_.rope(layer),
                 .keys = store_.keys(layer.kv_owner),
                 .topk = spec_.indexer.topk,
                 .picks = picks_};
  if (layer.candidate_source || layer.candidate_masked) {
    args.mode = layer.candidate_source ? IndexArgs::Candidates::kPublish : IndexArgs::Candidates::kApply;
    args.topk_blocks = spec_.candidate.topk_blocks;
    args.block_size = spec_.candidate.block_size;
    args.candidates = candidates_;
    args.candidate_words = candidate_words_;
  }
  kernels_.index(rows, args);
}

void ForwardPass::feed_forward(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights) {
  const MoeSpec& moe = layer.moe;
  kernels_.route(rows, {.x = x_,
                        .dim = spec_.hidden,
                        .gate = weights.gate,
                        .bias = weights.gate_bias,
                        .tid2eid = weights.tid2eid,
                        .experts = moe.n_experts,
                        .topk = moe.topk,
                        .normalise = moe.normalise,
                        .norm_eps = moe.norm_eps,
                        .scale = moe.scaling,
                        .ids = expert_ids_,
                        .weights = expert_weights_});
  kernels_.experts(rows, {.x = x_,
                          .dim = spec_.hidden,
                          .inter = moe.inter,
                          .experts = weights.experts.data(),
                          .expert_count = moe.n_experts,
                          .ids = expert_ids_,
                          .weights = expert_weights_,
                          .topk = moe.topk,
                          .shared = weights.shared,
                          .limit = spec_.swiglu_limit,
                          .y = y_});
}

int32_t* ForwardPass::engram_rows(int n) const {
  return engram_rows_ + static_cast<size_t>(n) * static_cast<size_t>(max_rows_ * model_.engram->columns());
}

void ForwardPass::look_up_engram(const Step& step) {
  const StepRows rows = step.rows();
  for (int n = 0; n < static_cast<int>(spec_.engram.layers.size()); ++n) {
    for (int run = 0; run < rows.run_count; ++run) {
      int32_t* out = engram_rows(n) + rows.runs[run].first_row * model_.engram->columns();
      model_.engram->rows(n, step.before(run), step.tokens(run), out);
    }
  }
}

void ForwardPass::write_engram(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights) {
  const auto& layers = spec_.engram.layers;
  const auto n = static_cast<int>(std::find(layers.begin(), layers.end(), layer.index) - layers.begin());
  kernels_.engram(rows, {.stream = stream_,
                         .dim = spec_.hidden,
                         .table_rows = engram_rows(n),
                         .columns = model_.engram->columns(),
                         .table = weights.engram_table,
                         .table_scale = weights.engram_table_scale,
                         .width = spec_.engram.head_dim,
                         .wkv = weights.engram_wkv,
                         .q_weight = weights.engram_q_weight,
                         .k_weight = weights.engram_k_weight,
                         .norm_eps = spec_.rms_eps});
}

void ForwardPass::tap(const StepRows& rows, const LayerSpec& layer) {
  if (!model_.has_drafter()) return;
  const auto& targets = spec_.dspark.target_layers;
  const auto found = std::find(targets.begin(), targets.end(), layer.index);
  if (found == targets.end()) return;
  kernels_.tap(rows, {.stream = stream_,
                      .dim = spec_.hidden,
                      .taps = taps_,
                      .tap_width = spec_.tap_width(),
                      .column = static_cast<int>(found - targets.begin()) * spec_.hidden});
}

void ForwardPass::head(const StepRows& rows, const MixWeights& mix, const bf16* norm, bf16* hidden, float* logits) {
  if (rows.logit_count == 0) return;
  kernels_.head(rows, {.stream = stream_,
                       .dim = spec_.hidden,
                       .rows = rows.logit_row,
                       .count = rows.logit_count,
                       .collapse_with = spec_.hyper.flavour == HyperFlavour::kDelayedPre ? ffn_pre_ : nullptr,
                       .mix = mix,
                       .norm_eps = spec_.rms_eps,
                       .mix_eps = spec_.hyper.eps,
                       .norm = norm,
                       .head = model_.weights.head,
                       .hidden = hidden,
                       .logits = logits});
}

}  // namespace onelane
