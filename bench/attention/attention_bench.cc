// attention_bench: what one call of the attention library costs on this GPU, as a node of a CUDA graph.
//
// For every shape: warm (records in the cache) and cold (240 MB of other records between two uses), as planned and
// unsplit; beside it what an empty node costs, the bytes that must move, and how long a plain copy would take to move
// them. All in one run, so that the ratios hold whatever the clocks were. docs/attention.md says how to read it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <onelane/attention.h>

#include "attention/receipt.h"
#include "attention/timing.h"
#include "attention/workload.h"
#include "kernels/attention/plan.h"

namespace onelane::bench {
namespace {

constexpr char kUsage[] =
    "attention_bench [--rows 1,2,..] [--widths 128+512,..] [--formats v4,v41,bf16] [--outputs bf16,fp8,fp8g]\n"
    "                [--heads 64] [--baseline FILE.csv] [--json FILE] [--sweep] [--splits N]\n"
    "                [--path combine]\n"
    "  --baseline  CSV with the columns rows,widths,format,us: somebody else's cold times, for a column and a ratio\n"
    "  --json      writes a receipt: device, driver, clocks, every number\n"
    "  --sweep     instead of the table: cold times of every path, split and block size that runs\n"
    "  --splits    of these only so many parts a row\n"
    "  --path      combine: plans for the portable kernels, as on a device without clusters\n";

struct Options {
  std::vector<std::string> rows = {"1", "2", "4", "6", "8", "16", "32", "64", "128"};
  std::vector<std::string> widths = {"128+0", "128+512", "128+1024"};
  std::vector<std::string> formats = {"v4", "v41", "bf16"};
  std::vector<std::string> outputs = {"bf16", "fp8"};
  int heads = 64;
  int splits = 0;  // 0: all
  std::string baseline, json, path;
  bool sweep = false;
};

[[noreturn]] void stop(const std::string& sentence) {
  std::fflush(stdout);
  std::fprintf(stderr, "attention_bench: %s\n", sentence.c_str());
  std::_Exit(1);
}

std::vector<std::string> parts(const std::string& text, char separator) {
  std::vector<std::string> found;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) found.push_back(part);
  return found;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--sweep") {
      options.sweep = true;
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    if (flag == "--rows" && !value.empty()) {
      options.rows = parts(value, ',');
    } else if (flag == "--widths" && !value.empty()) {
      options.widths = parts(value, ',');
    } else if (flag == "--formats" && !value.empty()) {
      options.formats = parts(value, ',');
    } else if (flag == "--outputs" && !value.empty()) {
      options.outputs = parts(value, ',');
    } else if (flag == "--heads" && !value.empty()) {
      options.heads = std::atoi(value.c_str());
    } else if (flag == "--splits" && !value.empty()) {
      options.splits = std::atoi(value.c_str());
    } else if (flag == "--baseline" && !value.empty()) {
      options.baseline = value;
    } else if (flag == "--json" && !value.empty()) {
      options.json = value;
    } else if (flag == "--path" && value == "combine") {
      options.path = value;
    } else {
      std::fputs(kUsage, stderr);
      std::exit(2);
    }
  }
  return options;
}

onelane_attention_shape make_shape(const Options& options, const std::string& rows, const std::string& widths,
                                   const std::string& format, const std::string& output) {
  const std::vector<std::string> two = parts(widths, '+');
  if (two.size() != 2) stop("widths are WINDOW+EXTRA, not \"" + widths + "\"");
  onelane_attention_shape shape{};
  shape.rows = std::atoi(rows.c_str());
  shape.heads = options.heads;
  shape.window_width = std::atoi(two[0].c_str());
  shape.extra_width = std::atoi(two[1].c_str());
  if (shape.rows < 1 || shape.rows > 4096) stop("--rows are 1 to 4096, not \"" + rows + "\"");
  if (shape.window_width < 0 || shape.extra_width < 0 || shape.window_width + shape.extra_width == 0) {
    stop("there is nothing to read for widths " + widths);
  }
  if (format == "v4") {
    shape.window_format = shape.extra_format = ONELANE_KV_V4;
  } else if (format == "v41") {
    shape.window_format = ONELANE_KV_V41_FP8;
    shape.extra_format = ONELANE_KV_V41_FP4;
  } else if (format == "bf16") {
    shape.window_format = shape.extra_format = ONELANE_KV_BF16;
  } else {
    stop("--formats knows v4, v41 and bf16, not \"" + format + "\"");
  }
  if (output != "bf16" && output != "fp8" && output != "fp8g") {
    stop("--outputs knows bf16, fp8 and fp8g, not \"" + output + "\"");
  }
  shape.output = output == "bf16" ? ONELANE_OUT_BF16 : output == "fp8" ? ONELANE_OUT_FP8 : ONELANE_OUT_FP8_GROUPED;
  return shape;
}

// Somebody else's times.
class Baseline {
 public:
  explicit Baseline(const std::string& path) {
    if (path.empty()) return;
    std::ifstream file(path);
    if (!file) stop("cannot read " + path);
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> fields = parts(line, ',');
      if (fields.size() < 4 || line.front() == '#' || fields[0] == "rows") continue;
      entries_.push_back(fields);
    }
    if (entries_.empty()) stop(path + " has no line rows,widths,format,us");
  }
  double us(const onelane_attention_shape& shape) const {
    for (const std::vector<std::string>& entry : entries_) {
      if (std::atoi(entry[0].c_str()) == shape.rows && entry[1] == widths_name(shape) &&
          entry[2] == formats_name(shape)) {
        return std::atof(entry[3].c_str());
      }
    }
    return -1;
  }

 private:
  std::vector<std::vector<std::string>> entries_;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), baseline_(options.baseline) {
    if (onelane_attention_describe_cuda(&device_) != 0) stop(onelane_attention_message());
    if (options.path == "combine") device_.cluster_blocks = 1;
    receipt_.device = read_device();
    // The clocks under load are the ones that tell: after the copies.
    receipt_.empty_node_us = timer_.empty_node_us();
    receipt_.copy_bytes_per_second = timer_.copy_bytes_per_second();
    receipt_.before = read_clocks();
    const DeviceFacts& facts = receipt_.device;
    std::printf("%s, sm_%d, %d multiprocessors, driver %d, runtime %d; SM %u MHz, memory %u MHz, %u C\n",
                facts.name.c_str(), facts.arch, facts.processors, facts.driver, facts.runtime, receipt_.before.sm_mhz,
                receipt_.before.memory_mhz, receipt_.before.temperature_c);
    std::printf("an empty graph node costs %.2f us; a device copy moves %.2f TB/s (read + written)\n\n",
                receipt_.empty_node_us, receipt_.copy_bytes_per_second / 1e12);
  }

  void table() {
    std::printf("%4s %-9s %-5s %-5s %-10s | %7s %7s | %7s %7s | %8s %6s %6s", "rows", "widths", "kv", "out", "plan",
                "warm", "whole", "cold", "whole", "kB", "floor", "x");
    if (!options_.baseline.empty()) std::printf(" | %7s %6s", "theirs", "ours/");
    std::printf("\n");
    each_shape([&](const onelane_attention_shape& shape) { print(measure(shape)); });
    receipt_.after = read_clocks();
    std::printf(
        "\nus of a graph node, median. plan: path splits x heads of a block; whole: unsplit; floor: kB at the "
        "copy's speed;\nx: cold / floor. fp8 includes inverse RoPE and the cast. SM %u MHz at the end.\n",
        receipt_.after.sm_mhz);
    if (!options_.json.empty() && !write_receipt(receipt_, options_.json)) stop("cannot write " + options_.json);
  }

  void sweep() {
    each_shape([&](const onelane_attention_shape& shape) {
      workload_.prepare(shape, timer_);
      const onelane_attention_plan planned = plan(shape, 0);
      std::printf("%d rows, %s %s %s: planned %s %d x %d, %.2f us cold\n", shape.rows, widths_name(shape).c_str(),
                  formats_name(shape).c_str(), output_name(shape.output), path_name(planned.path), planned.splits,
                  planned.block_heads, time(planned, false));
      for (const onelane_attention_path path : {ONELANE_PATH_CLUSTER, ONELANE_PATH_COMBINE}) sweep_path(planned, path);
      std::fflush(stdout);
    });
  }

 private:
  template <class Body>
  void each_shape(const Body& body) {
    for (const std::string& format : options_.formats) {
      for (const std::string& output : options_.outputs) {
        for (const std::string& widths : options_.widths) {
          for (const std::string& rows : options_.rows) body(make_shape(options_, rows, widths, format, output));
        }
      }
    }
  }

  onelane_attention_plan plan(onelane_attention_shape shape, int splits) {
    onelane_attention_plan plan{};
    shape.splits = splits;
    if (onelane_attention_make_plan(&shape, &device_, &plan) != 0) stop(onelane_attention_message());
    return plan;
  }

  // Microseconds of a node, or negative when the library refuses the plan.
  double time(const onelane_attention_plan& plan, bool warm) {
    workload_.reserve_workspace(plan.workspace_bytes);
    // Once outside a capture: the first call of a kernel may load it.
    const onelane_attention_args first = workload_.args(0, warm);
    if (onelane_attention_run_cuda(&plan, &first, timer_.stream()) != 0) {
      complaint_ = onelane_attention_message();
      return -1;
    }
    CHECK_CUDA(cudaStreamSynchronize(timer_.stream()));
    const int nodes = warm ? std::min(workload_.nodes(), 128) : workload_.nodes();
    return timer_.node_us(
        [&] {
          for (int i = 0; i < nodes; ++i) {
            const onelane_attention_args args = workload_.args(i, warm);
            if (onelane_attention_run_cuda(&plan, &args, timer_.stream()) != 0) return false;
          }
          return true;
        },
        nodes, kBudgetMs);
  }

  Line measure(const onelane_attention_shape& shape) {
    workload_.prepare(shape, timer_);
    Line line;
    line.shape = shape;
    line.plan = plan(shape, 0);
    line.sets = workload_.sets();
    line.nodes = workload_.nodes();
    line.bytes = floor_bytes(shape);
    line.floor_us = 1e6 * line.bytes / receipt_.copy_bytes_per_second;
    line.baseline_us = baseline_.us(shape);
    line.warm_us = time(line.plan, true);
    line.cold_us = time(line.plan, false);
    if (line.cold_us < 0) stop("the planned call was refused: " + complaint_);
    if (line.plan.splits > 1) {
      const onelane_attention_plan whole = plan(shape, 1);
      line.warm_unsplit_us = time(whole, true);
      line.cold_unsplit_us = time(whole, false);
    } else {
      line.warm_unsplit_us = line.warm_us;
      line.cold_unsplit_us = line.cold_us;
    }
    receipt_.lines.push_back(line);
    return line;
  }

  void print(const Line& line) const {
    char plan_text[32];
    std::snprintf(plan_text, sizeof(plan_text), "%.7s %dx%d", path_name(line.plan.path), line.plan.splits,
                  line.plan.block_heads);
    std::printf("%4d %-9s %-5s %-5s %-10s | %7.2f %7.2f | %7.2f %7.2f | %8.0f %6.2f %6.1f", line.shape.rows,
                widths_name(line.shape).c_str(), formats_name(line.shape).c_str(), output_name(line.shape.output),
                plan_text, line.warm_us, line.warm_unsplit_us, line.cold_us, line.cold_unsplit_us, line.bytes / 1000,
                line.floor_us, line.cold_us / line.floor_us);
    if (line.baseline_us > 0) std::printf(" | %7.2f %6.3f", line.baseline_us, line.cold_us / line.baseline_us);
    std::printf("\n");
    std::fflush(stdout);
  }

  void sweep_path(onelane_attention_plan plan, onelane_attention_path path) {
    constexpr int kSplits[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32};
    constexpr int kBlockHeads[] = {8, 16, 32, 64, 128};
    plan.path = path;
    std::string text;
    char cell[32];
    for (const int splits : kSplits) {
      if (options_.splits != 0 && splits != options_.splits) continue;
      std::string row;
      bool any = false;
      for (const int block_heads : kBlockHeads) {
        plan.splits = splits;
        plan.block_heads = block_heads;
        plan.shared_bytes = attention::block_shared_bytes(path, block_heads, splits);
        plan.workspace_bytes = attention::workspace_bytes(plan.shape, path, splits);
        const double us = plan.shape.heads % block_heads == 0 ? time(plan, false) : -1;
        if (us < 0) {
          std::snprintf(cell, sizeof(cell), "%8s", "-");
        } else {
          std::snprintf(cell, sizeof(cell), "%8.2f", us);
        }
        row += cell;
        any |= us >= 0;
      }
      std::snprintf(cell, sizeof(cell), "  %-8s%3d", path_name(path), splits);
      if (any) text += cell + row + "\n";
    }
    if (text.empty()) {
      std::printf("  %s: not on this device (%s)\n", path_name(path), complaint_.c_str());
    } else {
      std::printf("  path  splits   h=  8      16      32      64     128\n%s", text.c_str());
    }
  }

  static constexpr double kBudgetMs = 15;

  const Options& options_;
  Baseline baseline_;
  Timer timer_;
  Workload workload_;
  Receipt receipt_;
  onelane_attention_device device_{};
  std::string complaint_;
};

int main_of(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const auto start = std::chrono::steady_clock::now();
  Bench bench(options);
  if (options.sweep) {
    bench.sweep();
  } else {
    bench.table();
  }
  std::printf("%.1f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return 0;
}

}  // namespace
}  // namespace onelane::bench

int main(int argc, char** argv) { return onelane::bench::main_of(argc, argv); }
