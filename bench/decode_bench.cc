// Whole decode steps of a model on the reference kernels and on the CPU kernels, in one run.
//
//   decode_bench [MODEL_DIR] [--context 256] [--steps 64] [--reference-steps 6]
//
// Prints the time per token (least and median step), the ratio to the reference, how many processors were at work (CPU
// time over wall time), and the effect of drafts. The reference runs few steps because each takes long; the same
// positions are timed on both.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <sys/resource.h>

#include "engine/generate.h"
#include "engine/session.h"
#include "text/compressed_token_map.h"

namespace onelane {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string dir = "models/mini-v41";
  int context = 256;
  int steps = 64;
  int reference_steps = 6;
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Timing {
  double least_ms = 0;
  double median_ms = 0;
  double processors = 0;
};

// Decodes `steps` tokens after `context` tokens of plain text, one token a step.
Timing time_decode(const Model& model, Kernels& kernels, std::span<const int32_t> text, const Options& options,
                   int steps) {
  auto session = Session::create(model, kernels, {.max_tokens = options.context + steps + 1, .draft = false});
  ONELANE_CHECK(session, "a session");
  const auto context = static_cast<size_t>(options.context);
  ONELANE_CHECK((*session)->append(text.first(context)), "a prompt");
  std::vector<double> times;
  const double cpu_start = cpu_seconds();
  const auto start = Clock::now();
  for (int i = 0; i < steps; ++i) {
    const auto before = Clock::now();
    ONELANE_CHECK((*session)->append(text.subspan(context + static_cast<size_t>(i), 1)), "a step");
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - before).count());
  }
  const double wall = std::chrono::duration<double>(Clock::now() - start).count();
  const double busy = (cpu_seconds() - cpu_start) / wall;
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2], busy};
}

void print_row(const char* name, const Timing& timing, const Timing& reference) {
  std::printf("%-16s %10.3f %10.3f %12.1f %12.1f %11.2f\n", name, timing.least_ms, timing.median_ms,
              reference.least_ms / timing.least_ms, reference.median_ms / timing.median_ms, timing.processors);
}

int run(const Options& options) {
  auto tokenizer = Tokenizer::load(options.dir + "/tokenizer.json");
  ONELANE_CHECK(tokenizer, options.dir.c_str());
  auto map = compressed_token_map(*tokenizer);
  ONELANE_CHECK(map, "a token map");
  auto loaded = Model::load(options.dir, std::move(map->number));
  ONELANE_CHECK(loaded, loaded ? "" : loaded.error().message.c_str());
  const Model& model = **loaded;

  std::string source;
  for (int i = 0; i < 4000; ++i) source += "int value_" + std::to_string(i * 7919 % 1000) + " = read(path);\n";
  const auto text = tokenizer->encode(source);
  ONELANE_CHECK(text && static_cast<int>(text->size()) > options.context + options.steps, "enough text");

  const auto reference = make_reference_kernels();
  const auto one = make_cpu_kernels(1);
  const auto all = make_cpu_kernels(0);
  std::printf("%s, decode at position %d, ms per token\n", options.dir.c_str(), options.context);
  std::printf("%-16s %10s %10s %12s %12s %11s\n", "kernels", "least", "median", "x least", "x median", "processors");
  const Timing slow = time_decode(model, *reference, *text, options, options.reference_steps);
  print_row("reference", slow, slow);
  print_row("cpu, 1 thread", time_decode(model, *one, *text, options, options.steps), slow);
  print_row("cpu, all", time_decode(model, *all, *text, options, options.steps), slow);
  return 0;
}

}  // namespace
}  // namespace onelane

int main(int argc, char** argv) {
  onelane::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    int* number = argument == "--context"           ? &options.context
                  : argument == "--steps"           ? &options.steps
                  : argument == "--reference-steps" ? &options.reference_steps
                                                    : nullptr;
    if (number == nullptr) {
      options.dir = argument;
    } else if (++i < argc) {
      *number = std::max(1, std::atoi(argv[i]));
    }
  }
  return onelane::run(options);
}
