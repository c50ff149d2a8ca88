#include "checkpoint/footprint.h"

#include <algorithm>
#include <cmath>

#include "numerics/records.h"

namespace onelane {
namespace {

constexpr int64_t kFloatBytes = 4;

// Bytes of the fp32 rows (kv and gate) of the group being filled, and of the group before it where groups overlap.
int64_t compressor_state_bytes(const LayerSpec& layer, int64_t head_dim) {
  if (!layer.has_compressor_gate) return 0;
  const int64_t overlap = layer.compressor_overlap ? 2 : 1;
  return overlap * layer.ratio * (overlap * head_dim) * 2 * kFloatBytes;
}

void add_cache(const ModelSpec& spec, const FootprintQuery& query, Footprint& out) {
  const int64_t entry = record_bytes(spec.compressed_record);
  const int64_t key = record_bytes(RecordFormat::kIndexMxfp4);
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.has_compressor) continue;
    const int64_t record = entry + (layer.has_index_keys ? key : 0);
    out.kv_bytes_per_token += static_cast<double>(record) / layer.ratio;
    out.entry_bytes += query.tokens / layer.ratio * record;
    out.state_bytes += compressor_state_bytes(layer, spec.head_dim);
    // V4.1 derives its index keys from the entries; V4 runs a second compressor for them.
    if (layer.has_index_keys && spec.generation == Generation::kV4) {
      out.state_bytes += compressor_state_bytes(layer, spec.indexer.head_dim);
    }
  }
  const auto rings = static_cast<int64_t>(spec.layers.size() + spec.draft_stages.size());
  out.ring_bytes = rings * spec.ring_slots() * record_bytes(spec.window_record);
}

// Bytes of cache that attention of `rows` rows after `tokens` positions reads in one layer.
double attention_bytes(const ModelSpec& spec, const LayerSpec& layer, const FootprintQuery& query) {
  const int64_t rows = query.rows;
  const int64_t window = std::min<int64_t>(query.tokens + rows, spec.window + rows - 1);
  auto bytes = static_cast<double>(window * record_bytes(spec.window_record));
  if (layer.ratio == 0) return bytes;
  const int64_t visible = (query.tokens + rows) / layer.ratio;
  int64_t entries = visible;
  if (layer.index_owner >= 0) entries = std::min(visible, rows * std::min<int64_t>(spec.indexer.topk, visible));
  bytes += static_cast<double>(entries * record_bytes(spec.compressed_record));
  if (layer.has_indexer) {
    int64_t scored = visible;
    if (layer.candidate_masked) {
      const int64_t candidates = int64_t{spec.candidate.topk_blocks} * spec.candidate.block_size;
      scored = std::min(visible, rows * std::min(candidates, visible));
    }
    bytes += static_cast<double>(scored * record_bytes(RecordFormat::kIndexMxfp4));
  }
  return bytes;
}

// Adds the routed experts of `layers`, each hit by `rows` rows. `expert_bytes` is the sum over all of them.
void add_experts(const std::vector<LayerSpec>& layers, int rows, double expert_bytes, StepBytes& step) {
  if (layers.empty()) return;
  const MoeSpec& moe = layers.front().moe;
  step.distinct_experts = expected_distinct_experts(moe.n_experts, moe.topk, rows);
  step.experts = expert_bytes * step.distinct_experts / moe.n_experts;
}

}  // namespace

double expected_distinct_experts(int n_experts, int topk, int rows) {
  const double hit = static_cast<double>(topk) / n_experts;
  return n_experts * (1.0 - std::pow(1.0 - hit, rows));
}

Footprint footprint(const ModelSpec& spec, const FootprintQuery& query) {
  Footprint out;
  add_cache(spec, query, out);

  const bool drafting = spec.drafter == DrafterKind::kDspark;
  const int block = drafting ? spec.dspark.block_size : 0;
  double backbone_experts = 0, draft_experts = 0, head = 0, markov_head = 0, embedding_row = 0;
  for (const ExpectedTensor& tensor : expected_tensors(spec)) {
    const int64_t bytes = tensor.bytes();
    for (KindTotal* total : {&out.kinds[static_cast<size_t>(tensor.kind)], &out.weights}) {
      total->tensors += 1;
      total->bytes += bytes;
    }
    StepBytes& part = tensor.draft ? out.draft : out.step;
    const auto size = static_cast<double>(bytes);
    switch (tensor.kind) {
      case TensorKind::kVision:
        break;
      case TensorKind::kExpert:
        (tensor.draft ? draft_experts : backbone_experts) += size;
        break;
      case TensorKind::kEmbedding:
        embedding_row = size / spec.vocab;
        break;
      case TensorKind::kHashRouter:
        part.rows += query.rows * size / spec.vocab;
        break;
      case TensorKind::kEngramTable:
        part.rows += query.rows * spec.engram.columns() * size / static_cast<double>(tensor.shape[0]);
        break;
      case TensorKind::kDrafterTable:
        part.rows += block * size / spec.vocab;
        break;
      case TensorKind::kHead:
        head = size;
        part.dense += size;
        break;
      case TensorKind::kDrafter:
        part.dense += size;
        if (tensor.shape[0] == spec.vocab) markov_head = size;
        break;
      default:
        part.dense += size;
    }
  }
  out.step.rows += query.rows * embedding_row;
  add_experts(spec.layers, query.rows, backbone_experts, out.step);
  for (const LayerSpec& layer : spec.layers) out.step.kv += attention_bytes(spec, layer, query);

  if (!drafting) {
    out.draft = {};
    return out;
  }
  // The drafter has no head of its own, and reads the Markov head again for every draft after the first.
  out.draft.dense += head + (block - 1) * markov_head;
  out.draft.rows += block * embedding_row;
  add_experts(spec.draft_stages, block, draft_experts, out.draft);
  const int64_t filled = std::min<int64_t>(query.tokens + query.rows, spec.window);
  out.draft.kv = static_cast<double>(spec.draft_stages.size() * filled * record_bytes(spec.window_record));
  return out;
}

}  // namespace onelane
