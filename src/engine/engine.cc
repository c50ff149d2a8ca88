#include "engine/engine.h"

#include "base/format.h"
#include "base/log.h"
#include "engine/loop.h"
#include "engine/memory_plan.h"

namespace onelane {
namespace {

// Of the forward pass, measured on those of one and of two rows: all but a constant part of its memory is per row. What
// depends on the number of pages is the candidates' bits.
int64_t workspace_bytes(const Model& model, Kernels& kernels, const EngineSizes& sizes) {
  KvStore store(model.spec, 1, 0);
  const auto bytes = [&](int rows) { return static_cast<int64_t>(ForwardPass(model, kernels, store, rows).bytes()); };
  const int64_t one_row = bytes(1);
  int64_t per_row = bytes(2) - one_row;
  const int64_t constant = one_row - per_row;
  if (model.spec.candidate.source_layer >= 0) {
    const int64_t entries = int64_t{sizes.pages} * kPageTokens;
    const int64_t blocks = (entries + model.spec.candidate.block_size - 1) / model.spec.candidate.block_size;
    per_row += (blocks + 31) / 32 * static_cast<int64_t>(sizeof(uint32_t));
  }
  return constant + per_row * sizes.step_rows;
}

int64_t planned_bytes(const std::vector<PlannedBytes>& plan) {
  int64_t total = 0;
  for (const PlannedBytes& line : plan) total += line.at_once ? line.bytes : 0;
  return total;
}

void warn_of_depth(const Model& model, const DraftSchedule& schedule, int max_sequences) {
  const int block = model.has_drafter() ? model.spec.dspark.block_size : 0;
  int deepest = 0;
  for (int n = 1; n <= max_sequences; ++n) deepest = std::max(deepest, schedule.depth(n));
  if (block > 0 && deepest > block) {
    log_warning("the draft schedule {} asks for {} drafts; the model makes {} and no more are used", schedule.text(),
                deepest, block);
  }
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const Model& model, Kernels& kernels, const EngineOptions& options) {
  ONELANE_ASSIGN(const EngineSizes sizes, plan_sizes(model, options));
  const bool device = !kernels.memory().on_host();
  const auto plan = plan_memory(model, options, sizes, workspace_bytes(model, kernels, sizes), device);
  ONELANE_TRY(check_memory(plan, available_memory()));
  if (device) ONELANE_TRY(check_memory(plan, kernels.memory().available(), true));
  warn_of_depth(model, options.draft_schedule, options.max_sequences);
  auto loop = std::make_unique<Loop>(model, kernels, options, sizes);
  loop->plan = plan;
  if (loop->bytes() != planned_bytes(plan)) {
    return Error{ErrorCode::kCorrupt,
                 format("memory plan: {} bytes are allocated and {} were planned", loop->bytes(), planned_bytes(plan))};
  }
  ONELANE_TRY(loop->self_test());
  ONELANE_TRY(loop->open_cache());
  loop->start();
  return std::unique_ptr<Engine>(new Engine(std::move(loop)));
}

Engine::Engine(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Engine::~Engine() = default;

Result<RequestId> Engine::submit(Request request, EventSink sink) {
  return loop_->submit(std::move(request), std::move(sink));
}
void Engine::cancel(RequestId id) { loop_->cancel(id); }
void Engine::drain() { loop_->drain(); }
bool Engine::idle() const { return loop_->idle(); }
EngineStats Engine::stats() const { return loop_->stats(); }
int Engine::max_model_len() const { return loop_->sizes().max_model_len; }
const std::vector<PlannedBytes>& Engine::plan() const { return loop_->plan; }
void Engine::reset_prefix_cache() { loop_->reset_prefix_cache(); }

}  // namespace onelane
