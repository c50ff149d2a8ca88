// Memory plan: every size the engine needs, decided before anything is allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "model/model.h"

namespace onelane {

struct EngineSizes {
  int max_sequences = 0;
  int max_model_len = 0;
  int pages = 0;
  int pages_per_slot = 0;
  int step_rows = 0;
  int logit_rows = 0;  // rows of the logits buffer: see logit_rows_needed
  int64_t page_bytes = 0;
  int64_t slot_bytes = 0;  // rings and states of one sequence
  bool keep_boundaries = false;
};

// Most rows of one step that ask for logits: for every number n of decoding sequences their anchors and drafts as deep
// as the schedule lets n go, and one row for each of the others, whose prompts may end. Sized by the rows that can be
// present, so that neither a deep schedule for few nor a shallow one for many breaks it. kScoreRows more serve
// prompt_logprobs.
int logit_rows_needed(const DraftSchedule& schedule, int max_sequences, int block, int step_rows);
inline constexpr int kScoreRows = 32;

// Errors name the option and what would be right.
Result<EngineSizes> plan_sizes(const Model& model, const EngineOptions& options);

// Every byte by what it is for. `workspace_bytes`: of the forward pass. `device`: it has memory of its own.
std::vector<PlannedBytes> plan_memory(const Model& model, const EngineOptions& options, const EngineSizes& sizes,
                                      int64_t workspace_bytes, bool device = false);

// Bytes that can be allocated now: MemAvailable of /proc/meminfo, or what the control group leaves, if that is less;
// -1 when unknown.
int64_t available_memory();

// An error naming the options to lower when the plan's part on the host, or on the device, needs more than `available`;
// -1: unknown. Without the weights: those of the host are mapped, those of a device have been loaded by now.
Result<void> check_memory(const std::vector<PlannedBytes>& plan, int64_t available, bool on_device = false);

// "1.5 GiB".
std::string bytes_text(int64_t bytes);

}  // namespace onelane
