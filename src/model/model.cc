#include "model/model.h"

#include "base/format.h"
#include "checkpoint/inventory.h"
#include "kernels/rope.h"

namespace onelane {
namespace {

RopeFrequencies compressed_table(const RopeSpec& rope) {
  return make_rope_frequencies(rope.compress_theta, rope.factor, rope.beta_fast, rope.beta_slow,
                               rope.original_positions);
}

}  // namespace

Model::Model(ModelSpec model_spec, Checkpoint checkpoint, Kernels* kernels)
    : spec(std::move(model_spec)),
      weights(std::move(checkpoint), spec, kernels),
      rope_window(make_rope_frequencies(spec.rope.theta, 1, 0, 0, 0)),
      rope_compressed(compressed_table(spec.rope)) {}

Result<std::unique_ptr<Model>> Model::load(const std::string& dir, std::vector<int32_t> token_map, Kernels* kernels) {
  ONELANE_ASSIGN(ModelFiles files, open_model(dir));
  std::optional<EngramAddresses> engram;
  if (!files.spec.engram.layers.empty()) {
    auto addresses = EngramAddresses::create(files.spec.engram, std::move(token_map));
    if (!addresses) return std::move(addresses).error().in(dir);
    engram = *std::move(addresses);
  }
  const int64_t available = kernels != nullptr ? kernels->memory().available() : -1;
  const int64_t needed = Weights::device_bytes(files.spec);
  if (available >= 0 && needed > available) {
    return Error{ErrorCode::kResourceExhausted,
                 format("{}: the weights take {} bytes, and the device has {} left", dir, needed, available)};
  }
  auto model = std::make_unique<Model>(std::move(files.spec), std::move(files.checkpoint), kernels);
  model->engram = std::move(engram);
  return model;
}

}  // namespace onelane
