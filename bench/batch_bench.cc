// Streams side by side: what the engine makes of 1, 4 and 16 requests at once, in one run.
//
//   batch_bench [MODEL_DIR] [--tokens 128] [--prompt 96] [--threads 0] [--temperature-percent 0] [--repeat 2]
//               [--schedule 4:5,8:3,64:0] [--streams 16] [--stages 1]
//
// Prints generated tokens per second for every number of streams (the best of `repeat` rounds, which alternate), the
// ratio to the fewest, tokens per step and stream, and the time per step that is not spent in the kernels' stages:
// scheduling, sampling, events. "drafts" follows the schedule, "plain" makes none. --streams takes one number of
// streams only; with --stages the microseconds of every stage per step of the best round are printed too.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <map>
#include <string>
#include <vector>

#include <sys/resource.h>

#include "engine/engine.h"
#include "kernels/forwarding_kernels.h"
#include "text/compressed_token_map.h"
#include "text/tokenizer.h"

namespace onelane {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Options {
  std::string dir = "models/mini-v41";
  int tokens = 128;
  int prompt = 96;
  int threads = 0;
  int temperature_percent = 0;
  int repeat = 2;
  int streams = 0;  // 0: 1, 4 and 16
  int stages = 0;
  std::string schedule = DraftSchedule().text();
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Adds up the time inside the stages.
class TimedKernels : public ForwardingKernels {
 public:
  using ForwardingKernels::ForwardingKernels;
  double seconds = 0;
  std::map<std::string, double> by_stage;

  void add(const char* stage, double taken) {
    seconds += taken;
    by_stage[stage] += taken;
  }

#define ONELANE_TIMED(stage, Args)                              \
  void stage(const StepRows& rows, const Args& args) override { \
    const auto start = Clock::now();                            \
    inner_.stage(rows, args);                                   \
    add(#stage, seconds_since(start));                          \
  }
  ONELANE_TIMED(embed, EmbedArgs)
  ONELANE_TIMED(mix_streams, MixArgs)
  ONELANE_TIMED(expand_streams, ExpandArgs)
  ONELANE_TIMED(tap, TapArgs)
  ONELANE_TIMED(project_qkv, QkvArgs)
  ONELANE_TIMED(compress, CompressArgs)
  ONELANE_TIMED(index, IndexArgs)
  ONELANE_TIMED(attend, AttendArgs)
  ONELANE_TIMED(commit, CommitArgs)
  ONELANE_TIMED(project_out, ProjectOutArgs)
  ONELANE_TIMED(experts, ExpertsArgs)
  ONELANE_TIMED(engram, EngramArgs)
  ONELANE_TIMED(head, HeadArgs)
  ONELANE_TIMED(main_input, MainInputArgs)
  ONELANE_TIMED(markov, MarkovArgs)
  ONELANE_TIMED(choose, ChooseArgs)
#undef ONELANE_TIMED
};

struct Outcome {
  double tokens_per_second = 0;
  double tokens_per_cpu_second = 0;  // what is left of the figure when other processes share the machine
  double tokens_per_step = 0;        // of one stream
  double step_ms = 0;
  double outside_us = 0;  // per step
  std::map<std::string, double> stage_us;
};

Outcome serve(Engine& engine, TimedKernels& kernels, std::span<const int32_t> text, int streams,
              const Options& options) {
  const EngineStats before = engine.stats();
  const double kernels_before = kernels.seconds;
  kernels.by_stage.clear();
  std::latch done(streams);
  const double cpu_before = cpu_seconds();
  const auto start = Clock::now();
  for (int i = 0; i < streams; ++i) {
    Request request;
    const auto from = text.begin() + static_cast<ptrdiff_t>(i) * options.prompt * 2;
    request.prompt.assign(from, from + options.prompt);
    request.max_tokens = options.tokens;
    request.ignore_eos = true;
    request.sampling.temperature = static_cast<float>(options.temperature_percent) / 100.0f;
    request.sampling.seed = static_cast<uint64_t>(i);
    const auto id = engine.submit(std::move(request), [&](const RequestEvent& event) {
      if (event.finish != FinishReason::kNone) done.count_down();
    });
    ONELANE_CHECK(id, id ? "" : id.error().message.c_str());
  }
  done.wait();
  const double wall = seconds_since(start);
  const EngineStats after = engine.stats();
  const auto steps = static_cast<double>(after.steps - before.steps);
  const double generated = static_cast<double>(streams) * options.tokens;
  Outcome outcome{generated / wall,
                  generated / (cpu_seconds() - cpu_before),
                  generated / steps / streams,
                  wall / steps * 1e3,
                  (wall - (kernels.seconds - kernels_before)) / steps * 1e6,
                  {}};
  for (const auto& [stage, taken] : kernels.by_stage) outcome.stage_us[stage] = taken / steps * 1e6;
  return outcome;
}

int run(const Options& options) {
  auto tokenizer = Tokenizer::load(options.dir + "/tokenizer.json");
  ONELANE_CHECK(tokenizer, options.dir.c_str());
  auto map = compressed_token_map(*tokenizer);
  ONELANE_CHECK(map, "a token map");
  auto loaded = Model::load(options.dir, std::move(map->number));
  ONELANE_CHECK(loaded, loaded ? "" : loaded.error().message.c_str());
  std::string source;
  for (int i = 0; i < 3000; ++i) source += "int value_" + std::to_string(i * 7919 % 1000) + " = read(path);\n";
  const auto text = tokenizer->encode(source);
  ONELANE_CHECK(text && static_cast<int>(text->size()) > 33 * options.prompt, "enough text");

  const auto cpu = make_cpu_kernels(options.threads);
  std::printf("%s, %d prompt tokens, %d generated, temperature %.2f\n", options.dir.c_str(), options.prompt,
              options.tokens, options.temperature_percent / 100.0);
  std::printf("%-8s %8s %12s %8s %12s %8s %14s %10s %14s\n", "drafts", "streams", "tokens/s", "ratio", "tokens/cpu s",
              "ratio", "tokens/step", "ms/step", "outside us");
  struct Setup {
    const char* name;
    std::string schedule;
  };
  for (const Setup& setup : {Setup{"drafts", options.schedule}, Setup{"plain", "0"}}) {
    TimedKernels kernels(*cpu);
    EngineOptions engine_options;
    engine_options.max_model_len = 2048;
    engine_options.prefix_cache = false;
    auto schedule = DraftSchedule::parse(setup.schedule);
    ONELANE_CHECK(schedule, schedule ? "" : schedule.error().message.c_str());
    engine_options.draft_schedule = *std::move(schedule);
    auto engine = Engine::create(**loaded, kernels, engine_options);
    ONELANE_CHECK(engine, engine ? "" : engine.error().message.c_str());
    std::map<int, Outcome> best;
    for (int round = 0; round < options.repeat; ++round) {
      for (const int streams : {1, 4, 16}) {
        if (options.streams != 0 && streams != options.streams) continue;
        const Outcome outcome = serve(**engine, kernels, *text, streams, options);
        if (outcome.tokens_per_second > best[streams].tokens_per_second) best[streams] = outcome;
      }
    }
    for (const auto& [streams, outcome] : best) {
      std::printf("%-8s %8d %12.1f %8.2f %12.1f %8.2f %14.2f %10.2f %14.1f\n", setup.name, streams,
                  outcome.tokens_per_second, outcome.tokens_per_second / best.begin()->second.tokens_per_second,
                  outcome.tokens_per_cpu_second,
                  outcome.tokens_per_cpu_second / best.begin()->second.tokens_per_cpu_second, outcome.tokens_per_step,
                  outcome.step_ms, outcome.outside_us);
      if (options.stages == 0) continue;
      for (const auto& [stage, us] : outcome.stage_us) std::printf("  %-16s %10.1f us\n", stage.c_str(), us);
    }
  }
  return 0;
}

}  // namespace
}  // namespace onelane

int main(int argc, char** argv) {
  onelane::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    int* number = argument == "--tokens"                ? &options.tokens
                  : argument == "--prompt"              ? &options.prompt
                  : argument == "--threads"             ? &options.threads
                  : argument == "--temperature-percent" ? &options.temperature_percent
                  : argument == "--repeat"              ? &options.repeat
                  : argument == "--streams"             ? &options.streams
                  : argument == "--stages"              ? &options.stages
                                                        : nullptr;
    if (argument == "--schedule" && i + 1 < argc) {
      options.schedule = argv[++i];
    } else if (number == nullptr) {
      options.dir = argument;
    } else if (++i < argc) {
      *number = std::max(0, std::atoi(argv[i]));
    }
  }
  return onelane::run(options);
}
