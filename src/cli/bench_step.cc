#include "cli/bench_step.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>

#include "base/format.h"
#include "base/mapped_file.h"
#include "base/program.h"
#include "cli/count_list.h"
#include "cli/receipt_output.h"
#include "cli/step_load.h"
#include "cli/step_profile.h"
#include "cli/step_report.h"
#include "device/plugin.h"
#include "lane/environment.h"
#include "lane/stats.h"

namespace onelane {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
// Device memory beside weights and caches: working memory of the pass and of the kernels, recordings, the driver.
constexpr int64_t kReserve = 4 * kGiB;
constexpr int kWarmSteps = 3;  // as it is, recorded, repeated
constexpr int kCountedSteps = 4;

// What is measured: a step, or with `chunk` a prompt of shape.rows tokens.
struct Cell {
  StepShape shape;
  int chunk = 0;

  std::string name() const {
    return chunk > 0 ? format("prefill of {} tokens", shape.rows)
                     : format("{} rows at context {}", shape.rows, shape.context);
  }
  int sequences(const ModelSpec& spec) const { return chunk > 0 ? 1 : sequences_of(spec, shape); }
  int sequence_pages(const ModelSpec& spec) const {
    return pages_per_sequence(spec, chunk > 0 ? StepShape{1, shape.rows} : shape);
  }
  int pages(const ModelSpec& spec) const { return sequences(spec) * sequence_pages(spec); }
  int step_rows() const { return chunk > 0 ? std::min(chunk, shape.rows) : shape.rows; }
  int last_position() const { return shape.context + shape.rows; }
};

Result<std::vector<Cell>> cells_of(const BenchStepCommand& command) {
  ONELANE_ASSIGN(const auto rows, count_list("--rows", command.rows));
  ONELANE_ASSIGN(const auto contexts, count_list("--context", command.contexts));
  ONELANE_ASSIGN(const auto prompts, count_list("--prefill", command.prefill));
  std::vector<Cell> cells;
  for (const int64_t context : contexts) {
    for (const int64_t count : rows) {
      if (count < 1 || count > 4096) {
        return Error{ErrorCode::kInvalidArgument, format("--rows: {} is not between 1 and 4096", count)};
      }
      if (context > 1 << 24) {
        return Error{ErrorCode::kInvalidArgument, format("--context: {} is more than 16M", context)};
      }
      cells.push_back({{static_cast<int>(count), static_cast<int>(context)}});
    }
  }
  for (const int64_t tokens : prompts) {
    if (tokens < 1 || tokens > 1 << 24) {
      return Error{ErrorCode::kInvalidArgument, format("--prefill: {} is not between 1 and 16M", tokens)};
    }
    cells.push_back({{static_cast<int>(tokens), 0}, command.chunk});
  }
  if (cells.empty())
    return Error{ErrorCode::kInvalidArgument, "nothing to measure: --rows and --context, or --prefill"};
  return cells;
}

// GB/s, read plus written, of copies inside the kernels' memory; nothing where there is no room for it.
std::optional<double> copy_bandwidth(Kernels& kernels) {
  Memory& memory = kernels.memory();
  const int64_t free = memory.available();
  const int64_t bytes = memory.on_host() ? kGiB / 4 : std::max(2 * kGiB, std::min(8 * kGiB, free / 4));
  std::byte* from = memory.allocate(static_cast<size_t>(bytes));
  std::byte* to = from != nullptr ? memory.allocate(static_cast<size_t>(bytes)) : nullptr;
  std::vector<double> rates;
  if (to != nullptr) {
    memory.fill(from, 1, static_cast<size_t>(bytes));
    memory.fill(to, 2, static_cast<size_t>(bytes));
    for (int i = 0; i < 7; ++i) {
      kernels.mark();
      memory.copy(to, from, static_cast<size_t>(bytes));
      kernels.mark();
      rates.push_back(2.0 * static_cast<double>(bytes) / kernels.marks_us().back() / 1e3);
    }
    memory.release(to);
  }
  if (from != nullptr) memory.release(from);
  if (rates.empty()) return {};
  return percentile(rates, 0.5);
}

void describe_device(const std::string& backend, StepReport& report) {
  report.device = "the processors";
  const std::optional<int> device = cuda_device(backend);
  if (!device) return;
  const auto plugin = load_plugin(plugin_folders());
  onelane_plugin_probe probe;
  if (!plugin || plugin->table->probe(&probe) <= *device) return;
  report.device = probe.gpus[*device].name;
  report.device_bytes = probe.gpus[*device].memory_bytes;
}

// What caches take: of a page, and of a sequence besides its pages.
struct CacheBytes {
  int64_t page = 0, sequence = 0;
};
CacheBytes cache_bytes(const ModelSpec& spec) {
  const KvStore one(spec, 1, 1);
  const auto page = static_cast<int64_t>(one.page_bytes());
  return {page, static_cast<int64_t>(one.bytes()) - page};
}

int64_t cell_bytes(const Cell& cell, const ModelSpec& spec, const CacheBytes& bytes) {
  return cell.pages(spec) * bytes.page + cell.sequences(spec) * bytes.sequence;
}

Result<std::unique_ptr<Model>> load_model(const BenchStepCommand& command, const std::vector<Cell>& cells,
                                          Kernels& kernels) {
  SyntheticOptions options = command.synthetic_options;
  options.family = command.synthetic;
  options.seed = command.seed;
  ONELANE_ASSIGN(const ModelSpec spec, synthetic_spec(command.synthetic));
  const CacheBytes bytes = cache_bytes(spec);
  int64_t caches = 0;
  for (const Cell& cell : cells) caches = std::max(caches, cell_bytes(cell, spec, bytes));
  options.reserve_bytes = caches + kReserve;
  std::fprintf(stderr, "filling a synthetic %s ...\n", command.synthetic.c_str());
  return synthetic_model(options, &kernels);
}

// Takes out of `cells` what the model or the memory that is left cannot hold.
void leave_out(std::vector<Cell>& cells, const ModelSpec& spec, const Memory& memory, StepReport& report) {
  const CacheBytes bytes = cache_bytes(spec);
  const int64_t free = memory.available();
  std::erase_if(cells, [&](const Cell& cell) {
    const int64_t needed = cell_bytes(cell, spec, bytes) + kReserve / 2;
    if (cell.last_position() > spec.max_positions) {
      report.skipped.push_back(
          format("{}: the model's max_position_embeddings is {}", cell.name(), spec.max_positions));
    } else if (free >= 0 && needed > free) {
      report.skipped.push_back(format("{}: caches and scratch take {:.1f} GiB, {:.1f} are free", cell.name(),
                                      static_cast<double>(needed) / kGiB, static_cast<double>(free) / kGiB));
    } else {
      return false;
    }
    return true;
  });
}

StepLoad::Sizes sizes_for(const std::vector<Cell>& cells, const ModelSpec& spec) {
  StepLoad::Sizes sizes;
  for (const Cell& cell : cells) {
    sizes.sequences = std::max(sizes.sequences, cell.sequences(spec));
    sizes.pages = std::max(sizes.pages, cell.pages(spec));
    sizes.sequence_pages = std::max(sizes.sequence_pages, cell.sequence_pages(spec));
    sizes.rows = std::max(sizes.rows, cell.step_rows());
    if (cell.chunk == 0) sizes.logit_rows = std::max(sizes.logit_rows, cell.shape.rows);
  }
  return sizes;
}

class CellBench {
 public:
  CellBench(const BenchStepCommand& command, const ModelSpec& spec, StepMeter& meter, StepLoad& load)
      : command_(command), spec_(spec), meter_(meter), load_(load) {}

  StepResult run(const Cell& cell) {
    cell_ = cell;
    StepResult result{.rows = cell.shape.rows,
                      .context = cell.shape.context,
                      .sequences = cell.sequences(spec_),
                      .prefill_chunk = cell.chunk};
    // A prompt is long enough to be timed once a repeat.
    const int steps = cell.chunk > 0 ? 1 : command_.steps;
    const int watched = cell.chunk > 0 ? 3 : command_.steps;
    repeat(StepMeter::Mode::kOff, kWarmSteps);
    for (int i = 0; i < command_.repeats; ++i) {
      const int64_t launched = meter_.launches();
      const auto start = std::chrono::steady_clock::now();
      repeat(StepMeter::Mode::kOff, steps);
      meter_.finish();
      result.whole_ms.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / steps);
      result.launches = (meter_.launches() - launched) / steps;
    }
    repeat(StepMeter::Mode::kParts, 1);
    result.parts = median_entries(repeat(StepMeter::Mode::kParts, watched));
    repeat(StepMeter::Mode::kStages, kWarmSteps);
    result.stages = median_entries(repeat(StepMeter::Mode::kStages, watched));
    add_costs(result.stages, repeat(StepMeter::Mode::kCosts, std::min(steps, kCountedSteps)));
    meter_.set(StepMeter::Mode::kOff);
    if (command_.accept > 0 && cell.chunk == 0) {
      const double tokens = std::min(command_.accept * result.sequences, static_cast<double>(cell.shape.rows));
      result.tokens_per_s = 1e3 * tokens / result.median_ms();
    }
    return result;
  }

  // One step to whoever profiles this process.
  void show(const Cell& cell) {
    cell_ = cell;
    repeat(StepMeter::Mode::kOff, kWarmSteps);
    meter_.profile(true);
    repeat(StepMeter::Mode::kOff, 1);
    meter_.profile(false);
  }

 private:
  std::vector<std::vector<StageEntry>> repeat(StepMeter::Mode mode, int steps) {
    meter_.set(mode);
    std::vector<std::vector<StageEntry>> noted;
    for (int draw = 0; draw < steps; ++draw) {
      if (cell_.chunk > 0) {
        load_.prefill(cell_.shape.rows, cell_.chunk);
      } else {
        load_.step(cell_.shape, draw);
      }
      if (mode != StepMeter::Mode::kOff) noted.push_back(meter_.take());
    }
    return noted;
  }

  const BenchStepCommand& command_;
  const ModelSpec& spec_;
  StepMeter& meter_;
  StepLoad& load_;
  Cell cell_;
};

Result<StepReport> measure(const BenchStepCommand& command, std::vector<Cell> cells) {
  StepReport report{.command = command_line(""),
                    .build = program_build_id(),
                    .backend = command.runtime.backend,
                    .accept = command.accept};
  // The copies go first: afterwards the memory is the model's.
  ONELANE_ASSIGN(std::unique_ptr<Kernels> kernels, make_kernels(command.runtime));
  EnvironmentWatch watch({.gpu = !kernels->memory().on_host()});
  describe_device(command.runtime.backend, report);
  if (!command.profiled) {
    std::fprintf(stderr, "measuring the copy bandwidth ...\n");
    report.copy_gb_s = copy_bandwidth(*kernels);
  }
  std::unique_ptr<Model> model;
  if (command.synthetic.empty()) {
    ONELANE_ASSIGN(Runtime runtime, load_runtime(command.runtime, std::move(kernels)));
    kernels = std::move(runtime.kernels);
    model = std::move(runtime.model);
    report.model = command.runtime.dir;
  } else {
    ONELANE_ASSIGN(model, load_model(command, cells, *kernels));
    report.model =
        format("synthetic {}, routing {}, seed {}", command.synthetic, command.synthetic_options.routing, command.seed);
  }
  const ModelSpec& spec = model->spec;
  report.layers = static_cast<int>(spec.layers.size());
  leave_out(cells, spec, kernels->memory(), report);
  if (cells.empty()) {
    return Error{ErrorCode::kInvalidArgument, "nothing is left to measure: " + report.skipped.front()};
  }
  StepMeter meter(*kernels);
  std::fprintf(stderr, "filling the caches ...\n");
  StepLoad load(*model, meter, sizes_for(cells, spec), command.seed);
  CellBench bench(command, spec, meter, load);
  if (command.profiled) {
    bench.show(cells.front());
    return report;
  }
  for (const Cell& cell : cells) {
    std::fprintf(stderr, "%s ...\n", cell.name().c_str());
    report.results.push_back(bench.run(cell));
  }
  const ReceiptEnvironment environment = watch.stop();
  report.clock_mhz_p5 = environment.clock_mhz_p5;
  report.clock_mhz_p50 = environment.clock_mhz_p50;
  report.throttle = environment.throttle;
  return report;
}

}  // namespace

int run_bench_step(const BenchStepCommand& command) {
  const auto cells = cells_of(command);
  if (!cells) return fail(cells.error()), 2;
  if (command.profile) return run_profile();
  const auto report = measure(command, *cells);
  if (!report) return fail(report.error());
  if (command.profiled) return 0;
  if (command.json == "-") {
    std::cout << step_json(*report) << std::flush;
    return 0;
  }
  std::cout << step_tables(*report) << std::flush;
  if (command.json.empty()) return 0;
  const auto written = write_file(command.json, step_json(*report));
  return written ? 0 : fail(written.error());
}

}  // namespace onelane
