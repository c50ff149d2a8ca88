#include "cli/gate.h"

#include <iostream>
#include <random>
#include <utility>

#include "base/format.h"
#include "cli/receipt_output.h"
#include "cli/runtime.h"
#include "lane/gate.h"
#include "lane/receipt_server.h"

namespace onelane {
namespace {

// A seed that a person can type.
uint64_t draw_seed() { return 1 + std::random_device()() % 1'000'000; }

}  // namespace

std::vector<std::string> gate_names() {
  std::vector<std::string> names = {"all"};
  for (const Gate& gate : gate_table()) names.emplace_back(gate.name);
  return names;
}

int run_gates(const GateCommand& command) {
  auto server = GateServer::connect({.url = command.url, .api_key = command.api_key}, command.model);
  if (!server) return fail(server.error());
  const ServerInfo& info = (*server)->info();
  const GateProfile* profile = find_profile(command.profile, info.model);
  if (profile == nullptr) {
    std::vector<std::string> names;
    for (const GateProfile& known : gate_profiles()) names.push_back(known.name);
    return fail({ErrorCode::kInvalidArgument,
                 format("--profile {}: there are auto, {}", command.profile, join(names, ", "))}),
           2;
  }
  GatePlan plan{.profile = *profile, .quick = command.quick, .held_out = command.held_out};
  plan.seed = command.seed != 0 ? command.seed : draw_seed();
  plan.precision = command.precision;
  if (!command.null.empty() && command.reference.empty()) {
    return fail({ErrorCode::kInvalidArgument, "--null: needs --reference, whose null it is"}), 2;
  }
  for (const auto& [file, into] :
       {std::pair(&command.reference, &plan.reference), std::pair(&command.null, &plan.null_reference)}) {
    if (file->empty()) continue;
    auto capture = load_capture(*file);
    if (!capture) return fail(capture.error());
    *into = std::make_shared<const Capture>(*std::move(capture));
  }
  if (command.rounds > 0) plan.profile.rounds = plan.profile.quick_rounds = command.rounds;
  plan.progress = [](const std::string& line) { std::cerr << line << std::endl; };
  std::cerr << format("{} ({} {}), profile {}{}: {}; seed {}\n", info.model, info.engine_name(), info.version,
                      profile->name, plan.quick ? ", quick" : "", profile->about, plan.seed);

  const auto watch = watch_server(info, command.url);
  std::vector<ReceiptGate> gates;
  for (const Gate& gate : gate_table()) {
    if (command.gate != "all" && command.gate != gate.name) continue;
    gates.push_back(run_gate(gate, **server, plan));
  }
  Receipt receipt = gate_receipt(**server, plan, std::move(gates));
  receipt.command = command_line(command.api_key);
  if (watch) {
    receipt.machine = watch->machine();
    receipt.environment = watch->stop();
  }
  std::cout << gates_text(receipt) << std::flush;
  const auto kept = keep_receipt(receipt, command.receipt, command.db);
  if (!kept) return fail(kept.error());
  return receipt.verdict == Verdict::kPass ? 0 : 1;
}

}  // namespace onelane
