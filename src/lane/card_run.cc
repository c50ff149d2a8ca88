#include "lane/card_run.h"

#include <algorithm>
#include <filesystem>

#include "base/format.h"
#include "base/mapped_file.h"
#include "lane/command.h"
#include "lane/sha256.h"
#include "lane/utc.h"

namespace onelane {
namespace {

namespace fs = std::filesystem;

// The receipt of a gate's command, or one that says why there is none.
Result<Receipt> run_gate(const CardGate& gate, const Card& card, const AbRunOptions& options) {
  const fs::path folder(options.folder);
  const std::string file = (folder / format("gate-{}.json", gate.id)).string();
  const std::string log = (folder / format("gate-{}.log", gate.id)).string();
  const std::string command =
      fill_command(gate.command, {{"onelane", options.self}, {"receipt", fs::absolute(file).string()}});
  ONELANE_ASSIGN(const CommandEnd end, run_command(command, log, static_cast<double>(card.comparison.block_timeout_s)));
  auto receipt = load_receipt(file);
  if (receipt) return receipt;
  Receipt none;
  none.kind = ReceiptKind::kGate;
  none.verdict = Verdict::kNotRun;
  none.reasons = {format("no receipt ({}); the command exited with {} and last said: {}", receipt.error().message,
                         end.exit_code, last_line(log))};
  return none;
}

// Adds what a gate's receipt says to the card's.
void adopt(const Receipt& gate, const std::string& id, Receipt& into) {
  if (into.build.id.empty()) {
    into.build = gate.build;
    into.model = gate.model;
    into.resolved = gate.resolved;
    into.machine = gate.machine;
  }
  into.gates.insert(into.gates.end(), gate.gates.begin(), gate.gates.end());
  // A receipt may say worse of itself than its gates do, and then that counts.
  if (gate.verdict != allowed_verdict(gate) || gate.gates.empty()) {
    ReceiptGate whole;
    whole.id = id;
    whole.verdict = gate.verdict;
    whole.reasons = gate.reasons;
    into.gates.push_back(std::move(whole));
  }
}

std::string effect_text(const Card& card, const AbComparison& comparison) {
  const Estimate& effect = comparison.all.effect;
  std::string text = format("{:+.2f} %", percent(effect.point));
  if (comparison.all.quads.size() >= 2)
    text += format(" [{:+.2f}, {:+.2f}]", percent(effect.low), percent(effect.high));
  text += format(" in {}", card.comparison.metric);
  if (comparison.all.quads.size() >= 2) text += format(" over {} quads", comparison.all.quads.size());
  if (comparison.all.step_rate && comparison.all.accept) {
    text += format(" (step rate {:+.2f} %, accept length {:+.2f} %)", percent(comparison.all.step_rate->point),
                   percent(comparison.all.accept->point));
  }
  return text;
}

void close(const Card& card, const std::optional<AbComparison>& comparison, CardRun& run) {
  const Receipt& receipt = run.receipt;
  CardOutcome& outcome = run.outcome;
  outcome = {utc_now("%Y-%m-%d"), receipt.verdict, "", {}, receipt.run_id, run.digest};
  run.closed = receipt.verdict == Verdict::kPass || receipt.verdict == Verdict::kFail;
  std::vector<std::string> parts;
  if (comparison && !comparison->all.quads.empty()) {
    parts.push_back(effect_text(card, *comparison));
    if (card.predicted) {
      const double effect = percent(comparison->all.effect.point);
      outcome.prediction_held = card.predicted->low_percent <= effect && effect <= card.predicted->high_percent;
      parts.push_back(format("predicted were {:+g} to {:+g} %, which {}", card.predicted->low_percent,
                             card.predicted->high_percent, *outcome.prediction_held ? "held" : "did not hold"));
    }
  }
  parts.insert(parts.end(), receipt.reasons.begin(), receipt.reasons.end());
  outcome.sentence = format("{}", fmt::join(parts, "; "));
}

Result<void> add_artifacts(const fs::path& folder, Receipt& receipt) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().extension() != ".log")
      files.push_back(fs::relative(entry.path(), folder));
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    ONELANE_ASSIGN(const std::string digest, sha256_file((folder / file).string()));
    receipt.artifacts.push_back({file.string(), digest, static_cast<int64_t>(fs::file_size(folder / file))});
  }
  return {};
}

}  // namespace

Result<CardRun> run_card(const Card& card, const std::string& toml, const AbRunOptions& options) {
  if (card.outcome) {
    return Error{ErrorCode::kInvalidArgument,
                 format("outcome: the card was closed on {}; a new run is a new card", card.outcome->date)};
  }
  ONELANE_TRY(prepare_run_folder(options.folder));
  const fs::path folder(options.folder);
  ONELANE_TRY(write_file((folder / "card.toml").string(), toml));
  CardRun run;
  std::vector<ReceiptGate> gates;
  Verdict gates_say = Verdict::kPass;
  for (const CardGate& gate : card.gates) {
    ONELANE_ASSIGN(const Receipt receipt, run_gate(gate, card, options));
    options.progress(format("gate {}: {}", gate.id, verdict_label(receipt.verdict)));
    adopt(receipt, gate.id, run.receipt);
    if (receipt.verdict != Verdict::kPass) gates_say = receipt.verdict;
    gates = run.receipt.gates;
    if (gates_say != Verdict::kPass) break;  // a comparison of something broken says nothing
  }
  std::optional<AbComparison> comparison;
  if (gates_say == Verdict::kPass) {
    AbRunOptions inner = options;
    inner.folder = (folder / "ab").string();
    ONELANE_ASSIGN(AbRun compared, run_plan(card.comparison, inner));
    run.receipt = std::move(compared.receipt);
    run.receipt.artifacts.clear();
    run.receipt.gates.insert(run.receipt.gates.end(), gates.begin(), gates.end());
    comparison = std::move(compared.comparison);
  } else {
    run.receipt.kind = ReceiptKind::kAb;
    run.receipt.verdict = allowed_verdict(run.receipt);
    for (const ReceiptGate& gate : gates) {
      if (gate.verdict == Verdict::kPass) continue;
      run.receipt.reasons.push_back(
          format("gate {}: {} ({})", gate.id, verdict_label(gate.verdict), fmt::join(gate.reasons, "; ")));
    }
  }
  run.receipt.run_id = new_run_id();
  run.receipt.title = card.title;
  run.receipt.command = "onelane card run";
  run.receipt.protocol = {std::string(kCardSchema), card.id, sha256(toml), {}};
  ONELANE_TRY(add_artifacts(folder, run.receipt));
  const std::string file = (folder / "card.json").string();
  ONELANE_TRY(save_receipt(run.receipt, file));
  ONELANE_ASSIGN(const std::string text, read_file(file));
  run.digest = receipt_digest(text);
  close(card, comparison, run);
  return run;
}

LedgerRow ledger_row(const Card& card, const CardOutcome& outcome, const std::string& command) {
  return {outcome.date, card.title, format("{}: {}", verdict_label(outcome.verdict), outcome.sentence),
          format("`{}`, receipt {} ({})", command, outcome.run_id, outcome.digest.substr(0, 12))};
}

}  // namespace onelane
