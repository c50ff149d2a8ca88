#include "lane/ab_rules.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/format.h"

namespace onelane {
namespace {

const ReceiptCell* find_cell(const Receipt& receipt, const std::string& id) {
  const auto found =
      std::find_if(receipt.cells.begin(), receipt.cells.end(), [&](const auto& c) { return c.id == id; });
  return found == receipt.cells.end() ? nullptr : &*found;
}

std::string shown(const std::optional<std::string>& text) { return text.value_or("unknown"); }

std::string sampling_text(const ReceiptSampling& s) {
  const auto number = [](const auto& value) { return value ? format("{}", *value) : std::string("unknown"); };
  return format("temperature {}, top_p {}, seed {}, max_tokens {}, ignore_eos {}", number(s.temperature),
                number(s.top_p), number(s.seed), number(s.max_tokens), number(s.ignore_eos));
}

// What identifies the thing that ran. The parts in `kShared` must be equal between arms too.
std::map<std::string, std::string> identity(const Receipt& r) {
  std::string settings, measuring;
  std::string model;  // our server's hash of it, where no SHA-256 of the weights is known
  for (const auto& [key, value] : r.resolved.settings) {
    std::string& part = key == "server.model_identity" ? model : key.starts_with("bench.") ? measuring : settings;
    part += format("{}={} ", key, value);
  }
  return {{"build", format("{} {} {}", r.build.id, shown(r.build.git), shown(r.build.binary_sha256))},
          {"settings", settings},
          {"measuring", measuring},
          {"weights", format("{} {} {}", r.model.name, shown(r.model.weights_sha256), model)},
          {"tokenizer", shown(r.model.tokenizer_sha256)},
          {"template", shown(r.model.template_sha256)},
          {"sampling", sampling_text(r.resolved.sampling)},
          {"draft", shown(r.model.draft)},
          {"kv_dtype", shown(r.model.kv_dtype)},
          {"prompts", shown(r.protocol.prompts_sha256)},
          {"protocol", format("{} {}", r.protocol.mode, shown(r.protocol.sha256))},
          {"gpu", format("{} {}", shown(r.machine.gpu), shown(r.machine.driver))},
          {"cpu", format("{} {}", shown(r.machine.cpu), shown(r.machine.kernel))}};
}

const std::set<std::string> kShared = {"weights",  "tokenizer", "template", "sampling", "prompts",
                                       "protocol", "measuring", "gpu",      "cpu"};

void check_accept(const AbPlan& plan, std::span<const AbBlock> blocks, std::vector<std::string>& faults) {
  for (const auto& [id, registered] : plan.registered_accept) {
    std::vector<double> seen;
    for (const AbBlock& block : blocks) {
      const ReceiptCell* cell = block.role == ArmRole::kControl ? find_cell(block.receipt, id) : nullptr;
      if (cell != nullptr && cell->accepted_per_step) seen.push_back(*cell->accepted_per_step);
    }
    if (seen.empty()) {
      faults.push_back(format("cell {}: the control reports no accept length, but one is registered", id));
    } else if (std::abs(mean(seen) - registered) > plan.voids.accept_tolerance) {
      faults.push_back(format("cell {}: the control accepts {:.3f} drafts a step; registered are {:.3f} +- {}", id,
                              mean(seen), registered, plan.voids.accept_tolerance));
    }
  }
}

}  // namespace

std::vector<std::string> block_faults(const AbPlan& plan, const AbBlock& measured, const Receipt& reference) {
  const Receipt& block = measured.receipt;
  std::vector<std::string> faults = measured.faults;
  if (block.cells.empty()) {
    if (faults.empty()) faults.push_back("its receipt has no cells");
    return faults;
  }
  faults.insert(faults.end(), block.void_reasons.begin(), block.void_reasons.end());
  if (block.verdict == Verdict::kVoid && faults.empty()) faults.push_back("its receipt is VOID");
  const ReceiptEnvironment& around = block.environment;
  for (const std::string& reason : around.throttle) {
    if (reason != "idle" && reason != "app_clock") faults.push_back("clocks were throttled: " + reason);
  }
  if (!around.foreign_processes.empty()) faults.push_back("another process computed: " + around.foreign_processes[0]);
  if (!around.xid.empty()) faults.push_back(format("the driver reported Xid {}", around.xid[0]));
  if (around.client_lag_ms_p99.value_or(0) > plan.voids.client_lag_ms_p99) {
    faults.push_back(format("the client lagged: p99 {:.1f} ms, allowed are {}", *around.client_lag_ms_p99,
                            plan.voids.client_lag_ms_p99));
  }
  for (const ReceiptCell& cell : block.cells) {
    if (cell.errors > 0)
      faults.push_back(format("cell {}: {} of {} requests failed", cell.id, cell.errors, cell.requests));
    if (cell.last_token_s && cell.window_s && *cell.last_token_s < plan.voids.least_token_share * *cell.window_s) {
      faults.push_back(format("cell {}: no token in the last {:.1f} of {:.1f} s", cell.id,
                              *cell.window_s - *cell.last_token_s, *cell.window_s));
    }
    if (find_cell(reference, cell.id) == nullptr) {
      faults.push_back(format("cell {}: is not in the first control", cell.id));
    }
  }
  for (const ReceiptCell& expected : reference.cells) {
    if (!cell_metric(expected, plan.metric)) continue;  // it measures something else, and is not compared
    const ReceiptCell* cell = find_cell(block, expected.id);
    const auto value = cell == nullptr ? std::nullopt : cell_metric(*cell, plan.metric);
    if (!value) {
      faults.push_back(format("cell {}: has no {}", expected.id, plan.metric));
    } else if (!(*value > 0)) {
      faults.push_back(format("cell {}: {} is {}, which has no logarithm", expected.id, plan.metric, *value));
    }
  }
  return faults;
}

std::vector<std::string> campaign_faults(const AbPlan& plan, std::span<const AbBlock> blocks) {
  std::vector<std::string> faults;
  std::map<ArmRole, std::map<std::string, std::string>> first;
  std::set<std::optional<double>> power_limits;
  std::vector<double> temperatures;
  for (const AbBlock& block : blocks) {
    if (block.receipt.cells.empty()) continue;  // void by itself, and says nothing about its arm
    const auto now = identity(block.receipt);
    const auto [known, is_new] = first.emplace(block.role, now);
    for (const auto& [part, value] : now) {
      if (known->second.at(part) != value) {
        faults.push_back(
            format("{}: differs between blocks of one arm ({} and {})", part, known->second.at(part), value));
      }
    }
    power_limits.insert(block.receipt.machine.power_limit_w);
    if (const auto& start = block.receipt.environment.temp_c_start) temperatures.push_back(*start);
  }
  if (power_limits.size() > 1) faults.push_back("the power limit changed between blocks");
  if (!temperatures.empty()) {
    const auto [low, high] = std::minmax_element(temperatures.begin(), temperatures.end());
    if (*high - *low > plan.voids.start_temperature_c) {
      faults.push_back(format("blocks started at {:.0f} to {:.0f} degrees C", *low, *high));
    }
  }
  if (first.size() == 2) {
    const auto &control = first.at(ArmRole::kControl), &candidate = first.at(ArmRole::kCandidate);
    for (const auto& [part, value] : control) {
      const bool allowed = std::count(plan.may_differ.begin(), plan.may_differ.end(), part) > 0;
      if (kShared.contains(part) && !allowed && candidate.at(part) != value) {
        faults.push_back(format("{}: differs between the arms ({} and {})", part, value, candidate.at(part)));
      }
    }
    const bool same = control == candidate;
    if (plan.question == AbQuestion::kNull && !same) faults.push_back("a null run, but the arms are not the same");
    if (plan.question != AbQuestion::kNull && same) {
      faults.push_back("the arms are the same: no receipt shows another build, setting or model");
    }
  }
  check_accept(plan, blocks, faults);
  return faults;
}

std::vector<std::string> campaign_caveats(std::span<const AbBlock> blocks) {
  std::set<std::string> boots;
  size_t unknown = 0;
  for (const AbBlock& block : blocks) {
    if (block.receipt.cells.empty()) continue;
    if (block.receipt.arm.boot_id) {
      boots.insert(*block.receipt.arm.boot_id);
    } else {
      ++unknown;
    }
  }
  if (unknown > 0) return {format("{} of {} blocks do not say which boot they ran in", unknown, blocks.size())};
  if (boots.size() < blocks.size()) {
    return {format("{} blocks ran in {} boots: what differs from boot to boot is not in the interval", blocks.size(),
                   boots.size())};
  }
  return {};
}

}  // namespace onelane
