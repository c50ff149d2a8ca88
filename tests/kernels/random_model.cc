#include "kernels/random_model.h"

namespace onelane::testing {

Weight RandomModel::fp8(int out, int in, bool activations) {
  return fp8_weight(
      out, in, fp8_block_, activations ? act_block_ : 0,
      [&, scale = 1 / std::sqrt(static_cast<float>(in))](int, int) { return random_.normal(scale); },
      [](int o, int k) { return -9 - (o + k) % 3; });
}
Weight RandomModel::fp4(int out, int in) {
  return fp4_weight(
      out, in, act_block_,
      [&, scale = 1 / std::sqrt(static_cast<float>(in))](int, int) { return random_.normal(scale); },
      [](int o, int k) { return -4 - (o + k) % 2; });
}
Weight RandomModel::plain(int out, int in) {
  return bf16_weight(out, in,
                     [&, scale = 1 / std::sqrt(static_cast<float>(in))](int, int) { return random_.normal(scale); });
}

RandomModel::Mixing RandomModel::mixing(int count) {
  const int width = kStreams * dim_;
  return {Array<float>(random_.floats(count * width, 1 / std::sqrt(static_cast<float>(width)))),
          Array<float>(random_.floats(count)), Array<float>(random_.floats(3))};
}

RandomModel::Pooler RandomModel::pooler(int ratio, int width) {
  Pooler p;
  const bool overlap = ratio == 4;
  const int stored = overlap ? 2 * width : width;
  p.wkv = plain(stored, dim_);
  if (ratio > 1) p.wgate = plain(stored, dim_);
  if (!options_.v41) p.ape = Array<float>(random_.floats(ratio * stored));
  p.norm = random_.bf16s(width);
  p.compressor = {
      .ape = options_.v41 ? nullptr : p.ape.data(), .norm = p.norm.data(), .width = width, .overlap = overlap};
  return p;
}

RandomModel::Expert RandomModel::expert(bool shared) {
  const auto make = [&](int out, int in) { return shared ? fp8(out, in) : fp4(out, in); };
  return {make(inter_, dim_), make(dim_, inter_), make(inter_, dim_)};
}

RandomModel::Layer RandomModel::layer(int ratio, int owner) {
  const int number = static_cast<int>(layers_.size());
  Layer l;
  l.ratio = ratio;
  l.owner = owner;
  l.compresses = owner == number;
  l.indexes = ratio > 0 && ratio < 128;
  l.engram = options_.v41 && number == 0;
  l.hash = !options_.v41 && number == 0;
  l.attn_mix = mixing(kMixes);
  l.ffn_mix = mixing(kMixes);
  l.attn_norm = random_.bf16s(dim_);
  l.ffn_norm = random_.bf16s(dim_);
  l.q_norm = random_.bf16s(q_lora_);
  l.kv_norm = random_.bf16s(kHeadDim);
  l.wq_a = fp8(q_lora_, dim_);
  l.wq_b = fp8(kHeads * kHeadDim, q_lora_);
  l.wkv = fp8(kHeadDim, dim_);
  l.wo_a = fp8(kGroups * kOLora, kHeads / kGroups * kHeadDim, false);
  l.wo_b = fp8(dim_, kGroups * kOLora);
  l.sink = Array<float>(random_.floats(kHeads));
  if (l.compresses) {
    l.main = pooler(ratio, kHeadDim);
    if (ratio == 4) l.index = pooler(ratio, kIndexDim);
    if (options_.v41) {
      l.wk = plain(kIndexDim, kHeadDim);
      l.k_norm = random_.bf16s(kIndexDim);
    }
  }
  if (l.indexes) {
    l.index_wq_b = fp8(kIndexHeads * kIndexDim, q_lora_);
    l.index_weights = plain(kIndexHeads, dim_);
  }
  l.gate = plain(kExperts, dim_);
  if (l.hash) {
    l.tid2eid = Array<int64_t>(kVocab * options_.topk);
    for (size_t i = 0; i < l.tid2eid.size(); ++i) l.tid2eid[i] = static_cast<int64_t>(i * 7 % kExperts);
  } else {
    l.bias = Array<float>(random_.floats(kExperts, 0.1f));
  }
  for (int e = 0; e < kExperts; ++e) l.experts.push_back(expert(false));
  for (const Expert& e : l.experts) l.expert_weights.push_back(e.weights());
  l.shared = expert(true);
  return l;
}

RandomModel::RandomModel(const ModelOptions& options) : options_(options), random_(options.seed) {
  dim_ = options.v41 ? 96 : 128;
  q_lora_ = options.v41 ? 64 : 128;
  inter_ = options.v41 ? 160 : 128;
  act_block_ = fp8_block_ = options.v41 ? 32 : 128;
  eps_ = options.v41 ? 1e-20f : 1e-6f;
  embed_ = random_.bf16s(kVocab * dim_, options.embed_scale);
  if (options.nan_token >= 0) embed_[options.nan_token * dim_ + 3] = 0x7fc0;
  norm_ = random_.bf16s(dim_);
  head_ = plain(kVocab, dim_);
  head_mix_ = mixing(kStreams);
  layers_.push_back(layer(0, -1));
  layers_.push_back(layer(options.v41 ? 2 : 4, 1));
  layers_.push_back(layer(options.v41 ? 1 : 128, 2));
  if (options.v41) {
    layers_.push_back(layer(1, 2));
    layers_[2].mode = IndexArgs::Candidates::kPublish;
    layers_[3].mode = IndexArgs::Candidates::kApply;
    engram_table_ = Array<uint8_t>(kTableRows * kEngramWidth);
    for (size_t i = 0; i < engram_table_.size(); ++i) engram_table_[i] = float_to_e4m3(random_.normal(30));
    engram_scale_ = Array<uint8_t>(kTableRows, 122);
    engram_wkv_ = fp8((kStreams + 1) * dim_, kColumns * kEngramWidth);
    engram_q_ = random_.bf16s(kStreams * dim_);
    engram_k_ = random_.bf16s(kStreams * dim_);
  }
  main_proj_ = fp8(dim_, 2 * dim_);
  main_norm_ = random_.bf16s(dim_);
  markov_w1_ = random_.bf16s(kVocab * kRank);
  markov_w2_ = plain(kVocab, kRank);
  confidence_ = plain(1, dim_ + kRank);
}

ModelCaches RandomModel::make_caches() const {
  const RecordFormat window = options_.v41 ? RecordFormat::kV41Fp8 : RecordFormat::kV4Fp8;
  const RecordFormat compressed = options_.v41 ? RecordFormat::kV41Nvfp4 : RecordFormat::kV4Fp8;
  const int capacity = kWindow + kDraftBlock + 1;
  ModelCaches caches{{}, Rings(window, kSlots, capacity), {}, {}, {}, {}};
  caches.draft_ring.memory.poison();
  const auto state = [&](const Compressor& c, int ratio) {
    const int rows = ratio * (c.overlap ? 2 : 1) + kDraftBlock + 1;
    Buffer buffer(c.width > 0 ? sizeof(float) * kSlots * rows * 2 * c.stored() : 0);
    buffer.poison();
    return buffer;
  };
  for (const Layer& l : layers_) {
    caches.rings.emplace_back(window, kSlots, capacity);
    caches.rings.back().memory.poison();
    const int ratio = std::max(1, l.ratio);
    caches.entries.emplace_back(compressed, kSlots * kPagesPerSlot, ratio);
    caches.entries.back().memory.poison();
    caches.keys.emplace_back(RecordFormat::kIndexMxfp4, kSlots * kPagesPerSlot, ratio);
    caches.keys.back().memory.poison();
    caches.states.push_back(state(l.main.compressor, ratio));
    caches.index_states.push_back(state(l.index.compressor, ratio));
  }
  return caches;
}

int32_t RandomModel::token(int slot, int position) const {
  // One slot says the NaN token, if there is one, and only that slot.
  const int32_t token = (position * 37 + slot * 11 + position * position % 13) % kVocab;
  if (options_.nan_token < 0) return token;
  if (slot == 1 && position == 3) return options_.nan_token;
  return token == options_.nan_token ? 0 : token;
}

}  // namespace onelane::testing
