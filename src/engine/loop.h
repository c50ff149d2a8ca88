// Engine::Loop: the engine's thread and everything it owns.
//
// Other threads reach it through the inbox alone; all else belongs to the thread that runs it, so nothing below the
// inbox is locked. One turn: take the inbox, end what was cancelled or is late, bring back what was spilled, admit what
// fits, settle one step. Where kernels work beside the host, the step after it has been asked for by then, whenever it
// follows from the device's own choices (loop_step.cc).
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/buffer.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "engine/residency.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "model/forward.h"
#include "model/step.h"

namespace onelane {

class Engine::Loop {
 public:
  using Clock = Sequence::Clock;

  Loop(const Model& model, Kernels& kernels, const EngineOptions& options, const EngineSizes& sizes);
  ~Loop();  // cancels what runs
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Before start(), on the caller's thread.
  Result<void> open_cache();
  Result<void> self_test();
  void start();

  // Any thread.
  Result<RequestId> submit(Request request, EventSink sink);
  void cancel(RequestId id);
  void drain();
  void reset_prefix_cache();
  bool idle() const;
  EngineStats stats() const;
  const EngineSizes& sizes() const { return sizes_; }
  int64_t bytes() const;  // allocated

  std::vector<PlannedBytes> plan;

 private:
  using Owned = std::unique_ptr<Sequence>;

  // A sequence's rows in a step, and where its logits begin.
  struct Part {
    Sequence* sequence = nullptr;  // null: it has ended, and nobody wants to know
    int rows = 0;
    int first_logits = 0;
    int first_draft = -1;  // number of its first draft on the device (ForwardPass::chain); -1: the host has chosen them
  };
  // A step that was asked for and is not settled.
  struct Flight {
    std::vector<Part> parts;
    bool seeds = false;  // the drafter gets its rows
  };

  Result<void> check(const Request& request) const;

  // -- loop.cc: requests come and go
  void run();
  bool turn();  // false: stopping
  void cancel_and_expire(const std::vector<RequestId>& cancelled);
  void restore_spilled();
  void admit_waiting();
  // Ends a sequence of any stage and frees what it holds; sweep() does the rest.
  void retire(Sequence& sequence, FinishReason reason, std::string error = {});
  bool under_way() const { return !flight_.parts.empty(); }
  void sweep();  // takes out what has ended and tells the sinks; sorts out what was spilled
  void publish();
  void fail_running(const std::string& what);

  // -- loop_step.cc: one step
  void step();
  // Plans a step of all that runs and asks for it. False when nobody found room for a row.
  bool launch();
  // Makes room for `tokens` tokens, at the expense of younger sequences; false when `sequence` itself must wait (then
  // it may have been spilled).
  bool make_room(Sequence& sequence, int tokens);
  void plan_drafts();
  // Drafts that are of use to `sequence` when it has `ahead` more tokens than now; negative: not even a row is.
  int useful_drafts(const Sequence& sequence, int depth, int ahead);
  // Whether the draft rings hold the whole window that the next block looks at.
  bool may_draft(const Sequence& sequence);
  void draft_blocks(std::span<Part> parts);
  bool drafts_stay(Sequence& sequence) const;
  void refer_to_drafts(const Part& part);
  void plan_prompts();
  void add_rows();
  void run_target(const Flight& flight);
  void settle();
  // Chooses the token after the `row`-th row of logits.
  Result<Decision> decide(Sequence& sequence, int row);
  Result<void> settle_decode(const Part& part);
  Result<void> settle_prompt(const Part& part);

  // -- loop_ahead.cc: the step after the one under way, before that one is read
  // Whether the device alone decides about it. Takes the pages that it needs.
  bool may_follow();
  void follow();

  Sequence* youngest(const Sequence& other_than);
  std::span<float> logits(int row, int count = 1);

  const Model& model_;
  const ModelSpec& spec_;
  const EngineOptions options_;
  const EngineSizes sizes_;
  const int block_;  // drafts of a block; 0: no drafter, or a schedule without drafts
  Residency residency_;
  ForwardPass forward_;
  Buffer logits_buffer_;  // [sizes_.logit_rows, vocab]

  // The loop's own.
  std::deque<Owned> waiting_;   // by arrival
  std::deque<Owned> spilled_;   // by arrival
  std::vector<Owned> running_;  // by arrival
  CostModel cost_;
  EngineStats counters_;

  Flight flight_;              // the step under way
  Flight following_;           // the step behind it
  Clock::time_point settled_;  // when the step before it was, or it was begun

  // Of the step that is being put together.
  Step step_;
  std::vector<int32_t> logit_rows_;
  std::vector<int32_t> row_tokens_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  std::vector<Owned> inbox_;
  std::vector<RequestId> cancels_;
  RequestId next_id_ = 1;
  int in_flight_ = 0;
  bool draining_ = false;
  bool stopping_ = false;
  bool reset_cache_ = false;
  EngineStats published_;
  Clock::time_point last_progress_ = Clock::now();

  std::thread thread_;
};

}  // namespace onelane
