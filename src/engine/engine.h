// Engine: many requests on one model, on a thread of its own.
//
// Continuous batching: every step holds the decode or verify rows of all running requests and a bounded chunk of prompt
// rows. Tokens of a request depend on the request alone, not on what runs beside it, on cache hits, chunking or draft
// depth (kernels.h, batch invariance).
//
// Memory is planned and allocated once, in create(). A request that can never fit is refused with the numbers; when
// pages run short the youngest request is spilled to host memory and goes on later from where it was.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "engine/draft_schedule.h"
#include "engine/request.h"
#include "kernels/kernels.h"
#include "model/model.h"

namespace onelane {

struct EngineOptions {
  int max_sequences = 16;     // running at once
  int max_waiting = 1024;     // queued behind them; more are refused
  int max_model_len = 0;      // tokens of one sequence; 0: as many as the model and the pages take
  int64_t kv_bytes = 0;       // pages; 0: one sequence of max_model_len, at least 4096 tokens for each of max_sequences
  int64_t host_kv_bytes = 0;  // pages and checkpoints that left the pool; 0: none are kept
  std::string disk_kv;        // directory of the disk tier; empty: none
  int64_t disk_kv_bytes = int64_t{16} << 30;
  int64_t checkpoint_bytes = 0;  // memory for checkpoints of the prefix cache; 0: 64 of them
  bool prefix_cache = true;
  int step_rows = 512;      // most rows of a step, and most prompt rows of one
  double max_gap_ms = 200;  // prompt rows of a step are limited so that running streams wait about this long at most
  DraftSchedule draft_schedule;
  float draft_confidence = 0;  // drafts stop before the first whose chance of survival is below this; 0: never
};

// One line of the memory plan.
struct PlannedBytes {
  std::string what;
  int64_t bytes = 0;
  bool at_once = true;     // allocated by create(); otherwise mapped, or taken as it is needed, up to so much
  bool on_device = false;  // of the kernels, when that is not the host's
};

struct EngineStats {
  int running = 0;  // in prefill or decode
  int waiting = 0;  // queued or spilled
  int pages = 0;
  int pages_used = 0;    // held by running requests
  int pages_cached = 0;  // held by the prefix cache alone
  int64_t host_kv_bytes = 0;
  int64_t disk_kv_bytes = 0;
  uint64_t steps = 0;
  uint64_t steps_ahead = 0;  // of those, asked for before the step ahead of them was read (some for nobody any more)
  double step_seconds = 0;   // summed over steps
  double last_step_ms = 0;
  double progress_age_seconds = 0;  // since a step finished or the engine was last idle
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;  // of prompt_tokens
  uint64_t generated_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t prefix_queries = 0;  // prompt tokens looked up
  uint64_t prefix_hits = 0;     // of those, found
  uint64_t draft_blocks = 0;
  uint64_t drafted_tokens = 0;
  std::array<uint64_t, kMaxDraftDepth> accepted{};  // by position in the block
  std::array<uint64_t, 6> finished{};               // by FinishReason
};

class Engine {
 public:
  // `model` and `kernels` must outlive the engine. Runs a self-test (a prompt chunk, a decode and a verify step) before
  // it returns. Errors: options that contradict each other or the model, memory that does not suffice, a disk tier that
  // cannot be opened; each names the option.
  static Result<std::unique_ptr<Engine>> create(const Model& model, Kernels& kernels, const EngineOptions& options);
  ~Engine();  // cancels what runs

  // Takes a request. Refused: a prompt that is empty, too long or not of the vocabulary; parameters out of range; more
  // pages than there are; a full queue (kResourceExhausted); a draining engine (kResourceExhausted). Thread-safe.
  Result<RequestId> submit(Request request, EventSink sink);
  // Ends a request within a step; its last event says kCancelled. Unknown ids are ignored. Thread-safe.
  void cancel(RequestId id);
  // No new requests from now on; those taken run to their end. Thread-safe.
  void drain();
  bool idle() const;

  EngineStats stats() const;  // thread-safe
  int max_model_len() const;
  const std::vector<PlannedBytes>& plan() const;
  // Forgets everything cached. Thread-safe.
  void reset_prefix_cache();

 private:
  class Loop;
  explicit Engine(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace onelane
