// The choice is the argmin of an explicit cost, over a few dozen candidates:
//
// - blocks = rows * heads / block_heads * splits
// - waves = ceil(blocks / places); places: blocks that run at once; clusters start as a whole and count as one
// - chunks = ceil(ceil(entries / splits) / chunk_entries)
// - block_us = fixed + entries / splits * entry + (chunks - 1) * chunk + (splits > 1 ? split : 0)
// - full_us = waves * block_us: every row is as long as its lists are wide
// - cost_us = full_us + straggler weight * block_us: one row is, the others are short, and it alone is waited for
//
// Occupancy alone picks one part for many rows, since they fill the chip; when one of them then walks thousands of
// entries beside rows of a few hundred, all wait for its block. Lengths are not known to a plan, widths are: only wide
// lists can be that uneven.
#include "kernels/attention/plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/attention/message.h"

namespace onelane::attention {
namespace {

constexpr int kMaxRows = 1 << 20;
constexpr int kMaxThreads = 1024;
constexpr int kEntriesPerPart = 16;  // a part of fewer is all fixed cost
constexpr int kHeadsOfCpuBlock = 4;

// Lists up to this width are walked in a few chunks: there is no straggler to speak of.
constexpr int kEvenEntries = 1152;
constexpr double kStragglerWeight = 0.5;

// The constants, per path. Ties go to more heads a block.
constexpr BlockCost kClusterCosts[] = {
    {.block_heads = 64, .wide = true, .chunk_entries = 64, .fixed_us = 9.1, .split_us = 2.5, .chunk_us = 2.6},
    {.block_heads = 32, .wide = true, .chunk_entries = 64, .fixed_us = 7.2, .split_us = 0.9, .chunk_us = 2.7},
    {.block_heads = 32, .chunk_entries = 112, .fixed_us = 5.4, .split_us = 1.2, .entry_us = 0.035},
    {.block_heads = 16, .chunk_entries = 160, .fixed_us = 4.8, .split_us = 0.9, .entry_us = 0.029, .chunk_us = 2.5},
    {.block_heads = 8, .chunk_entries = 160, .fixed_us = 3.4, .split_us = 1.5, .entry_us = 0.026, .chunk_us = 2}};
constexpr BlockCost kCombineCosts[] = {
    {.block_heads = 32, .chunk_entries = 32, .fixed_us = 2.5, .split_us = 3, .entry_us = 0.03, .chunk_us = 0},
    {.block_heads = 16, .chunk_entries = 32, .fixed_us = 2.5, .split_us = 2.5, .entry_us = 0.021, .chunk_us = 0},
    {.block_heads = 8, .chunk_entries = 32, .fixed_us = 2.5, .split_us = 2.2, .entry_us = 0.017, .chunk_us = 0}};

std::span<const BlockCost> costs_of(onelane_attention_path path) {
  if (path == ONELANE_PATH_CLUSTER) return kClusterCosts;
  return kCombineCosts;
}

// Numbers of parts that a path has kernels for.
constexpr int kClusterSplits[] = {1, 2, 3, 4, 5, 6, 7, 8};
constexpr int kCombineSplits[] = {1, 2, 4, 8, 16, 32};

std::span<const int> splits_of(onelane_attention_path path) {
  if (path == ONELANE_PATH_CLUSTER) return kClusterSplits;
  return kCombineSplits;
}

// Clusters of so many blocks that run at once.
int places_of(const onelane_attention_device& device, int cluster_blocks) {
  const int known = device.cluster_places[cluster_blocks - 1];
  return known > 0 ? known : std::max(1, device.processors / cluster_blocks);
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The most parts that may be tried: a cluster must fit the device, and every part needs something to do.
int most_splits(const onelane_attention_shape& shape, const onelane_attention_device& device,
                onelane_attention_path path) {
  int most = std::max(1, entries_of(shape) / kEntriesPerPart);
  if (path == ONELANE_PATH_CLUSTER) most = std::min({most, device.cluster_blocks, device.processors});
  if (shape.splits > 0) most = std::min(most, shape.splits);
  return most;
}

// An enum of a C caller may hold anything; to read it as an enum would be undefined.
template <class Enum>
int code_of(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int code;
  std::memcpy(&code, &value, sizeof(code));
  return code;
}

Result<void> check_list(const char* name, int32_t width, int format) {
  if (width < 0) ONELANE_ATTENTION_REFUSE("%s_width is %d; it must not be negative", name, width);
  if (format < ONELANE_KV_BF16 || format > ONELANE_KV_V41_FP4) {
    ONELANE_ATTENTION_REFUSE("%s_format is %d; an onelane_kv_format (0 to 3) is needed", name, format);
  }
  return {};
}

// Best candidate of a path; false when not one fits the device.
bool choose(const onelane_attention_shape& shape, const onelane_attention_device& device, onelane_attention_path path,
            Candidate& best) {
  const int most = most_splits(shape, device, path);
  int largest = 1;
  for (const int splits : splits_of(path)) {
    if (splits <= most) largest = splits;
  }
  double least = std::numeric_limits<double>::infinity();
  bool found = false;
  for (const int splits : splits_of(path)) {
    if (splits > largest || (shape.splits > 0 && splits != largest)) continue;  // a wish is granted as far as possible
    for (const BlockCost& costs : costs_of(path)) {
      const int block_heads = costs.block_heads;
      if (shape.heads % block_heads != 0) continue;
      if (path == ONELANE_PATH_CLUSTER && costs.wide != is_wide(shape, block_heads, splits)) continue;
      if (block_shared_bytes(path, block_heads, splits) > device.shared_bytes) continue;
      const double cost = estimate(shape, device, path, {splits, block_heads}).cost_us;
      if (cost >= least) continue;
      least = cost;
      best = {splits, block_heads};
      found = true;
    }
  }
  return found;
}

}  // namespace

int entries_of(const onelane_attention_shape& shape) { return shape.window_width + shape.extra_width; }

size_t workspace_bytes(const onelane_attention_shape& shape, onelane_attention_path path, int splits) {
  if (path != ONELANE_PATH_COMBINE || splits <= 1) return 0;
  const size_t parts = static_cast<size_t>(shape.rows) * static_cast<size_t>(splits) * static_cast<size_t>(shape.heads);
  return parts * (ONELANE_ATTENTION_DIM + 2) * sizeof(float);
}

ListFormats formats_of(const onelane_attention_shape& shape) {
  const bool has_window = shape.window_width > 0;
  const bool has_extra = shape.extra_width > 0;
  if (!has_window && !has_extra) return {ONELANE_KV_V41_FP8, ONELANE_KV_V41_FP8};
  if (!has_extra) return {shape.window_format, shape.window_format};
  if (has_window) return {shape.window_format, shape.extra_format};
  // e2m1 records come with a window of e4m3.
  return {shape.extra_format == ONELANE_KV_V41_FP4 ? ONELANE_KV_V41_FP8 : shape.extra_format, shape.extra_format};
}

bool cluster_takes(const ListFormats& formats) {
  if (formats.window == formats.extra) return formats.window != ONELANE_KV_V41_FP4;
  return formats.window == ONELANE_KV_V41_FP8 && formats.extra == ONELANE_KV_V41_FP4;
}

Estimate estimate(const onelane_attention_shape& shape, const onelane_attention_device& device,
                  onelane_attention_path path, const Candidate& candidate) {
  const std::span<const BlockCost> costs = costs_of(path);
  const int splits = candidate.splits;
  const bool wide = path == ONELANE_PATH_CLUSTER && is_wide(shape, candidate.block_heads, splits);
  const BlockCost& cost = *std::find_if(costs.begin(), costs.end() - 1, [&](const BlockCost& each) {
    return each.block_heads == candidate.block_heads && each.wide == wide;
  });
  const int together = path == ONELANE_PATH_CLUSTER ? splits : 1;
  const double units = static_cast<double>(shape.rows) * (shape.heads / candidate.block_heads) * (splits / together);
  const double waves = std::ceil(units / places_of(device, together));
  const int entries = ceil_div(entries_of(shape), splits);
  const double block = cost.fixed_us + (splits > 1 ? cost.split_us : 0) + entries * cost.entry_us +
                       std::max(0, ceil_div(entries, cost.chunk_entries) - 1) * cost.chunk_us;
  const double straggler = entries_of(shape) > kEvenEntries ? kStragglerWeight * block : 0.0;
  return {block, waves * block, waves * block + straggler};
}

Result<void> check_shape(const onelane_attention_shape& shape) {
  if (shape.rows < 1 || shape.rows > kMaxRows) {
    ONELANE_ATTENTION_REFUSE("rows is %d; 1 to %d are possible", shape.rows, kMaxRows);
  }
  constexpr int kHeads[] = {8, 16, 32, 64, 128};
  if (std::find(std::begin(kHeads), std::end(kHeads), shape.heads) == std::end(kHeads)) {
    ONELANE_ATTENTION_REFUSE("heads is %d; 8, 16, 32, 64 or 128 are possible", shape.heads);
  }
  ONELANE_TRY(check_list("window", shape.window_width, code_of(shape.window_format)));
  ONELANE_TRY(check_list("extra", shape.extra_width, code_of(shape.extra_format)));
  const int64_t entries = int64_t{shape.window_width} + shape.extra_width;
  if (entries > ONELANE_ATTENTION_MAX_ENTRIES) {
    ONELANE_ATTENTION_REFUSE("window_width + extra_width is %lld; at most %d", static_cast<long long>(entries),
                             ONELANE_ATTENTION_MAX_ENTRIES);
  }
  const int output = code_of(shape.output);
  if (output < ONELANE_OUT_BF16 || output > ONELANE_OUT_FP8_GROUPED) {
    ONELANE_ATTENTION_REFUSE("output is %d; an onelane_attention_output (0 to 2) is needed", output);
  }
  if (shape.splits < 0) ONELANE_ATTENTION_REFUSE("splits is %d; 0 (chosen) or the most parts of a row", shape.splits);
  return {};
}

Result<void> check_device(const onelane_attention_device& device) {
  if (device.arch < 0) ONELANE_ATTENTION_REFUSE("device.arch is %d; 0 (CPU) or 10 * major + minor", device.arch);
  if (device.arch != 0 && device.arch < 80) {
    return error(ErrorCode::kUnsupported, "device.arch is %d; the kernels need compute capability 8.0 or newer",
                 device.arch);
  }
  if (device.processors < 1) ONELANE_ATTENTION_REFUSE("device.processors is %d; at least 1", device.processors);
  if (device.arch == 0) {
    if (device.processors <= kMaxThreads) return {};
    ONELANE_ATTENTION_REFUSE("device.processors is %d; a CPU run takes at most %d threads", device.processors,
                             kMaxThreads);
  }
  if (device.shared_bytes < 0) ONELANE_ATTENTION_REFUSE("device.shared_bytes is %d; not negative", device.shared_bytes);
  if (device.cluster_blocks < 1) {
    ONELANE_ATTENTION_REFUSE("device.cluster_blocks is %d; at least 1 (1: no clusters)", device.cluster_blocks);
  }
  for (const int32_t places : device.cluster_places) {
    if (places < 0) ONELANE_ATTENTION_REFUSE("device.cluster_places has %d; not negative", places);
  }
  return {};
}

Result<onelane_attention_plan> make_plan(const onelane_attention_shape& shape, const onelane_attention_device& device) {
  ONELANE_TRY(check_shape(shape));
  ONELANE_TRY(check_device(device));
  onelane_attention_plan plan;
  std::memset(&plan, 0, sizeof(plan));  // plans compare as bytes
  plan.shape = shape;
  plan.device = device;
  if (device.arch == 0) {
    plan.path = ONELANE_PATH_CPU;
    plan.splits = 1;
    plan.block_heads = kHeadsOfCpuBlock;
    return plan;
  }
  Candidate best;
  const bool clusters = device.arch == 90 && device.cluster_blocks >= 2 && cluster_takes(formats_of(shape));
  if (clusters && choose(shape, device, ONELANE_PATH_CLUSTER, best)) {
    plan.path = ONELANE_PATH_CLUSTER;
  } else if (choose(shape, device, ONELANE_PATH_COMBINE, best)) {
    plan.path = ONELANE_PATH_COMBINE;
  } else {
    return error(ErrorCode::kUnsupported, "device.shared_bytes is %d; a block needs at least %d", device.shared_bytes,
                 block_shared_bytes(ONELANE_PATH_COMBINE, 8, 1));
  }
  plan.splits = best.splits;
  plan.block_heads = best.block_heads;
  plan.shared_bytes = block_shared_bytes(plan.path, best.block_heads, best.splits);
  plan.workspace_bytes = workspace_bytes(shape, plan.path, best.splits);
  return plan;
}

}  // namespace onelane::attention
