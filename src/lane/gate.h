// Gates: questions to a running server whose answers decide whether it may be used.
//
// A gate has four outcomes. PASS and FAIL are about the server. NOT RUN: it could not be asked, for a reason that is
// said; it blocks as FAIL does. VOID: the instrument failed, so nothing follows: the server went away or began anew, or
// the gate did not catch its own planted fault.
//
// Every gate runs three kinds of arms on the same server. The clean arm decides. The null arm is the same again and
// must not differ: Onelane promises equal bits, so there equal answers are demanded of it, and of other servers only
// that they pass. A planted arm per fault puts the fault into what the server answered, and the gate must notice it by
// the check that is meant for it: a control that cannot fail is no control.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lane/capture.h"
#include "lane/gate_profile.h"
#include "lane/gate_server.h"
#include "lane/receipt.h"

namespace onelane {

struct GatePlan {
  GateProfile profile;
  bool quick = false;                                        // fewer questions, as the profile says
  bool held_out = false;                                     // the other set of tasks, which is run once, at promotion
  std::shared_ptr<const Capture> reference, null_reference;  // of divergence; null: the server's own prefill
  bool precision = false;                                    // of divergence: the bounds for other formats or weights
  uint64_t seed = 1;                                         // of what is drawn: hay, mixes, nonces
  std::function<void(const std::string& line)> progress = [](const std::string&) {};
};

enum class ArmKind { kClean, kNull, kPlanted };

// A check that did not hold.
struct GateFinding {
  std::string check;     // "correctness"
  std::string sentence;  // "needle 2048@50 %: ..."
};

// What one arm saw.
struct GateArm {
  std::string range;  // what was covered, as it is quoted
  std::vector<ReceiptItem> items;
  Measures observed, bound;  // per check: a count and its bound, or seconds and theirs
  std::vector<GateFinding> findings;
  std::vector<std::string> not_run;            // what could not be asked or judged: the gate is NOT RUN
  std::map<std::string, std::string> answers;  // by item, to be held against the null arm's
  Series samples;

  // Counts a broken check and says where; observed[check] counts, bound[check] is set by whoever defines the check.
  void find(const std::string& check, std::string sentence);
  // A check that counts breaches and allows none.
  void define(const std::string& check);
};

struct Gate {
  std::string_view name;   // on the command line: "needle"
  std::string_view id;     // in receipts: "needle/1"; the number changes with the protocol
  std::string_view about;  // a line
  // Why it cannot be asked of this server at all; empty: it can.
  std::string (*missing)(const GateServer& server, const GatePlan& plan);
  // Planted arms ask as little as their fault needs.
  GateArm (*run)(GateServer& server, const GatePlan& plan, ArmKind kind);
  std::vector<GateFault> (*faults)();
};

// All gates, in the order in which `all` runs them.
std::span<const Gate> gate_table();
// By name; null: none.
const Gate* find_gate(std::string_view name);

// Runs all arms of a gate and judges.
ReceiptGate run_gate(const Gate& gate, GateServer& server, const GatePlan& plan);

// A receipt of these gates: server, profile, machine-independent settings and verdict are filled in.
Receipt gate_receipt(const GateServer& server, const GatePlan& plan, std::vector<ReceiptGate> gates);

// For people: verdicts, reasons, what was covered, observed against bound, the planted faults.
std::string gates_text(const Receipt& receipt);

}  // namespace onelane
