// The stages of a layer, of its parts and of the head, in their order.
#include <algorithm>

#include "model/forward.h"

namespace onelane {

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
  QkvArgs qkv{.x = x_,
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
              .kv = kv_};
  CompressArgs compress{.ratio = layer.ratio, .norm_eps = spec_.rms_eps, .rope = &model_.rope(layer)};
  Compressor index_keys;
  if (layer.has_compressor) {
    compress.main = pooled(weights.compressor, store_.state(layer.index), 0, &qkv.of_x[0], &qkv.of_x[1]);
    compress.entries = store_.entries(layer.index);
    compress.wk = weights.index_wk;
    compress.k_norm = weights.index_k_norm;
    compress.keys = store_.keys(layer.index);
    if (weights.index_compressor.wkv) {
      const int column = weights.compressor.wkv.out + weights.compressor.wgate.out;
      index_keys =
          pooled(weights.index_compressor, store_.index_state(layer.index), column, &qkv.of_x[2], &qkv.of_x[3]);
      compress.index_compressor = &index_keys;
    }
  }
  if (layer.has_indexer) {
    qkv.of_x[4] = {.weights = weights.index_weights, .rounded = head_weights_};
    qkv.of_qr = {.weights = weights.index_wq_b, .rounded = index_queries_};
  }
  kernels_.project_qkv(rows, qkv);
  if (layer.has_compressor) kernels_.compress(rows, compress);
  if (layer.has_indexer) index(rows, layer);

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

Compressor ForwardPass::pooled(const CompressorWeights& weights, const CompressorState& state, int column,
                               SideProduct* kv, SideProduct* gate) const {
  Compressor compressor = weights.rest;
  compressor.state = state;
  if (!weights.wgate) {
    compressor.latent = latents_;
    *kv = {.weights = weights.wkv, .rounded = latents_};
    return compressor;
  }
  const auto rows = static_cast<size_t>(max_rows_);
  float* at = pooled_ + rows * static_cast<size_t>(column);
  *kv = {.weights = weights.wkv, .exact = at};
  *gate = {.weights = weights.wgate, .exact = at + rows * static_cast<size_t>(weights.wkv.out)};
  compressor.kv = kv->exact;
  compressor.gate = gate->exact;
  return compressor;
}

void ForwardPass::index(const StepRows& rows, const LayerSpec& layer) {
  IndexArgs args{.queries = index_queries_,
                 .head_weights = head_weights_,
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
  const RouteArgs router{.x = x_,
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
                         .weights = expert_weights_};
  kernels_.experts(rows, {.router = &router,
                          .x = x_,
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

void ForwardPass::address_engram(const StepRows& rows) {
  for (const AddressArgs& args : engram_) kernels_.address(rows, args);
}

void ForwardPass::write_engram(const StepRows& rows, const LayerSpec& layer, const BlockWeights& weights) {
  const auto& layers = spec_.engram.layers;
  const auto n = std::find(layers.begin(), layers.end(), layer.index) - layers.begin();
  kernels_.engram(rows, {.stream = stream_,
                         .dim = spec_.hidden,
                         .table_rows = engram_[static_cast<size_t>(n)].table_rows,
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

void ForwardPass::head(const StepRows& rows, const MixWeights& mix, const bf16* norm, bf16* hidden, float* logits,
                       int32_t* best) {
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
                       .logits = logits,
                       .best = best});
}

}  // namespace onelane
