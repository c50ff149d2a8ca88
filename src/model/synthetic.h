// Synthetic models: the shapes of the published checkpoints, or any other spec, filled with random bytes from a seed.
//
// For measuring: a step costs what it costs with trained weights, and what it says is noise. Every weight has its true
// type and shape and finite values of a size that keeps the stream finite and tokens apart through all layers
// (products have about unit variance, norms are near 1, fp8 and fp4 codes follow a normal distribution). The bytes come
// from a few pools of host memory that tensors share, each beginning somewhere else. On a device every tensor has
// memory of its own, as with a real checkpoint; on the host tensors point into the pools, so that a model of 160 GB
// runs in 4 GB there, but its experts share cache lines and its times mean little.
//
// What is not as published:
// - Layers may be cut (first_layers).
// - Engram tables are shortened to `engram_bytes` in all by looking for their primes from a smaller number on. A token
//   still reads as many rows, all over pinned memory.
// - There is no vision tower and no tokenizer: the compressed id of token t is t mod the number of compressed ids.
// - hash routing (tid2eid) picks experts at random, with the popularity that `routing` asks for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/model_spec.h"
#include "model/model.h"

namespace onelane {

struct SyntheticOptions {
  std::string family = "v4";  // see synthetic_spec
  // Backbone layers: the first so many. 0: as many as `kernels->memory()` has room for beside `reserve_bytes`, or all
  // where it does not say what it has.
  int layers = 0;
  int64_t reserve_bytes = 0;  // device memory for everything that is not weights
  uint64_t seed = 1;
  std::string routing = "uniform";          // how often an expert is picked: see Routing::parse
  int64_t engram_bytes = int64_t{2} << 30;  // what all Engram tables together may take, about
};

// The published shapes: "v4": V4-Flash-0731 with its DSpark drafter (43 layers, 167 GB); "v41": V4.1-Flash (40 layers,
// 510 GB, 203 of them Engram tables). kInvalidArgument for another name.
Result<ModelSpec> synthetic_spec(std::string_view family);

// The same model with its first `layers` layers (1 to all of them) alone. Owners of compressed KV and of picks are
// never above their readers, so they stay; a candidate source or an Engram layer beyond the cut is gone; the drafter
// keeps its stages and taps the last layers, as many as it tapped before or as there are.
ModelSpec first_layers(ModelSpec spec, int layers);

// The model that `options` describes, ready to run: on the device of `kernels`, which must outlive it, or on the host
// when null. kInvalidArgument for an unknown family, a routing that cannot be or does not fit, or too many layers;
// kResourceExhausted when the layers asked for, or a single one, do not fit. Model::spec says what was built.
Result<std::unique_ptr<Model>> synthetic_model(const SyntheticOptions& options, Kernels* kernels = nullptr);
// The same of another spec; `options.family` is not looked at.
Result<std::unique_ptr<Model>> synthetic_model(ModelSpec spec, const SyntheticOptions& options,
                                               Kernels* kernels = nullptr);

}  // namespace onelane
