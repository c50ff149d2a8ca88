#include "lane/gate_profile.h"

#include <algorithm>

namespace onelane {

std::span<const GateProfile> gate_profiles() {
  static const std::vector<GateMode> modes = {
      {"chat", false, ""}, {"think-low", true, "low"}, {"think-high", true, "high"}, {"think-max", true, "max"}};
  static const std::vector<GateProfile> profiles = {
      {.name = "full",
       .about = "full-size models: file chains, code repairs, needles up to 900k tokens, 24 hours of soak",
       .modes = modes,
       .streams = {1, 8, 24},
       .arrival_tokens = {32768, 131072},
       .most_gap_s = 1,
       .itl_floor_s = 0.05,
       .needle_tokens = {8192, 32768, 131072, 262144, 524288, 900000},
       .quick_needle_tokens = {8192, 32768}},
      {.name = "mini",
       .about = "the mini models of this repository: additions, flat tools, five-digit codes up to 8,192 tokens",
       .mini_tasks = true,
       .turn_tokens = 400,
       .modes = modes,
       .streams = {1, 4},
       .arrival_tokens = {1024, 4096},
       .window_s = 4,
       .quick_window_s = 1,
       .most_gap_s = 5,
       .itl_floor_s = 1,
       .least_share = 0.5,  // a window holds few answers
       .quick_documents = 1,
       .document_tokens = 256,
       .continuation_tokens = 24,
       .parity_tokens = 32,
       .needle_tokens = {512, 1024, 2048, 4096, 8192},
       .quick_needle_tokens = {512, 1024, 2048},
       .code_digits = 5,
       .cold_prompts = 4,
       .composed_needles = false,
       .soak_workers = 4,
       .round_s = 10,
       .rounds = 60}};
  return profiles;
}

const GateProfile* find_profile(std::string_view name, std::string_view model) {
  if (name == "auto") name = model.starts_with("mini-") ? "mini" : "full";
  const auto all = gate_profiles();
  const auto found = std::find_if(all.begin(), all.end(), [&](const GateProfile& p) { return p.name == name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace onelane
