#include "checkpoint/config_layers.h"

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "checkpoint/engram_primes.h"

namespace onelane {
namespace {

// Largest source not above `layer`, or -1.
int owner_of(const std::vector<int>& sources, int layer) {
  const auto above = std::upper_bound(sources.begin(), sources.end(), layer);
  return above == sources.begin() ? -1 : *std::prev(above);
}

bool contains(const std::vector<int>& sorted, int value) {
  return std::binary_search(sorted.begin(), sorted.end(), value);
}

}  // namespace

std::vector<LayerSpec> v4_layers(ConfigFields& fields, const std::vector<int>& ratios, int hash_layers,
                                 const MoeSpec& moe) {
  std::vector<LayerSpec> layers;
  for (int i = 0; i < static_cast<int>(ratios.size()); ++i) {
    LayerSpec layer;
    layer.index = i;
    layer.moe = moe;
    layer.hash_routing = i < hash_layers;
    layer.ratio = ratios[i];
    if (layer.ratio != 0) {
      if (layer.ratio != 4 && layer.ratio != 128) {
        fields.fail(ErrorCode::kUnsupported, format("compress_ratios[{}]", i),
                    format("is {}; this generation compresses by 4 or 128, or 0 for the window alone", layer.ratio));
      }
      layer.rope = RopeTable::kB;
      layer.kv_owner = i;
      layer.has_compressor = layer.has_compressor_gate = layer.has_ape = true;
      if (layer.ratio == 4) {
        layer.compressor_overlap = layer.has_index_keys = layer.has_indexer = true;
        layer.index_owner = i;
      }
    }
    layers.push_back(layer);
  }
  return layers;
}

std::vector<LayerSpec> v41_layers(ConfigFields& fields, const SharedKv& sharing, const ModelSpec& spec,
                                  const MoeSpec& moe) {
  for (size_t i = 0; i < sharing.kv_sources.size(); ++i) {
    if (contains(sharing.index_sources, sharing.kv_sources[i])) continue;
    fields.fail(ErrorCode::kInvalidArgument, format("kv_source_layer_ids[{}]", i),
                format("is {}; every KV source must be an index source too", sharing.kv_sources[i]));
    return {};
  }
  const CandidateSpec& candidate = spec.candidate;
  if (candidate.source_layer >= 0) {
    if (!contains(sharing.index_sources, candidate.source_layer)) {
      fields.fail(ErrorCode::kInvalidArgument, "candidate_source_layer_id",
                  format("is {}, which index_source_layer_ids does not name", candidate.source_layer));
    }
    // Otherwise a masked layer could run out of candidates and pick entries that its own mask hides (3.7).
    if (static_cast<int64_t>(candidate.topk_blocks) * candidate.block_size < spec.indexer.topk) {
      fields.fail(ErrorCode::kInvalidArgument, "candidate_topk_blocks",
                  format("is {}; blocks of {} must hold at least index_topk = {} entries", candidate.topk_blocks,
                         candidate.block_size, spec.indexer.topk));
    }
  }
  std::vector<LayerSpec> layers;
  for (int i = 0; i < static_cast<int>(sharing.ratios.size()); ++i) {
    LayerSpec layer;
    layer.index = i;
    layer.moe = moe;
    layer.ratio = sharing.ratios[i];
    const std::string ratio_key = format("compress_ratios[{}]", i);
    if (layer.ratio == 0) {
      if (contains(sharing.index_sources, i)) {
        fields.fail(ErrorCode::kInvalidArgument, ratio_key, "is 0, but index_source_layer_ids names this layer");
      }
      layers.push_back(layer);
      continue;
    }
    if (layer.ratio > 2) {
      fields.fail(ErrorCode::kUnsupported, ratio_key,
                  format("is {}; this generation compresses by 1 or 2, or 0 for the window alone", layer.ratio));
    }
    layer.rope = RopeTable::kB;
    layer.kv_owner = owner_of(sharing.kv_sources, i);
    // Every KV source is an index source, so a layer with an owner has picks made on that owner's keys or later ones.
    layer.index_owner = owner_of(sharing.index_sources, i);
    if (layer.kv_owner < 0) {
      fields.fail(ErrorCode::kInvalidArgument, ratio_key,
                  format("is {}, but no entry of kv_source_layer_ids is {} or less", layer.ratio, i));
      return {};
    }
    if (sharing.ratios[layer.kv_owner] != layer.ratio) {
      fields.fail(ErrorCode::kInvalidArgument, ratio_key,
                  format("is {}, but its KV source, layer {}, has ratio {}", layer.ratio, layer.kv_owner,
                         sharing.ratios[layer.kv_owner]));
    }
    layer.has_compressor = layer.has_index_keys = layer.kv_owner == i;
    layer.has_compressor_gate = layer.has_compressor && layer.ratio > 1;
    layer.has_indexer = layer.index_owner == i;
    layer.candidate_source = candidate.source_layer == i;
    layer.candidate_masked = candidate.source_layer >= 0 && layer.has_indexer && i > candidate.source_layer;
    if (layer.candidate_masked && owner_of(sharing.kv_sources, candidate.source_layer) != layer.kv_owner) {
      fields.fail(ErrorCode::kUnsupported, "candidate_source_layer_id",
                  format("is {}, but the later index source {} scores other KV", candidate.source_layer, i));
    }
    layers.push_back(layer);
  }
  return layers;
}

void assign_engram_rows(ConfigFields& fields, const std::vector<int64_t>& rows, ModelSpec& spec) {
  const std::vector<int>& ids = spec.engram.layers;
  if (rows.size() != ids.size()) {
    fields.fail(ErrorCode::kInvalidArgument, "engram_num_embeddings",
                format("has {} entries; engram_layer_ids has {}", rows.size(), ids.size()));
    return;
  }
  if (ids.size() * spec.engram.columns() > 1024) {
    fields.fail(ErrorCode::kUnsupported, "engram_layer_ids",
                format("{} layers of {} tables; at most 1024 tables are supported", ids.size(), spec.engram.columns()));
    return;
  }
  if (ids.empty() || spec.layers.empty()) return;
  const std::vector<std::vector<int64_t>> primes = engram_primes(spec.engram);
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t expected = std::accumulate(primes[i].begin(), primes[i].end(), int64_t{0});
    if (rows[i] != expected) {
      fields.fail(ErrorCode::kInvalidArgument, format("engram_num_embeddings[{}]", i),
                  format("is {}; the primes of layer {} sum to {}", rows[i], ids[i], expected));
      return;
    }
    spec.layers[ids[i]].engram = true;
    spec.layers[ids[i]].engram_rows = rows[i];
  }
}

std::vector<LayerSpec> draft_layers(int count, const MoeSpec& moe) {
  std::vector<LayerSpec> stages(count);
  for (int i = 0; i < count; ++i) {
    stages[i].index = i;
    stages[i].draft = true;
    stages[i].moe = moe;
  }
  return stages;
}

}  // namespace onelane
