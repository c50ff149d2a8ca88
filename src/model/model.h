// Model: a checkpoint that has been read, checked and made ready to run: spec, weights, RoPE tables, Engram addresses.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_spec.h"
#include "model/engram.h"
#include "model/weights.h"

namespace onelane {

class Model {
 public:
  // Reads DIR/config.json and the checkpoint beside it and checks the full tensor inventory. `token_map` is the
  // compressed token map of DIR's tokenizer (text/token_map.h); it may be empty for a model without Engram.
  // `kernels`: whose memory the weights go to (weights.h); it must outlive the model. kResourceExhausted when they do
  // not fit.
  static Result<std::unique_ptr<Model>> load(const std::string& dir, std::vector<int32_t> token_map,
                                             Kernels* kernels = nullptr);

  Model(ModelSpec model_spec, Checkpoint checkpoint, Kernels* kernels = nullptr);

  const ModelSpec spec;
  const Weights weights;
  const RopeFrequencies rope_window;      // table A: layers without compressed KV, draft stages
  const RopeFrequencies rope_compressed;  // table B: everything in a layer with compressed KV
  std::optional<EngramAddresses> engram;

  const RopeFrequencies& rope(const LayerSpec& layer) const {
    return layer.rope == RopeTable::kA ? rope_window : rope_compressed;
  }
  bool has_drafter() const { return spec.drafter == DrafterKind::kDspark; }
};

}  // namespace onelane
