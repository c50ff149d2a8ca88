// The gauntlet: twelve tasks, four of them tool chains, four repairs or sums, four structured answers, all at
// temperature 0.
//
// Twelve of twelve prove a share of 78 % (one-sided, 95 %), so this is a smoke gate for every boot; promotion runs the
// other set too (held out), over three boots. Transport, schema and correctness are told apart: a broken stream is the
// server's fault, arguments that do not fit their schema are the parser's or the grammar's, a wrong answer is the
// model's or the numerics'.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lane/gate.h"
#include "lane/oracle.h"

namespace onelane {

struct GauntletTask {
  std::string id;
  GateJson request;  // messages, tools, thinking: what the first turn asks
  Oracle oracle;     // of the last answer's content
  // What tools answer: "name {arguments as JSON with sorted keys}" to text. Whatever else is called gets an error back.
  std::map<std::string, std::string> results;
  std::vector<std::string> calls;  // keys of `results` that must be called, in this order
};

// Twelve tasks of this profile; thinking: the full profile's in thinking mode.
std::vector<GauntletTask> gauntlet_tasks(const GateProfile& profile, bool held_out, bool thinking);

// A conversation of the profile that stands before its last answer: a call was made, its result is there. The thinking
// gate asks it as the turn that hits the prefix cache.
GauntletTask tool_turn_task(const GateProfile& profile);

Gate gauntlet_gate();

}  // namespace onelane
