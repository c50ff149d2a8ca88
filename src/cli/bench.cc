#include "cli/bench.h"

#include <csignal>
#include <iostream>

#include <unistd.h>

#include "base/format.h"
#include "base/mapped_file.h"
#include "cli/count_list.h"
#include "cli/receipt_output.h"
#include "cli/runtime.h"

namespace onelane {
namespace {

Result<BenchOptions> complete(const BenchCommand& command) {
  BenchOptions options = command.options;
  options.mode = command.lib ? BenchMode::kLib : BenchMode::kStrict;
  const auto typed = [](const std::string& text, const char* standard) { return text.empty() ? standard : text; };
  ONELANE_ASSIGN(
      const auto concurrency,
      count_list("--concurrency", typed(command.concurrency, command.lib ? "1,2,4,8,16,32,64,128" : "1,2,4,8")));
  options.concurrency.clear();
  for (const int64_t c : concurrency) options.concurrency.push_back(static_cast<int>(std::min<int64_t>(c, 1 << 20)));
  ONELANE_ASSIGN(options.contexts,
                 count_list("--contexts", typed(command.contexts, command.lib ? "0,16k,32k,64k,128k" : "0")));
  ONELANE_ASSIGN(options.prefill_contexts,
                 count_list("--prefill",
                            command.prefill == "none" ? "" : typed(command.prefill, command.lib ? "8k,64k,128k" : "")));
  ONELANE_ASSIGN(options.mixed_contexts, count_list("--mixed-prefill", command.mixed));
  if (command.lib && !command.classes.empty()) {
    return Error{ErrorCode::kInvalidArgument, "--classes: lib mode has one prompt; leave out --lib or --classes"};
  }
  if (!command.classes.empty()) options.classes.clear();
  for (std::string_view rest = command.classes; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(','));
    options.classes.emplace_back(name);
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
  }
  if (options.classes == std::vector<std::string>{"all"}) {
    options.classes.clear();
    for (const WorkloadClass& of : builtin_workloads().classes) options.classes.push_back(of.name);
  }
  return options;
}

std::atomic<bool> interrupt_asked = false;

// The first interrupt ends the run after the phase in hand, the second one at once.
void on_interrupt(int signal) {
  interrupt_asked = true;
  std::signal(signal, SIG_DFL);
}

// One line that is redrawn on a terminal; elsewhere only what is said.
class ProgressLine {
 public:
  explicit ProgressLine(bool terminal) : terminal_(terminal) {}

  void draw(const BenchProgress& now) {
    if (!terminal_) return;
    std::string line = format("{}  {} {:.0f}", now.what, now.phase, now.elapsed_s);
    line += now.of_s > 0 ? format("/{:.0f} s", now.of_s) : std::string(" s");
    if (now.tok_s > 0) line += format("  {:.0f} tok/s", now.tok_s);
    if (now.running) line += format("  running {:.0f}", *now.running);
    if (now.waiting.value_or(0) > 0) line += format("  waiting {:.0f}", *now.waiting);
    std::cerr << "\r\033[K" << line << std::flush;
    drawn_ = true;
  }
  void say(const std::string& line) {
    clear();
    std::cerr << line << std::endl;
  }
  void clear() {
    if (std::exchange(drawn_, false)) std::cerr << "\r\033[K" << std::flush;
  }

 private:
  const bool terminal_;
  bool drawn_ = false;
};

Result<void> keep(const BenchCommand& command, const BenchReport& report, const Receipt& receipt) {
  if (!command.json.empty()) {
    const std::string json = bench_json(report);
    if (command.json == "-") {
      std::cout << json;
    } else {
      ONELANE_TRY(write_file(command.json, json));
    }
  }
  return keep_receipt(receipt, command.receipt, command.db);
}

}  // namespace

int run_bench_serve(const BenchCommand& command) {
  const auto options = complete(command);
  if (!options) return fail(options.error()), 2;
  std::signal(SIGINT, on_interrupt);
  ProgressLine progress(::isatty(STDERR_FILENO) != 0);
  const BenchHooks hooks{.progress = [&](const BenchProgress& now) { progress.draw(now); },
                         .said = [&](const std::string& line) { progress.say(line); },
                         .interrupt = &interrupt_asked};
  const auto report = run_bench(*options, hooks);
  progress.clear();
  if (!report) return fail(report.error()), report.error().code == ErrorCode::kInvalidArgument ? 2 : 1;

  const Receipt receipt = bench_receipt(*report, command_line(options->api_key));
  if (command.json != "-") {
    std::cout << bench_tables(*report) << '\n' << verdict_label(receipt.verdict) << '\n';
    for (const std::string& reason : receipt.reasons) std::cout << "  " << reason << '\n';
    std::cout << std::flush;
  }
  const auto kept = keep(command, *report, receipt);
  if (!kept) return fail(kept.error());
  return receipt.verdict == Verdict::kPass ? 0 : 1;
}

}  // namespace onelane
