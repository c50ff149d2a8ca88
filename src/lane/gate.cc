#include "lane/gate.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "lane/divergence_gate.h"
#include "lane/gauntlet.h"
#include "lane/lossless.h"
#include "lane/needle.h"
#include "lane/receipt_server.h"
#include "lane/soak.h"
#include "lane/stats.h"
#include "lane/thinking.h"

namespace onelane {
namespace {

constexpr size_t kMostReasons = 12;

// What the null arm said otherwise, by item.
std::vector<std::string> differences(const GateArm& clean, const GateArm& null) {
  std::vector<std::string> out;
  for (const auto& [item, answer] : null.answers) {
    const auto before = clean.answers.find(item);
    if (before != clean.answers.end() && before->second != answer) out.push_back(item);
  }
  return out;
}

void add_reasons(ReceiptGate& out, const std::string& prefix, const std::vector<GateFinding>& findings) {
  for (size_t i = 0; i < findings.size() && out.reasons.size() < kMostReasons; ++i) {
    out.reasons.push_back(format("{}{}: {}", prefix, findings[i].check, findings[i].sentence));
  }
  if (findings.size() > kMostReasons) out.reasons.push_back(format("and {} more", findings.size() - kMostReasons));
}

void run_null(const Gate& gate, GateServer& server, const GatePlan& plan, const GateArm& clean, ReceiptGate& out) {
  plan.progress(format("{}: null arm", gate.name));
  const GateArm null = gate.run(server, plan, ArmKind::kNull);
  const std::vector<std::string> changed = differences(clean, null);
  size_t compared = 0;
  for (const auto& [item, answer] : null.answers) compared += clean.answers.contains(item);
  out.observed["null_answers_compared"] = static_cast<double>(compared);
  out.observed["null_answers_changed"] = static_cast<double>(changed.size());
  out.null_arm = null.findings.empty() ? Verdict::kPass : Verdict::kFail;
  if (server.info().onelane) {
    out.bound["null_answers_changed"] = 0;
    if (!changed.empty()) out.null_arm = Verdict::kFail;
  }
  if (server.lost() || compared == 0) out.null_arm = Verdict::kVoid;
  if (out.null_arm != Verdict::kFail) return;
  add_reasons(out, "null arm: ", null.findings);
  if (server.info().onelane && !changed.empty()) {
    out.reasons.push_back(format("null arm: {} of {} answers are others the second time, the first of them {}",
                                 changed.size(), compared, changed.front()));
  }
}

// Whether every planted fault was caught; what was not becomes a reason.
bool run_planted(const Gate& gate, GateServer& server, const GatePlan& plan, ReceiptGate& out) {
  bool all = true;
  for (const GateFault& fault : gate.faults()) {
    if (server.lost()) return false;
    plan.progress(format("{}: planted fault: {}", gate.name, fault.name));
    server.plant(&fault);
    const GateArm arm = gate.run(server, plan, ArmKind::kPlanted);
    server.plant(nullptr);
    const bool caught = std::any_of(arm.findings.begin(), arm.findings.end(),
                                    [&](const GateFinding& finding) { return finding.check == fault.check; });
    out.items.push_back(
        {format("planted: {}", fault.name), caught ? "caught" : "missed", format("by the check {}", fault.check)});
    if (caught) continue;
    all = false;
    out.reasons.push_back(format("the planted fault \"{}\" was not caught by the check {}", fault.name, fault.check));
  }
  return all;
}

}  // namespace

void GateArm::find(const std::string& check, std::string sentence) {
  ++observed[check];
  findings.push_back({check, std::move(sentence)});
}

void GateArm::define(const std::string& check) {
  observed.try_emplace(check, 0);
  bound[check] = 0;
}

std::span<const Gate> gate_table() {
  static const std::vector<Gate> gates = {gauntlet_gate(), thinking_gate(), divergence_gate(),
                                          lossless_gate(), needle_gate(),   soak_gate()};
  return gates;
}

const Gate* find_gate(std::string_view name) {
  const auto all = gate_table();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Gate& gate) { return gate.name == name; });
  return found == all.end() ? nullptr : &*found;
}

ReceiptGate run_gate(const Gate& gate, GateServer& server, const GatePlan& plan) {
  ReceiptGate out{.id = std::string(gate.id)};
  if (std::string missing = gate.missing(server, plan); !missing.empty()) {
    out.reasons = {std::move(missing)};
    out.range = "nothing";
    return out;
  }
  plan.progress(format("{}: {}", gate.name, gate.about));
  GateArm clean = gate.run(server, plan, ArmKind::kClean);
  server.check_alive();
  out.range = clean.range;
  out.items = std::move(clean.items);
  out.observed = clean.observed;
  out.bound = clean.bound;
  out.samples = std::move(clean.samples);
  if (!server.lost()) run_null(gate, server, plan, clean, out);
  const bool null_failed = out.null_arm == Verdict::kFail;
  if (!server.lost()) out.planted_fault_caught = run_planted(gate, server, plan, out);
  server.check_alive();

  if (server.lost()) {
    out.verdict = Verdict::kVoid;
    out.reasons.insert(out.reasons.begin(), server.lost_reason());
  } else if (out.null_arm == Verdict::kVoid) {
    out.verdict = Verdict::kVoid;
    out.reasons.insert(out.reasons.begin(), "the null arm had nothing to compare");
  } else if (!out.planted_fault_caught.value_or(false)) {
    out.verdict = Verdict::kVoid;
  } else if (!clean.findings.empty() || null_failed) {
    out.verdict = Verdict::kFail;
  } else if (!clean.not_run.empty()) {
    out.verdict = Verdict::kNotRun;
  } else {
    out.verdict = Verdict::kPass;
  }
  if (!clean.findings.empty()) {
    std::vector<std::string> later = std::exchange(out.reasons, {});
    add_reasons(out, "", clean.findings);
    out.reasons.insert(out.verdict == Verdict::kVoid ? out.reasons.begin() : out.reasons.end(), later.begin(),
                       later.end());
  }
  out.reasons.insert(out.reasons.end(), clean.not_run.begin(), clean.not_run.end());
  return out;
}

Receipt gate_receipt(const GateServer& server, const GatePlan& plan, std::vector<ReceiptGate> gates) {
  Receipt receipt{.run_id = new_run_id(), .kind = ReceiptKind::kGate};
  std::vector<std::string> names;
  for (const ReceiptGate& gate : gates) names.push_back(gate.id);
  receipt.title = format("gates {} of {}, profile {}", join(names, ", "), server.info().model, plan.profile.name);
  receipt.protocol.file = format("{}", join(names, " "));
  receipt.protocol.mode =
      format("{}{}{}", plan.profile.name, plan.quick ? ", quick" : "", plan.held_out ? ", held out" : "");
  receipt.resolved.sampling = {.temperature = 0, .seed = 42};
  receipt.resolved.settings["gate_seed"] = format("{}", plan.seed);
  name_server(server.info(), receipt);
  receipt.gates = std::move(gates);
  receipt.verdict = allowed_verdict(receipt);
  if (receipt.verdict != Verdict::kPass) {
    for (const ReceiptGate& gate : receipt.gates) {
      if (gate.verdict != Verdict::kPass)
        receipt.reasons.push_back(format("{}: {}", gate.id, verdict_label(gate.verdict)));
    }
  }
  return receipt;
}

std::string gates_text(const Receipt& receipt) {
  std::string out;
  for (const ReceiptGate& gate : receipt.gates) {
    out += format("{:<8} {}\n", verdict_label(gate.verdict), gate.id);
    out += format("         covered: {}\n", gate.range);
    for (const std::string& reason : gate.reasons) out += format("         - {}\n", reason);
    for (const auto& [check, bound] : gate.bound) {
      const auto observed = gate.observed.find(check);
      if (observed == gate.observed.end()) continue;
      out += format("         {:<28} {:>10.4g}  allowed {:.4g}\n", check, observed->second, bound);
    }
    std::vector<std::string> caught;
    for (const ReceiptItem& item : gate.items) {
      constexpr std::string_view kPlanted = "planted: ";
      if (item.id.starts_with(kPlanted)) {
        caught.push_back(format("{} {}", item.id.substr(kPlanted.size()), item.outcome));
      }
    }
    if (!caught.empty()) out += format("         planted faults: {}\n", join(caught, ", "));
    if (gate.null_arm) out += format("         null arm: {}\n", verdict_label(*gate.null_arm));
  }
  return out + format("{}\n", verdict_label(receipt.verdict));
}

}  // namespace onelane
