#include "model/synthetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/format.h"
#include "checkpoint/engram_primes.h"
#include "checkpoint/inventory.h"
#include "model/routing.h"
#include "model/synthetic_bytes.h"

namespace onelane {
namespace {

// Codes of quantised weights have this deviation, and their scales make up for it.
constexpr double kE4m3Deviation = 64;
constexpr double kE2m1Deviation = 2;

void shorten_engram(ModelSpec& spec, int64_t bytes) {
  EngramSpec& engram = spec.engram;
  if (engram.layers.empty()) return;
  const auto tables = static_cast<int64_t>(engram.layers.size()) * engram.columns();
  const int64_t row_bytes = engram.head_dim + engram.head_dim / 32;
  engram.vocab_size = std::min(engram.vocab_size, std::max<int64_t>(2, bytes / (tables * row_bytes)));
  const std::vector<std::vector<int64_t>> primes = engram_primes(engram);
  for (size_t i = 0; i < primes.size(); ++i) {
    LayerSpec& layer = spec.layers[static_cast<size_t>(engram.layers[i])];
    layer.engram_rows = std::accumulate(primes[i].begin(), primes[i].end(), int64_t{0});
  }
}

// As many layers as `available` bytes of the device hold; 0: not even one.
int fitting_layers(const ModelSpec& spec, int64_t available) {
  int fit = 0, beyond = static_cast<int>(spec.layers.size()) + 1;
  while (beyond - fit > 1) {
    const int middle = (fit + beyond) / 2;
    (Weights::device_bytes(first_layers(spec, middle)) <= available ? fit : beyond) = middle;
  }
  return fit;
}

Result<ModelSpec> cut_to_fit(ModelSpec spec, const SyntheticOptions& options, Kernels* kernels) {
  const auto all = static_cast<int>(spec.layers.size());
  if (options.layers < 0 || options.layers > all) {
    return Error{ErrorCode::kInvalidArgument,
                 format("{} layers: the model has {}; 0 takes as many as fit", options.layers, all)};
  }
  const int64_t free = kernels != nullptr ? kernels->memory().available() : -1;
  if (free < 0) return options.layers == 0 ? spec : first_layers(std::move(spec), options.layers);
  const int fit = fitting_layers(spec, free - options.reserve_bytes);
  const int layers = options.layers == 0 ? fit : options.layers;
  if (layers > fit || layers == 0) {
    return Error{
        ErrorCode::kResourceExhausted,
        format("{} layers take {} bytes, and the device has {} left beside a reserve of {}: room for {} layers",
               std::max(layers, 1), Weights::device_bytes(first_layers(spec, std::max(layers, 1))), free,
               options.reserve_bytes, fit)};
  }
  return first_layers(std::move(spec), layers);
}

// What a weight is filled with so that a product with a vector of unit variance has about unit variance again.
Content content_of(const ModelSpec& spec, const ExpectedTensor& tensor) {
  const auto columns = static_cast<double>(tensor.shape.back());
  const std::string_view name = tensor.name;
  switch (tensor.dtype) {
    case DType::kF8E4M3:
      return {tensor.dtype, 0, kE4m3Deviation};
    case DType::kI8:
      return {tensor.dtype, 0, kE2m1Deviation};
    case DType::kF8E8M0: {
      if (tensor.kind == TensorKind::kEngramTable) return {tensor.dtype, -std::log2(kE4m3Deviation), 0.5};
      const bool fp4 = tensor.kind == TensorKind::kExpert;
      const double width = columns * (fp4 ? 32 : spec.weight_block);
      return {tensor.dtype, -std::log2(width) / 2 - std::log2(fp4 ? kE2m1Deviation : kE4m3Deviation), 0.5};
    }
    case DType::kF32:
      if (name.ends_with("_fn")) return {tensor.dtype, 0, 1 / std::sqrt(columns)};
      if (name.ends_with("_scale")) return {tensor.dtype, 0.5, 0.1};
      if (tensor.kind == TensorKind::kRouter) return {tensor.dtype, 0, 0};
      return {tensor.dtype, 0, 0.5};  // hc_*_base, sinks, position biases of compressors
    default:
      if (tensor.kind == TensorKind::kNorm || tensor.shape.size() == 1) return {tensor.dtype, 1, 0.03};
      if (tensor.kind == TensorKind::kEngram) return {tensor.dtype, 1, 0.03};
      if (tensor.kind == TensorKind::kEmbedding || tensor.kind == TensorKind::kDrafterTable) {
        return {tensor.dtype, 0, 1};
      }
      return {tensor.dtype, 0, 1 / std::sqrt(columns)};
  }
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// topk different experts for every token, drawn by their popularity.
std::vector<std::byte> hash_table(int vocab, int topk, const std::vector<double>& popularity, Random& random) {
  constexpr int kTries = 32;  // then the first that is not taken
  std::vector<double> sums;
  double sum = 0;
  for (const double of_expert : popularity) sums.push_back(sum += of_expert);
  std::vector<int64_t> table;
  for (int token = 0; token < vocab; ++token) {
    std::vector<int64_t> taken;
    const auto is_taken = [&](int64_t expert) { return std::find(taken.begin(), taken.end(), expert) != taken.end(); };
    for (int i = 0; i < topk; ++i) {
      int64_t expert = 0;
      for (int tries = 0; tries == 0 || (tries < kTries && is_taken(expert)); ++tries) {
        expert = std::upper_bound(sums.begin(), sums.end() - 1, random.unit() * sum) - sums.begin();
      }
      if (is_taken(expert)) {
        for (expert = 0; is_taken(expert);) ++expert;
      }
      taken.push_back(expert);
      table.push_back(expert);
    }
  }
  return bytes_of(table);
}

Result<Checkpoint> make_checkpoint(const ModelSpec& spec, const Routing& routing, uint64_t seed, Memory& memory) {
  auto bytes = std::make_shared<BytePools>();
  Random random(seed);
  const std::vector<ExpectedTensor> expected = expected_tensors(spec);
  for (const ExpectedTensor& tensor : expected) {
    if (tensor.dtype != DType::kI64) bytes->plan(content_of(spec, tensor), static_cast<size_t>(tensor.bytes()));
  }
  bytes->fill(random, memory);
  std::map<std::string, TensorView, std::less<>> tensors;
  for (const ExpectedTensor& tensor : expected) {
    TensorView view{tensor.dtype, tensor.shape, {}};
    const bool hashed = tensor.dtype == DType::kI64;
    if (hashed || (tensor.name.ends_with("gate.bias") && !routing.uniform())) {
      const auto& blocks = tensor.draft ? spec.draft_stages : spec.layers;
      const MoeSpec& moe = blocks[static_cast<size_t>(tensor.layer)].moe;
      ONELANE_ASSIGN(const auto popularity,
                     routing.popularity(tensor.draft ? -1 : tensor.layer, moe.n_experts, random));
      view.bytes = bytes->keep(hashed ? hash_table(spec.vocab, moe.topk, popularity, random)
                                      : bytes_of(router_bias(popularity, moe.topk)));
    } else {
      view.bytes = bytes->view(content_of(spec, tensor), static_cast<size_t>(tensor.bytes()), random);
    }
    tensors.emplace_hint(tensors.end(), tensor.name, std::move(view));
  }
  return Checkpoint{std::move(tensors), std::move(bytes)};
}

}  // namespace

Result<std::unique_ptr<Model>> synthetic_model(const SyntheticOptions& options, Kernels* kernels) {
  ONELANE_ASSIGN(ModelSpec spec, synthetic_spec(options.family));
  return synthetic_model(std::move(spec), options, kernels);
}

Result<std::unique_ptr<Model>> synthetic_model(ModelSpec spec, const SyntheticOptions& options, Kernels* kernels) {
  ONELANE_ASSIGN(const Routing routing, Routing::parse(options.routing));
  ONELANE_ASSIGN(spec, cut_to_fit(std::move(spec), options, kernels));
  spec.vision = {};
  shorten_engram(spec, options.engram_bytes);
  std::optional<EngramAddresses> engram;
  if (!spec.engram.layers.empty()) {
    std::vector<int32_t> token_map(static_cast<size_t>(spec.vocab));
    for (size_t token = 0; token < token_map.size(); ++token) {
      token_map[token] = static_cast<int32_t>(token) % spec.engram.compressed_vocab_size;
    }
    ONELANE_ASSIGN(engram, EngramAddresses::create(spec.engram, std::move(token_map)));
  }
  Memory& memory = kernels != nullptr ? kernels->shared_memory() : host_memory();
  ONELANE_ASSIGN(Checkpoint checkpoint, make_checkpoint(spec, routing, options.seed, memory));
  auto model = std::make_unique<Model>(std::move(spec), std::move(checkpoint), kernels);
  model->engram = std::move(engram);
  return model;
}

}  // namespace onelane
