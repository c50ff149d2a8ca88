#include "engine/memory_plan.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "base/format.h"
#include "checkpoint/footprint.h"
#include "model/kv_store.h"

namespace onelane {
namespace {

constexpr int64_t kShortContext = 4096;  // tokens that every sequence has pages for by default
constexpr std::string_view kMapped = "weights (mapped from the checkpoint)";
constexpr std::string_view kLoaded = "weights";

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

int64_t pages_for(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

int64_t read_number(const char* path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value ? value : -1;
}

}  // namespace

int logit_rows_needed(const DraftSchedule& schedule, int max_sequences, int block, int step_rows) {
  int most = 0;
  for (int n = 0; n <= max_sequences; ++n) {
    const int depth = n > 0 ? std::min(schedule.depth(n), block) : 0;
    most = std::max(most, n * (1 + depth) + max_sequences - n);
  }
  return std::max(block, std::min(step_rows, most + kScoreRows));
}

Result<EngineSizes> plan_sizes(const Model& model, const EngineOptions& options) {
  const ModelSpec& spec = model.spec;
  const int block = model.has_drafter() ? spec.dspark.block_size : 0;
  if (options.max_sequences < 1)
    return invalid(format("max_sequences must be at least 1, not {}", options.max_sequences));
  if (options.max_waiting < 0) return invalid(format("max_waiting must be at least 0, not {}", options.max_waiting));
  const int least_rows = std::max(options.max_sequences, block + 1);
  if (options.step_rows < least_rows) {
    return invalid(format("step_rows must be at least {}, for max_sequences of {} and blocks of {} drafts, not {}",
                          least_rows, options.max_sequences, block, options.step_rows));
  }
  if (options.max_model_len < 0 || options.max_model_len > spec.max_positions) {
    return invalid(format("max_model_len must lie in 1..{}, the model's max_position_embeddings, or be 0, not {}",
                          spec.max_positions, options.max_model_len));
  }
  if (!(options.max_gap_ms > 0))
    return invalid(format("max_gap_ms must be greater than 0, not {}", options.max_gap_ms));
  if (!(options.draft_confidence >= 0 && options.draft_confidence <= 1)) {
    return invalid(format("draft_confidence must lie in [0, 1], not {}", options.draft_confidence));
  }
  for (const auto& [name, bytes] : {std::pair{"kv_bytes", options.kv_bytes},
                                    {"host_kv_bytes", options.host_kv_bytes},
                                    {"disk_kv_bytes", options.disk_kv_bytes},
                                    {"checkpoint_bytes", options.checkpoint_bytes}}) {
    if (bytes < 0) return invalid(format("{} must not be negative, but is {}", name, bytes));
  }

  const KvStore probe(spec, 1, 0);
  EngineSizes sizes;
  sizes.max_sequences = options.max_sequences;
  sizes.step_rows = options.step_rows;
  sizes.page_bytes = static_cast<int64_t>(probe.page_bytes());
  sizes.slot_bytes = static_cast<int64_t>(probe.bytes());
  sizes.keep_boundaries = options.prefix_cache;
  sizes.logit_rows = logit_rows_needed(options.draft_schedule, options.max_sequences, block, options.step_rows);

  const int64_t longest = options.max_model_len > 0 ? options.max_model_len : spec.max_positions;
  int64_t pages = std::max(pages_for(longest), options.max_sequences * pages_for(std::min(kShortContext, longest)));
  if (options.kv_bytes > 0 && sizes.page_bytes > 0) pages = options.kv_bytes / sizes.page_bytes;
  if (pages < 1 || (options.max_model_len > 0 && pages < pages_for(longest))) {
    const int64_t needed = options.max_model_len > 0 ? pages_for(longest) : 1;
    return invalid(format("kv_bytes of {} hold {} pages of {} tokens; max_model_len of {} takes {} pages, which are {}",
                          options.kv_bytes, pages, kPageTokens, longest, needed, needed * sizes.page_bytes));
  }
  sizes.pages = static_cast<int>(std::min<int64_t>(pages, 1 << 24));
  sizes.max_model_len = static_cast<int>(std::min<int64_t>(longest, int64_t{sizes.pages} * kPageTokens));
  sizes.pages_per_slot = static_cast<int>(pages_for(sizes.max_model_len));
  return sizes;
}

std::vector<PlannedBytes> plan_memory(const Model& model, const EngineOptions& options, const EngineSizes& sizes,
                                      int64_t workspace_bytes, bool device) {
  const int64_t slots = sizes.max_sequences;
  const int64_t logits = int64_t{sizes.logit_rows} * model.spec.vocab * static_cast<int64_t>(sizeof(float));
  std::vector<PlannedBytes> plan = {
      {std::string(device ? kLoaded : kMapped), footprint(model.spec, {}).weights.bytes, false, device},
      {"KV pages (kv_bytes)", sizes.pages * sizes.page_bytes, true, device},
      {"rings and states (max_sequences)", slots * sizes.slot_bytes, true, device},
      {"workspace of a step (step_rows)", workspace_bytes, true, device},
      {"logits (max_sequences)", logits},
      {"page table (max_model_len)", slots * sizes.pages_per_slot * static_cast<int64_t>(sizeof(int32_t))},
  };
  if (device) plan.push_back({"logits (max_sequences)", logits, true, true});
  if (options.prefix_cache) {
    plan.push_back({"states at page boundaries (max_sequences)", slots * sizes.slot_bytes});
    plan.push_back({"checkpoints (checkpoint_bytes)",
                    options.checkpoint_bytes > 0 ? options.checkpoint_bytes : 64 * sizes.slot_bytes, false});
    if (options.host_kv_bytes > 0) plan.push_back({"host tier (host_kv_bytes)", options.host_kv_bytes, false});
  }
  return plan;
}

int64_t available_memory() {
  int64_t available = -1;
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("MemAvailable:")) continue;
    std::istringstream words(line.substr(13));
    int64_t kib = 0;
    if (words >> kib) available = kib * 1024;
  }
  const int64_t limit = read_number("/sys/fs/cgroup/memory.max");  // "max" without a limit
  const int64_t used = read_number("/sys/fs/cgroup/memory.current");
  if (limit >= 0 && used >= 0) {
    const int64_t left = std::max<int64_t>(0, limit - used);
    available = available < 0 ? left : std::min(available, left);
  }
  return available;
}

std::string bytes_text(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? format("{} B", bytes) : format("{:.1f} {}", value, units[unit]);
}

Result<void> check_memory(const std::vector<PlannedBytes>& plan, int64_t available, bool on_device) {
  int64_t total = 0;
  const PlannedBytes* largest = nullptr;
  for (const PlannedBytes& line : plan) {
    if (line.what == kMapped || line.what == kLoaded || line.on_device != on_device) continue;
    total += line.bytes;
    if (largest == nullptr || line.bytes > largest->bytes) largest = &line;
  }
  if (available < 0 || total <= available || largest == nullptr) return {};
  return Error{
      ErrorCode::kResourceExhausted,
      format("{} are needed{} and {} are available; the largest part is {} for {}: lower the option in brackets",
             bytes_text(total), on_device ? " on the device" : "", bytes_text(available), bytes_text(largest->bytes),
             largest->what)};
}

}  // namespace onelane
