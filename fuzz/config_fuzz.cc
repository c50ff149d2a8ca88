// Any text as config.json: refused with a message, or a spec whose inventory and footprint can be computed.
#include <cmath>
#include <cstdlib>

#include "checkpoint/config.h"
#include "checkpoint/footprint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace onelane;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // The first byte also chooses what the tensor names say about draft stages.
  ConfigOptions options;
  if (size > 0 && data[0] == ' ') options.draft_stages = static_cast<int>(size % 4);
  const auto spec = parse_config(text, options);
  if (!spec) {
    if (spec.error().message.empty()) std::abort();
    return 0;
  }
  int64_t experts = 0;
  for (const LayerSpec& layer : spec->layers) {
    experts += layer.moe.n_experts;
    if (layer.kv_owner >= static_cast<int>(spec->layers.size()) || layer.kv_owner > layer.index) std::abort();
    if (layer.kv_owner >= 0 && spec->layers[static_cast<size_t>(layer.kv_owner)].ratio != layer.ratio) std::abort();
  }
  // A legal but enormous model takes the fuzzer too long.
  if (experts > 2000) return 0;
  const Footprint cost = footprint(*spec, {.rows = 6, .tokens = spec->max_positions});
  if (cost.weights.bytes <= 0 || cost.kv_bytes_per_sequence() < 0 || !std::isfinite(cost.step.total())) std::abort();
  return 0;
}
