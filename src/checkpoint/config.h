// config.json -> ModelSpec.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/model_spec.h"

namespace onelane {

inline constexpr int kMaxDraftStages = 8;

struct ConfigOptions {
  // Stages found among the checkpoint's tensor names (inventory.h). The names decide: V4 configs say 1 even when three
  // stages exist. Without them, V4 takes the entries of compress_ratios beyond the layers, V4.1
  // num_nextn_predict_layers. 0 to kMaxDraftStages.
  std::optional<int> draft_stages;
};

// Parses the text of a config.json, flat (V4: spec/model.md 1.1) or nested (V4.1: 1.2).
//
// Refused, with the key's dotted path and what would be right: an unknown model_type; a missing key; a value of another
// type, out of range or of a kind this engine does not run (another activation, router, quantisation, head size);
// keys that contradict each other: list lengths, ratios without an owner, owners that are no indexers, widths that the
// quantisation blocks do not divide, more experts per token than experts, token ids beyond the vocabulary, Engram row
// counts that are not the sum of their primes. Keys that are merely unknown are kept in ModelSpec::unknown_keys.
//
// Every list and size is bounded, so hostile text cannot make this allocate more than a small multiple of its own size.
Result<ModelSpec> parse_config(std::string_view json, const ConfigOptions& options = {});

// The same from DIR/config.json; messages begin with that path.
Result<ModelSpec> load_config(const std::string& dir, const ConfigOptions& options = {});

}  // namespace onelane
