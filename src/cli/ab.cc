#include "cli/ab.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iostream>

#include "base/format.h"
#include "base/mapped_file.h"
#include "base/program.h"
#include "cli/report_output.h"
#include "cli/runtime.h"
#include "lane/ab_fields.h"
#include "lane/ab_run.h"
#include "lane/receipt_report.h"
#include "lane/receipt_store.h"
#include "lane/stats.h"

namespace onelane {
namespace {

// What the plan can be expected to show, from the spread of a null run or of --sd.
void print_power(const AbPlan& plan, double sd_percent) {
  if (plan.question == AbQuestion::kBroken || sd_percent <= 0) return;
  const double level = plan_level(plan), effect = plan.bars.promotion_percent;
  std::cout << format(
      "power at a true {:+.2f} %: {:.0f} % with {} quads whose spread is {:.2f} %; 80 % needs {} quads\n", effect,
      100 * t_test_power(plan.quads, effect, sd_percent, level), plan.quads, sd_percent,
      samples_for_power(effect, sd_percent, 0.8, level));
}

Result<void> make_plan(const AbCommand& command) {
  AbPlan plan = command.plan;
  for (const auto& [question, name] : names_of(AbQuestion())) {
    if (name == command.question) plan.question = question;
  }
  for (const std::string& text : command.registered) {
    const size_t equals = text.rfind('=');
    double accepted = 0;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + std::min(equals, text.size() - 1) + 1, end, accepted);
    if (equals == std::string::npos || parsed.ec != std::errc{} || parsed.ptr != end) {
      return Error{ErrorCode::kInvalidArgument,
                   format("--registered-accept {}: must be a cell and a number: prose/C1/ctx0=2.69", text)};
    }
    plan.registered_accept[text.substr(0, equals)] = accepted;
  }
  double sd_percent = command.sd_percent;
  if (!command.null_folder.empty()) {
    ONELANE_ASSIGN(const AbRun null, read_run(command.null_folder));
    if (null.plan.question != AbQuestion::kNull || null.receipt.verdict == Verdict::kVoid) {
      return Error{ErrorCode::kInvalidArgument, format("--null {}: is no null run that counts", command.null_folder)};
    }
    sd_percent = 100 * standard_deviation(null.comparison.all.quads);
    plan.null_percent = std::abs(percent(null.comparison.all.effect.point));
    plan.null_quad_sd_percent = sd_percent;
    plan.null_run = null.receipt.run_id;
  }
  ONELANE_ASSIGN(plan, complete_plan(std::move(plan)));
  ONELANE_TRY(write_file(command.file, plan_json(plan)));
  std::cout << format("{}: {}, {} blocks:", command.file, name_of(plan.question), plan.order.size());
  for (const ArmRole role : plan.order) std::cout << ' ' << name_of(role);
  std::cout << "\n";
  print_power(plan, sd_percent);
  return {};
}

Result<Verdict> execute(const AbCommand& command) {
  ONELANE_ASSIGN(const std::string text, read_file(command.file));
  auto plan = parse_plan(text);
  if (!plan) return std::move(plan).error().in(command.file);
  AbRunOptions options{command.folder, program_path()};
  options.progress = [](const std::string& line) { std::cerr << line << std::endl; };
  ONELANE_ASSIGN(const AbRun run, run_plan(*plan, options));
  if (!command.db.empty()) {
    ONELANE_ASSIGN(ReceiptStore store, ReceiptStore::open(command.db));
    for (const ReceiptArtifact& artifact : run.receipt.artifacts) {
      if (!artifact.path.starts_with("block-")) continue;
      ONELANE_ASSIGN(const std::string block,
                     read_file((std::filesystem::path(command.folder) / artifact.path).string()));
      ONELANE_TRY(store.add(block));
    }
    ONELANE_ASSIGN(const std::string receipt, read_file((std::filesystem::path(command.folder) / "ab.json").string()));
    ONELANE_TRY(store.add(receipt));
  }
  const std::vector<NamedReceipt> shown = {{run.receipt, ""}};
  std::cout << render_markdown(receipts_document(run.plan.title, shown));
  return run.receipt.verdict;
}

Result<void> report(const AbCommand& command) {
  ONELANE_ASSIGN(const AbRun run, read_run(command.folder));
  ONELANE_ASSIGN(const std::string text, read_file((std::filesystem::path(command.folder) / "ab.json").string()));
  const std::vector<NamedReceipt> shown = {{run.receipt, receipt_digest(text)}};
  return write_report(receipts_document(run.plan.title, shown), run.plan.title, command.html, command.markdown);
}

}  // namespace

int run_ab_plan(const AbCommand& command) {
  const auto done = make_plan(command);
  return done ? 0 : fail(done.error());
}

int run_ab_run(const AbCommand& command) {
  const auto verdict = execute(command);
  if (!verdict) return fail(verdict.error());
  return *verdict == Verdict::kPass ? 0 : 1;
}

int run_ab_report(const AbCommand& command) {
  const auto done = report(command);
  return done ? 0 : fail(done.error());
}

}  // namespace onelane
