#include "model/weights.h"

#include "base/format.h"
#include "checkpoint/inventory.h"

namespace onelane {
namespace {

// Seventy thousand allocations would each be rounded up to two megabytes: an expert's matrix has five and a half.
constexpr size_t kAllocation = size_t{256} << 20;
constexpr size_t kGranule = size_t{2} << 20;
constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool on_device(const ModelSpec& spec, const ExpectedTensor& tensor) {
  const bool drafts = !tensor.draft || spec.drafter == DrafterKind::kDspark;
  return drafts && tensor.kind != TensorKind::kVision && tensor.kind != TensorKind::kEngramTable;
}

}  // namespace

int64_t Weights::device_bytes(const ModelSpec& spec) {
  size_t total = 0;
  for (const ExpectedTensor& tensor : expected_tensors(spec)) {
    if (on_device(spec, tensor)) total += aligned(static_cast<size_t>(tensor.bytes()));
  }
  return static_cast<int64_t>(total + (total / kAllocation + 1) * kGranule);
}

void Weights::upload(const ModelSpec& spec) {
  std::vector<std::string> names;
  size_t bytes = 0;
  for (ExpectedTensor& tensor : expected_tensors(spec)) {
    if (!on_device(spec, tensor)) continue;
    bytes += aligned(static_cast<size_t>(tensor.bytes()));
    names.push_back(std::move(tensor.name));
    if (bytes < kAllocation) continue;
    upload_together(names, bytes);
    names.clear();
    bytes = 0;
  }
  if (bytes > 0) upload_together(names, bytes);
}

void Weights::upload_together(std::span<const std::string> names, size_t bytes) {
  Memory& memory = kernels_->memory();
  std::byte* to = copies_.emplace_back(bytes, memory).data();
  for (const std::string& name : names) {
    const TensorView* tensor = checkpoint_.find(name);
    ONELANE_CHECK(tensor != nullptr, name.c_str());
    memory.copy(to, tensor->bytes.data(), tensor->bytes.size());
    uploaded_.emplace(name, to);
    to += aligned(tensor->bytes.size());
  }
}

const std::byte* Weights::place(const std::string& name, size_t alignment) {
  const TensorView* tensor = checkpoint_.find(name);
  ONELANE_CHECK(tensor != nullptr, name.c_str());
  const std::byte* data = tensor->bytes.data();
  if (kernels_ != nullptr && shared_) return copy(tensor->bytes, kernels_->shared_memory());
  if (kernels_ != nullptr) return uploaded_.at(name);
  if (!fences_on() && reinterpret_cast<uintptr_t>(data) % alignment == 0) return data;
  return copy(tensor->bytes, host_memory());
}

const std::byte* Weights::copy(std::span<const std::byte> bytes, Memory& memory) {
  Buffer& buffer = copies_.emplace_back(bytes.size(), memory);
  if (!bytes.empty()) memory.copy(buffer.data(), bytes.data(), bytes.size());
  return buffer.data();
}

Matrix Weights::plain(const std::string& name) {
  const TensorView* tensor = checkpoint_.find(name);
  ONELANE_CHECK(tensor != nullptr && tensor->shape.size() == 2, name.c_str());
  Matrix matrix;
  matrix.kind = Matrix::Kind::kBf16;
  matrix.out = static_cast<int>(tensor->shape[0]);
  matrix.in = static_cast<int>(tensor->shape[1]);
  matrix.data = place(name, alignof(bf16));
  return matrix;
}

Matrix Weights::quantised(const std::string& stem, const ModelSpec& spec, bool quantise_activations) {
  const std::string name = stem + ".weight";
  const TensorView* tensor = checkpoint_.find(name);
  ONELANE_CHECK(tensor != nullptr && tensor->shape.size() == 2, name.c_str());
  const bool fp4 = tensor->dtype == DType::kI8;
  Matrix matrix;
  matrix.kind = fp4 ? Matrix::Kind::kFp4 : Matrix::Kind::kFp8;
  matrix.out = static_cast<int>(tensor->shape[0]);
  matrix.in = static_cast<int>(tensor->shape[1]) * (fp4 ? 2 : 1);
  matrix.block = fp4 ? 32 : spec.weight_block;
  matrix.act_block = quantise_activations ? spec.act_block : 0;
  matrix.data = place(name, 1);
  matrix.scale = vector<uint8_t>(stem + ".scale");
  return matrix;
}

MixWeights Weights::mix(const std::string& stem) {
  return {vector<float>(stem + "_fn"), vector<float>(stem + "_base"), vector<float>(stem + "_scale")};
}

ExpertWeights Weights::expert(const std::string& stem, const ModelSpec& spec) {
  return {quantised(stem + ".w1", spec), quantised(stem + ".w2", spec), quantised(stem + ".w3", spec)};
}

CompressorWeights Weights::compressor(const std::string& stem, int width, bool gate, bool ape, bool overlap) {
  CompressorWeights result;
  result.wkv = plain(stem + ".wkv.weight");
  if (gate) result.wgate = plain(stem + ".wgate.weight");
  if (ape) result.rest.ape = vector<float>(stem + ".ape");
  result.rest.norm = vector<bf16>(stem + ".norm.weight");
  result.rest.width = width;
  result.rest.overlap = overlap;
  return result;
}

BlockWeights Weights::block(const std::string& stem, const LayerSpec& layer, const ModelSpec& spec) {
  BlockWeights w;
  w.attn_mix = mix(stem + ".hc_attn");
  w.ffn_mix = mix(stem + ".hc_ffn");
  w.attn_norm = vector<bf16>(stem + ".attn_norm.weight");
  w.ffn_norm = vector<bf16>(stem + ".ffn_norm.weight");

  const std::string attn = stem + ".attn";
  w.wq_a = quantised(attn + ".wq_a", spec);
  w.wq_b = quantised(attn + ".wq_b", spec);
  w.wkv = quantised(attn + ".wkv", spec);
  w.wo_a = quantised(attn + ".wo_a", spec, /*quantise_activations=*/false);  // used as bf16: A.7
  w.wo_b = quantised(attn + ".wo_b", spec);
  w.q_norm = vector<bf16>(attn + ".q_norm.weight");
  w.kv_norm = vector<bf16>(attn + ".kv_norm.weight");
  w.sink = vector<float>(attn + ".attn_sink");

  if (layer.has_compressor) {
    w.compressor =
        compressor(attn + ".compressor", kHeadDim, layer.has_compressor_gate, layer.has_ape, layer.compressor_overlap);
  }
  if (layer.has_indexer) {
    w.index_wq_b = quantised(attn + ".indexer.wq_b", spec);
    w.index_weights = plain(attn + ".indexer.weights_proj.weight");
  }
  if (layer.has_index_keys && layer.has_ape) {
    w.index_compressor = compressor(attn + ".indexer.compressor", kIndexDim, true, true, layer.compressor_overlap);
  } else if (layer.has_index_keys) {
    w.index_wk = plain(attn + ".indexer.wk.weight");
    w.index_k_norm = vector<bf16>(attn + ".indexer.k_norm.weight");
  }

  const std::string ffn = stem + ".ffn";
  w.gate = plain(ffn + ".gate.weight");
  if (layer.hash_routing) {
    w.tid2eid = vector<int64_t>(ffn + ".gate.tid2eid");
  } else {
    w.gate_bias = vector<float>(ffn + ".gate.bias");
  }
  for (int e = 0; e < layer.moe.n_experts; ++e) w.experts.push_back(expert(format("{}.experts.{}", ffn, e), spec));
  w.shared = expert(ffn + ".shared_experts", spec);

  if (layer.engram) {
    const std::string engram = stem + ".engram";
    shared_ = true;  // a few rows a token, of a table that may be larger than the device
    w.engram_table = vector<uint8_t>(engram + ".embed.weight");
    w.engram_table_scale = vector<uint8_t>(engram + ".embed.scale");
    shared_ = false;
    w.engram_wkv = quantised(engram + ".wkv", spec);
    w.engram_q_weight = vector<bf16>(engram + ".q_weight");
    w.engram_k_weight = vector<bf16>(engram + ".k_weight");
  }
  return w;
}

void Weights::load_drafter(const ModelSpec& spec) {
  if (spec.drafter != DrafterKind::kDspark) return;
  for (const LayerSpec& stage : spec.draft_stages) stages.push_back(block(format("mtp.{}", stage.index), stage, spec));
  const std::string first = "mtp.0";
  const std::string last = format("mtp.{}", spec.draft_stages.back().index);
  drafter.main_proj = quantised(first + ".main_proj", spec);
  drafter.main_norm = vector<bf16>(first + ".main_norm.weight");
  drafter.norm = vector<bf16>(last + ".norm.weight");
  if (spec.hyper.head_merge) drafter.head_mix = mix(last + ".hc_head");
  const bool v41_names = checkpoint_.find(last + ".markov_head.embed.weight") != nullptr;
  drafter.markov_w1 = vector<bf16>(last + (v41_names ? ".markov_head.embed.weight" : ".markov_head.markov_w1.weight"));
  drafter.markov_w2 = plain(last + (v41_names ? ".markov_head.head.weight" : ".markov_head.markov_w2.weight"));
  drafter.confidence = plain(last + ".confidence_head.proj.weight");
}

Weights::Weights(Checkpoint checkpoint, const ModelSpec& spec, Kernels* kernels)
    : checkpoint_(std::move(checkpoint)),
      kernels_(kernels == nullptr || &kernels->memory() == &host_memory() ? nullptr : kernels) {
  if (kernels_ != nullptr) upload(spec);
  embed = vector<bf16>("embed.weight");
  head = plain("head.weight");
  norm = vector<bf16>("norm.weight");
  if (spec.hyper.head_merge) head_mix = mix("hc_head");
  for (const LayerSpec& layer : spec.layers) layers.push_back(block(format("layers.{}", layer.index), layer, spec));
  load_drafter(spec);
  uploaded_ = {};
}

}  // namespace onelane
