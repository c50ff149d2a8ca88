// `onelane gate`: asks a running server the questions of lane/gate.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onelane {

struct GateCommand {
  std::string gate;  // a name of gate_table(), or "all"
  std::string url, api_key, model;
  std::string profile = "auto";
  bool quick = false, held_out = false;
  uint64_t seed = 0;            // 0: drawn, so that no prompt is in a cache
  int rounds = 0;               // of the soak; 0: as the profile says
  std::string reference, null;  // captures
  bool precision = false;
  std::string receipt, db;
};

// What `gate` may be, "all" first.
std::vector<std::string> gate_names();

// Progress to stderr, verdicts to stdout. Returns 0 for PASS, 1 for anything else, 2 for a profile that there is not.
int run_gates(const GateCommand& command);

}  // namespace onelane
