#include "engine/identity.h"

#include <algorithm>
#include <cstdint>

#include "base/format.h"

namespace onelane {
namespace {

constexpr size_t kSample = 512;

// FNV-1a: a few kilobytes are hashed, once.
class Hash {
 public:
  void bytes(const void* data, size_t count) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < count; ++i) state_ = (state_ ^ at[i]) * 0x100000001b3ULL;
  }
  void add(int64_t number) { bytes(&number, sizeof(number)); }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325ULL;
};

void sample(Hash& hash, const void* data, int bytes) {
  if (data != nullptr) hash.bytes(data, std::min(kSample, static_cast<size_t>(bytes)));
}

}  // namespace

std::string model_identity(const Model& model) {
  const ModelSpec& spec = model.spec;
  Hash hash;
  for (const int number : {static_cast<int>(spec.generation), spec.vocab, spec.hidden, spec.n_heads, spec.q_lora,
                           spec.window, static_cast<int>(spec.window_record), static_cast<int>(spec.compressed_record),
                           static_cast<int>(spec.drafter), spec.dspark.block_size}) {
    hash.add(number);
  }
  for (const LayerSpec& layer : spec.layers) {
    for (const int number : {layer.ratio, layer.kv_owner, layer.index_owner, layer.moe.n_experts}) hash.add(number);
  }
  sample(hash, model.weights.embed, spec.hidden * 2);
  sample(hash, model.weights.norm, spec.hidden * 2);
  for (const auto* blocks : {&model.weights.layers, &model.weights.stages}) {
    for (const BlockWeights& block : *blocks) {
      sample(hash, block.attn_norm, spec.hidden * 2);
      sample(hash, block.kv_norm, spec.head_dim * 2);
      sample(hash, block.wkv.data, block.wkv.in);
      if (!block.experts.empty()) {
        const Matrix& w1 = block.experts.back().w1;
        sample(hash, w1.data, w1.in / 2);
      }
    }
  }
  return format("{:016x}", hash.value());
}

}  // namespace onelane
