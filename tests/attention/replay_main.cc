// onelane-attention-replay: does the attention library survive a server's life under CUDA graphs? See replay.h.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "attention/backend.h"
#include "attention/replay.h"

namespace onelane::attention_test {
namespace {

constexpr char kUsage[] =
    "onelane-attention-replay [--backend cuda|cpu] [--steps N] [--seed S] [--rows-max M] [--heads H] [--no-fence]\n"
    "                         [--path combine] [--sanitizer] [--plant FAULT] [--verbose]\n"
    "  --steps N    738 by default; at least 600 of so many must run split rows on CUDA\n"
    "  --no-fence   plain allocations instead of operands that end at an unmapped page\n"
    "  --path       combine: the portable kernels, as on a device without clusters\n"
    "  --sanitizer  few steps of small shapes, no fences: for compute-sanitizer\n"
    "  --plant      row-past-end[=q|out|lse|window.indices|window.lengths], stale-plan or unzeroed-counter: the "
    "program\n"
    "               must then say FAIL\n";

constexpr int kLeastSplittingShare = 600, kOfSteps = 738;

ReplayOptions parse(int argc, char** argv, std::string& backend) {
  ReplayOptions options;
  bool steps_given = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) die(flag + " needs a value");
      return argv[++i];
    };
    const auto number = [&](int least) {
      const std::string text = value();
      char* end = nullptr;
      const long parsed = std::strtol(text.c_str(), &end, 10);
      if (*end != 0 || parsed < least || parsed > 1'000'000'000)
        die(flag + " is a number from " + std::to_string(least));
      return static_cast<int>(parsed);
    };
    if (flag == "--backend") {
      backend = value();
    } else if (flag == "--steps") {
      options.steps = number(1);
      steps_given = true;
    } else if (flag == "--seed") {
      options.seed = static_cast<uint64_t>(number(0));
    } else if (flag == "--rows-max") {
      options.rows_max = number(1);
    } else if (flag == "--heads") {
      options.heads = number(8);
    } else if (flag == "--fence") {
      options.fence = true;
    } else if (flag == "--no-fence") {
      options.fence = false;
    } else if (flag == "--path") {
      if (value() != "combine") die("--path is combine, or left out for what is planned");
      options.combine = true;
    } else if (flag == "--sanitizer") {
      options.sanitizer = true;
      options.fence = false;
    } else if (flag == "--verbose") {
      options.verbose = true;
    } else if (flag == "--plant") {
      const std::string fault = value();
      const size_t equals = fault.find('=');
      const std::string name = fault.substr(0, equals);
      if (name == "row-past-end") {
        options.plant = Plant::kRowPastEnd;
        for (int operand = 0; equals != std::string::npos && operand < kOperands; ++operand) {
          if (fault.substr(equals + 1) == kOperandNames[static_cast<size_t>(operand)]) {
            options.plant_operand = static_cast<Operand>(operand);
          }
        }
      } else if (name == "stale-plan") {
        options.plant = Plant::kStalePlan;
      } else if (name == "unzeroed-counter") {
        options.plant = Plant::kUnzeroedCounter;
      } else {
        die("--plant knows row-past-end, stale-plan and unzeroed-counter, not \"" + fault + "\"");
      }
    } else {
      std::fputs(kUsage, stderr);
      std::exit(2);
    }
  }
  if (options.sanitizer && !steps_given) options.steps = 6;
  return options;
}

int main_of(int argc, char** argv) {
  std::string backend_name = "cuda";
  const ReplayOptions options = parse(argc, argv, backend_name);
  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<Backend> backend = make_backend(backend_name);
  std::printf("onelane-attention-replay on %s, fences %s, seed %llu\n", backend->name().c_str(),
              options.fence ? "on" : "off", static_cast<unsigned long long>(options.seed));
  std::fflush(stdout);
  Replay replay(*backend, options);
  replay.capture();
  replay.run();
  std::printf("%s\n", replay.summary().c_str());
  // A run that hardly splits proves nothing about splitting.
  if (backend_name == "cuda" && !options.sanitizer && options.rows_max >= 8 &&
      int64_t{replay.splitting_steps()} * kOfSteps < int64_t{options.steps} * kLeastSplittingShare) {
    die("only " + std::to_string(replay.splitting_steps()) + " steps ran split rows");
  }
  std::printf("onelane-attention-replay: passed, %.1f s\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return 0;
}

}  // namespace
}  // namespace onelane::attention_test

int main(int argc, char** argv) { return onelane::attention_test::main_of(argc, argv); }
