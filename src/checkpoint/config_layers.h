// The layer lists of a ModelSpec: who compresses, who indexes, who reads whom. Part of the parser (config.cc).
#pragma once

#include <vector>

#include "checkpoint/config_fields.h"
#include "checkpoint/model_spec.h"

namespace onelane {

// V4 (spec/model.md 3.3, 3.4): ratio 0, 4 or 128 per layer, every compressed layer its own owner; the first
// `hash_layers` layers route by token id.
std::vector<LayerSpec> v4_layers(ConfigFields& fields, const std::vector<int>& ratios, int hash_layers,
                                 const MoeSpec& moe);

// What V4.1's text_config says about sharing (3.5).
struct SharedKv {
  std::vector<int> ratios;  // per layer: 0, 1 or 2; non-zero means "reads", not "owns"
  std::vector<int> kv_sources;
  std::vector<int> index_sources;
};

// V4.1: reads spec.candidate and spec.indexer.
std::vector<LayerSpec> v41_layers(ConfigFields& fields, const SharedKv& sharing, const ModelSpec& spec,
                                  const MoeSpec& moe);

// Marks spec.layers with Engram and their row counts; these must be the sums of engram_primes.
void assign_engram_rows(ConfigFields& fields, const std::vector<int64_t>& rows, ModelSpec& spec);

// Stages 0..count-1, all window-only with RoPE table A.
std::vector<LayerSpec> draft_layers(int count, const MoeSpec& moe);

}  // namespace onelane
