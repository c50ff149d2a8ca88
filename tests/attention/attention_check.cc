// attention_check: is the attention library right on this machine? Every list of cases.h against the double reference.
//
// One line a group, details of what failed, exit status 1 if anything did. On 16 cores and one GPU about a minute.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/cases.h"
#include "attention/compare.h"
#include "attention/operands.h"

namespace onelane::attention_test {
namespace {

struct Options {
  std::string backend = "cuda";
  std::string filter;
  std::string path;
  uint64_t seed = 1;
  bool quick = false, full = false, fence = true, verbose = false;
};

constexpr char kUsage[] =
    "attention_check [--backend cuda|cpu] [--quick] [--full] [--filter TEXT] [--path combine] [--seed N] [--no-fence]\n"
    "                [--verbose]\n"
    "  --quick     a dozen small cases of every group, for CI without a GPU\n"
    "  --full      FlashMLA's flags in every combination (8 times its cases)\n"
    "  --filter    groups whose name has TEXT in it\n"
    "  --path      combine: the portable kernels, as on a device without clusters\n"
    "  --no-fence  plain allocations: for compute-sanitizer, which then checks the bounds itself\n"
    "  --verbose   a line for every case\n";

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Checker {
 public:
  Checker(Backend& backend, const Options& options)
      : backend_(backend), options_(options), operands_(backend, options.fence) {}

  // Whether the group passed; prints its line.
  bool run(const Group& group) {
    const auto start = Clock::now();
    const std::vector<Case> cases = options_.quick ? thinned(group.cases) : group.cases;
    figures_ = {};
    int failed = 0;
    for (const Case& spec : cases) {
      const std::string complaint = check(spec, group);
      if (options_.verbose) std::printf("  %s: %s\n", describe(spec).c_str(), complaint.empty() ? "ok" : "FAIL");
      if (complaint.empty()) continue;
      if (++failed <= kShown) std::printf("  FAIL %s\n       %s\n", describe(spec).c_str(), complaint.c_str());
    }
    if (failed > kShown) std::printf("  and %d more\n", failed - kShown);
    std::printf("%-30s %4zu cases  %-4s  l2 %.2e", group.name.c_str(), cases.size(), failed > 0 ? "FAIL" : "ok",
                figures_.l2);
    if (group.proof == Proof::kSplits) {
      std::printf("  split against whole: lse %.1e, fp8 codes %.4f %%", figures_.split_lse, 100 * figures_.split_equal);
    }
    std::printf("  %.1f s\n", seconds_since(start));
    std::fflush(stdout);
    return failed == 0;
  }

 private:
  static constexpr int kShown = 6;
  static constexpr double kSplitLse = 1e-5;
  static constexpr double kSplitCodes = 0.999;

  struct Call {
    onelane_attention_plan plan{};
    onelane_attention_args args{};
  };

  // At most a dozen small ones, spread over the list.
  static std::vector<Case> thinned(const std::vector<Case>& cases) {
    constexpr double kQuickCost = 1.5e8;
    constexpr size_t kQuickCases = 12;
    std::vector<Case> small;
    for (const Case& spec : cases) {
      if (cost(spec) <= kQuickCost) small.push_back(spec);
    }
    std::vector<Case> chosen;
    const size_t count = std::min(kQuickCases, small.size());
    for (size_t i = 0; i < count; ++i) chosen.push_back(small[i * small.size() / count]);
    return chosen;
  }

  // Plans with `splits` and puts the problem's inputs in place; a complaint, or empty.
  std::string prepare(const Problem& problem, int splits, Call& call) {
    onelane_attention_shape shape = problem.spec.shape;
    shape.splits = splits;
    onelane_attention_device device = backend_.device();
    if (options_.path == "combine") device.cluster_blocks = 1;
    if (onelane_attention_make_plan(&shape, &device, &call.plan) != 0) {
      return std::string("make_plan: ") + onelane_attention_message();
    }
    if (options_.path == "combine" && call.plan.path != ONELANE_PATH_COMBINE) return "planned for another path";
    operands_.reserve(operand_bytes(problem, call.plan));
    call.args = operands_.bind(problem, call.plan);
    operands_.upload(problem, call.args);
    return {};
  }

  std::string run_once(const Problem& problem, const Call& call, Output& output) {
    operands_.poison();
    if (backend_.run(call.plan, call.args) != 0) return std::string("run: ") + onelane_attention_message();
    output = operands_.download(problem, call.plan, call.args);
    return unwritten(problem.spec.shape, output, problem.faulty_row);
  }

  std::string check_against_oracle(const Problem& problem, const Output& output, const Limits& limits) {
    const double budget = options_.quick ? 2e8 : 5e8;
    const Comparison comparison = compare_with_oracle(problem, output, limits, budget);
    if (problem.spec.shape.output == ONELANE_OUT_BF16) figures_.l2 = std::max(figures_.l2, comparison.l2());
    return comparison.verdict();
  }

  std::string check(const Case& spec, const Group& group) {
    const Problem problem = make_problem(spec);
    Call call;
    Output output;
    std::string complaint = prepare(problem, spec.shape.splits, call);
    if (complaint.empty()) complaint = run_once(problem, call, output);
    if (complaint.empty()) complaint = check_against_oracle(problem, output, group.limits);
    if (complaint.empty() && group.proof == Proof::kSplits) complaint = check_splits(problem, group.limits);
    if (complaint.empty() && group.proof == Proof::kBlocks) complaint = check_blocks(problem);
    if (complaint.empty() && group.proof == Proof::kReplay) complaint = check_replay(problem, call, output);
    return complaint;
  }

  std::string check_splits(const Problem& problem, const Limits& limits) {
    Output whole;
    for (const int splits : {1, 2, 4, 8, 16, 32}) {
      const std::string who = std::to_string(splits) + " splits: ";
      Call call;
      Output output;
      std::string complaint = prepare(problem, splits, call);
      if (complaint.empty() && call.plan.splits < splits && splits > 8) break;  // not on this path
      if (complaint.empty()) complaint = run_once(problem, call, output);
      if (complaint.empty()) complaint = check_against_oracle(problem, output, limits);
      if (!complaint.empty()) return who + complaint;
      if (splits == 1) {
        whole = output;
        continue;
      }
      const Difference found = difference(problem.spec.shape, whole, output);
      figures_.split_lse = std::max(figures_.split_lse, found.lse_most);
      if (found.lse_most > kSplitLse) return who + "lse is " + std::to_string(found.lse_most) + " from unsplit";
      if (problem.spec.shape.output == ONELANE_OUT_BF16) continue;
      figures_.split_equal = std::min(figures_.split_equal, found.equal_share());
      if (found.equal_share() < kSplitCodes) {
        return who + "only " + std::to_string(100 * found.equal_share()) + " % of the FP8 codes are those of unsplit";
      }
    }
    return {};
  }

  std::string check_blocks(const Problem& problem) {
    for (const int splits : {2, 4}) {
      Call call;
      std::string complaint = prepare(problem, splits, call);
      if (complaint.empty() && call.plan.path != ONELANE_PATH_CLUSTER) return {};
      call.plan.chunks_as_few = 1;
      Output first;
      for (const int heads : {16, 8, 64}) {
        Output output;
        call.plan.block_heads = heads;
        call.plan.shared_bytes = attention::block_shared_bytes(call.plan.path, heads, splits);
        const std::string who = std::to_string(splits) + " splits, blocks of " + std::to_string(heads) + " heads: ";
        if (complaint.empty()) complaint = run_once(problem, call, output);
        if (!complaint.empty()) return who + complaint;
        if (heads == 16) {
          first = output;
          continue;
        }
        const Difference found = difference(problem.spec.shape, first, output);
        const int64_t others = found.elements - found.equal - found.nothing;
        if (others > 0 || found.scales_equal != found.scales || found.lse_most > 0) {
          return who + std::to_string(others) + " values are not those of blocks of 16";
        }
      }
    }
    return {};
  }

  std::string check_replay(const Problem& problem, const Call& call, const Output& first) {
    Output again;
    std::string complaint = run_once(problem, call, again);
    if (complaint.empty() && !(again == first)) complaint = "a second run has other bits";
    if (!complaint.empty()) return complaint;
    int status = 0;
    const auto graph = backend_.record([&] { status = backend_.run(call.plan, call.args); });
    if (status != 0) return std::string("run under capture: ") + onelane_attention_message();
    for (int i = 0; i < 2; ++i) {
      operands_.poison();
      graph->replay();
      if (!(operands_.download(problem, call.plan, call.args) == first)) {
        return "replay " + std::to_string(i + 1) + " of a graph has other bits than the eager run";
      }
    }
    // Without an lse: the same output, and nothing written where it was.
    Call silent = call;
    silent.args.lse = nullptr;
    operands_.poison();
    if (backend_.run(silent.plan, silent.args) != 0)
      return std::string("run without lse: ") + onelane_attention_message();
    const Output without = operands_.download(problem, call.plan, call.args);
    if (without.out != first.out || without.scales != first.scales) return "a run without lse has other bits";
    for (const float lse : without.lse) {
      if (!std::isnan(lse)) return "a run without lse wrote one";
    }
    return {};
  }

  struct Figures {
    double l2 = 0, split_lse = 0, split_equal = 1;
  };

  Backend& backend_;
  const Options& options_;
  Operands operands_;
  Figures figures_;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> const char* {
      if (i + 1 == argc) die(flag + " needs a value");
      return argv[++i];
    };
    if (flag == "--backend") {
      options.backend = value();
    } else if (flag == "--filter") {
      options.filter = value();
    } else if (flag == "--path") {
      options.path = value();
      if (options.path != "combine") die("--path is combine, or left out for what is planned");
    } else if (flag == "--seed") {
      options.seed = std::strtoull(value(), nullptr, 10);
    } else if (flag == "--quick") {
      options.quick = true;
    } else if (flag == "--full") {
      options.full = true;
    } else if (flag == "--no-fence") {
      options.fence = false;
    } else if (flag == "--verbose") {
      options.verbose = true;
    } else {
      std::fputs(kUsage, stderr);
      std::exit(2);
    }
  }
  return options;
}

int main_of(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const auto start = Clock::now();
  const std::unique_ptr<Backend> backend = make_backend(options.backend);
  std::printf("attention_check on %s, fences %s, seed %llu\n", backend->name().c_str(), options.fence ? "on" : "off",
              static_cast<unsigned long long>(options.seed));
  Checker checker(*backend, options);
  int failed = 0, groups = 0;
  for (const Group& group : all_groups(options.seed, options.full)) {
    if (group.name.find(options.filter) == std::string::npos) continue;
    ++groups;
    failed += !checker.run(group);
  }
  if (groups == 0) die("no group has \"" + options.filter + "\" in its name");
  std::printf("attention_check: %d of %d groups passed, %.1f s\n", groups - failed, groups, seconds_since(start));
  return failed > 0;
}

}  // namespace
}  // namespace onelane::attention_test

int main(int argc, char** argv) { return onelane::attention_test::main_of(argc, argv); }
