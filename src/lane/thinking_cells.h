// The cells of the thinking gate: what is asked, by how many streams at once, and what is done to them meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lane/gate.h"
#include "lane/oracle.h"

namespace onelane {

struct ThinkingPrompt {
  std::string id;
  GateJson request;
  Oracle oracle;
};

struct ThinkingCell {
  enum class Condition {
    kControl,  // every prompt once, alone
    kPlain,    // a window of closed loops
    kArrival,  // and a long prompt that comes after a quarter of it
    kCancels,  // and every fourth request is hung up on
    kTools     // of turns whose calls and results are in the prompt
  };
  std::string id;  // "think-low/4/arrival 1024"
  GateMode mode;
  int streams = 1;
  Condition condition = Condition::kPlain;
  int64_t arrival_tokens = 0;
};

struct AskedInCell {
  size_t stream = 0, prompt = 0;
  bool arrival = false;  // the long prompt; `prompt` means nothing
  double begun_s = 0;    // since the window's start
  GateAnswer answer;
};

// Of the profile: what a mode is asked, and the turn with tools.
std::vector<ThinkingPrompt> thinking_prompts(const GatePlan& plan, const GateMode& mode);
ThinkingPrompt thinking_tool_turn(const GatePlan& plan, const GateMode& mode);

// For each mode its control, then a cell per concurrency and condition.
std::vector<ThinkingCell> thinking_cells(const GatePlan& plan);

// Lengths of the prompts that arrive: the profile's, of quick plans the shortest alone.
std::vector<int64_t> arrival_tokens(const GatePlan& plan);

double thinking_window_s(const GatePlan& plan);

// Asks. Requests that run when the window ends are waited for. `arrival_seed`: another one is another prompt, which no
// cache has.
std::vector<AskedInCell> run_thinking_cell(GateServer& server, const GatePlan& plan, const ThinkingCell& cell,
                                           const std::vector<ThinkingPrompt>& prompts, uint64_t arrival_seed);

}  // namespace onelane
