// The stages of a mini-v41 step on the reference and on the CPU kernels, in one run.
//
//   kernels_bench [--rows 1,6,64,256] [--streams 1] [--position 4000] [--threads 0] [--without-reference]
//
// A step has `rows` rows of each stream. Times are the least of many repetitions, in microseconds: what the code costs
// when nobody disturbs it. The last line of a table is a step: every stage as often as the model runs it. `cpu/step`
// repeats the whole step in order, so that what one stage leaves in the caches, and in the sleeping threads, counts
// too.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "mini_stages.h"

namespace onelane::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Least time of one call in us: repeats until `budget_s` is spent, at least `least` times.
double least_us(double budget_s, int least, const std::function<void()>& call) {
  call();
  double best = std::numeric_limits<double>::infinity();
  const auto begin = Clock::now();
  for (int i = 0; i < least || std::chrono::duration<double>(Clock::now() - begin).count() < budget_s; ++i) {
    const auto start = Clock::now();
    call();
    best = std::min(best, std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  return best;
}

struct Options {
  std::vector<int> rows = {1, 6, 64, 256};
  int streams = 1;
  int position = 4000;
  int threads = 0;
  bool reference = true;
};

void run(const Options& options, int rows_each) {
  const int rows = rows_each * options.streams;
  const MiniStages stages(options.position, rows_each, options.streams);
  const auto reference = make_reference_kernels();
  const auto cpu = make_cpu_kernels(options.threads);
  const auto one = make_cpu_kernels(1);
  std::printf("\nmini-v41, %d rows of %d streams from position %d\n", rows, options.streams, options.position);
  std::printf("%-18s %5s %12s %10s %10s %8s %8s %8s %8s\n", "stage", "calls", "reference us", "1 thread", "cpu us",
              "ratio", "threads", "GMAC/s", "GB/s");
  double reference_step = 0;
  double cpu_step = 0;
  double one_step = 0;
  for (const StageCall& stage : stages.calls()) {
    const double r = options.reference ? least_us(0.1, 2, [&] { stage.call(*reference); }) : 0;
    const double o = least_us(0.05, 5, [&] { stage.call(*one); });
    const double c = least_us(0.05, 5, [&] { stage.call(*cpu); });
    std::printf("%-18s %5.0f %12.1f %10.1f %10.1f %8.1f %8.2f %8.1f %8.2f\n", stage.name.c_str(), stage.per_step, r, o,
                c, r / c, o / c, stage.macs / c / 1e3, stage.weight_bytes / c / 1e3);
    reference_step += r * stage.per_step;
    one_step += o * stage.per_step;
    cpu_step += c * stage.per_step;
  }
  const auto whole = [&](Kernels& kernels) {
    return least_us(0.5, 5, [&] {
      for (const StageCall& stage : stages.calls()) {
        for (int i = 0; i < static_cast<int>(stage.per_step); ++i) stage.call(kernels);
      }
    });
  };
  std::printf("%-18s %5s %12.1f %10.1f %10.1f %8.1f %8.2f\n", "sum of a step", "", reference_step, one_step, cpu_step,
              reference_step / cpu_step, one_step / cpu_step);
  const double measured = whole(*cpu);
  std::printf("%-18s %5s %12s %10.1f %10.1f %8.1f %8s   %.0f rows/s\n", "whole step", "", "", whole(*one), measured,
              reference_step / measured, "", rows / measured * 1e6);
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--without-reference") {
      options.reference = false;
      continue;
    }
    if (i + 1 == argc) return false;
    const char* value = argv[++i];
    if (flag == "--rows") {
      options.rows.clear();
      for (const char* p = value; p != nullptr; p = std::strchr(p, ',') ? std::strchr(p, ',') + 1 : nullptr) {
        options.rows.push_back(std::atoi(p));
        if (options.rows.back() <= 0) return false;
      }
    } else if (flag == "--streams") {
      options.streams = std::atoi(value);
    } else if (flag == "--position") {
      options.position = std::atoi(value);
    } else if (flag == "--threads") {
      options.threads = std::atoi(value);
    } else {
      return false;
    }
  }
  return options.streams > 0 && options.position >= 0 && options.threads >= 0;
}

}  // namespace
}  // namespace onelane::bench

int main(int argc, char** argv) {
  onelane::bench::Options options;
  if (!onelane::bench::parse(argc, argv, options)) {
    std::fprintf(
        stderr,
        "usage: kernels_bench [--rows 1,6,64] [--streams N] [--position N] [--threads N] [--without-reference]\n");
    return 2;
  }
  for (const int rows : options.rows) onelane::bench::run(options, rows);
  return 0;
}
