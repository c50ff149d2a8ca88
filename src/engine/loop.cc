#include "engine/loop.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "engine/identity.h"

namespace onelane {
namespace {

// Puts `sequence` where its arrival says.
template <class Container>
void insert_by_arrival(Container& sequences, std::unique_ptr<Sequence> sequence) {
  const auto later = [&](const auto& other) { return other->id > sequence->id; };
  const auto at = std::find_if(sequences.begin(), sequences.end(), later);
  sequences.insert(at, std::move(sequence));
}

}  // namespace

Engine::Loop::Loop(const Model& model, Kernels& kernels, const EngineOptions& options, const EngineSizes& sizes)
    : model_(model),
      spec_(model.spec),
      options_(options),
      sizes_(sizes),
      block_(model.has_drafter() && options.draft_schedule.text() != "0" ? model.spec.dspark.block_size : 0),
      residency_(model.spec,
                 {.slots = sizes.max_sequences,
                  .pages = sizes.pages,
                  .pages_per_slot = sizes.pages_per_slot,
                  .keep_boundaries = sizes.keep_boundaries},
                 kernels.memory()),
      forward_(model, kernels, residency_.store(), sizes.step_rows, sizes.logit_rows),
      logits_buffer_(static_cast<size_t>(sizes.logit_rows) * static_cast<size_t>(model.spec.vocab) * sizeof(float),
                     kernels.shared_memory()) {
  counters_.pages = sizes.pages;
  published_ = counters_;
}

Engine::Loop::~Loop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Result<void> Engine::Loop::open_cache() {
  if (!options_.prefix_cache) return {};
  PrefixCacheOptions cache;
  cache.checkpoint_bytes = options_.checkpoint_bytes > 0 ? options_.checkpoint_bytes : 64 * sizes_.slot_bytes;
  cache.host_bytes = options_.host_kv_bytes;
  cache.disk_dir = options_.disk_kv;
  cache.disk_bytes = options_.disk_kv_bytes;
  // Checkpoints made without draft rings do not serve an engine that drafts.
  if (!options_.disk_kv.empty()) cache.model_id = model_identity(model_) + (block_ > 0 ? "" : "-nodraft");
  ONELANE_ASSIGN(auto opened, PrefixCache::create(residency_.store(), residency_.pool(), std::move(cache)));
  residency_.use(std::move(opened));
  return {};
}

void Engine::Loop::start() {
  thread_ = std::thread([this] { run(); });
}

int64_t Engine::Loop::bytes() const {
  return static_cast<int64_t>(residency_.bytes() + forward_.bytes() + forward_.logit_bytes() + logits_buffer_.size());
}

// -- other threads ---------------------------------------------------------------------------------------------------

Result<void> Engine::Loop::check(const Request& request) const {
  const auto invalid = [](std::string message) { return Error{ErrorCode::kInvalidArgument, std::move(message)}; };
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int limit = sizes_.max_model_len;
  if (prompt == 0) return invalid("the prompt is empty");
  if (prompt > limit) {
    return invalid(format("the prompt has {} tokens; max_model_len is {}", prompt, limit));
  }
  if (request.max_tokens > 0 && prompt + request.max_tokens > limit) {
    return invalid(format("the prompt has {} tokens and max_tokens asks for {}, together {}; max_model_len is {}",
                          prompt, request.max_tokens, prompt + request.max_tokens, limit));
  }
  if (request.max_tokens < 0 && prompt == limit) {
    return invalid(
        format("the prompt has {} tokens and leaves no room for an answer; max_model_len is {}", prompt, limit));
  }
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= spec_.vocab) {
      return invalid(format("prompt: token {} is not in the vocabulary of {}", token, spec_.vocab));
    }
  }
  if (request.logprobs > spec_.vocab || request.prompt_logprobs > spec_.vocab) {
    return invalid(format("logprobs and prompt_logprobs must not exceed the vocabulary of {}", spec_.vocab));
  }
  return check_sampling(request.sampling, spec_.vocab);
}

Result<RequestId> Engine::Loop::submit(Request request, EventSink sink) {
  ONELANE_TRY(check(request));
  const int most_drafts = model_.has_drafter() ? spec_.dspark.block_size : 0;
  if (request.draft_depth > most_drafts && request.draft_depth != kMaxDraftDepth) {
    log_warning("draft_depth {} is more than the {} drafts the model makes; {} are used", request.draft_depth,
                most_drafts, most_drafts);
  }
  const int32_t eos = spec_.tokens.eos;
  auto sequence = std::make_unique<Sequence>(0, std::move(request), std::move(sink), eos, sizes_.max_model_len);
  RequestId id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (draining_ || stopping_) {
      return Error{ErrorCode::kResourceExhausted, "the engine is draining and takes no new requests"};
    }
    if (in_flight_ >= options_.max_sequences + options_.max_waiting) {
      return Error{ErrorCode::kResourceExhausted,
                   format("the queue is full: {} requests run or wait (max_sequences {}, max_waiting {})", in_flight_,
                          options_.max_sequences, options_.max_waiting)};
    }
    if (in_flight_++ == 0) last_progress_ = Clock::now();
    id = next_id_++;
    sequence->id = id;
    inbox_.push_back(std::move(sequence));
  }
  wake_.notify_one();
  return id;
}

void Engine::Loop::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    if (in_flight_ == 0) return;
    cancels_.push_back(id);
  }
  wake_.notify_one();
}

void Engine::Loop::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

void Engine::Loop::reset_prefix_cache() {
  {
    const std::lock_guard lock(mutex_);
    reset_cache_ = true;
  }
  wake_.notify_one();
}

bool Engine::Loop::idle() const {
  const std::lock_guard lock(mutex_);
  return in_flight_ == 0;
}

EngineStats Engine::Loop::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = published_;
  // Not what was published: between the inbox and the end of a turn a request would be in neither count.
  stats.waiting = std::max(0, in_flight_ - stats.running);
  stats.progress_age_seconds =
      in_flight_ == 0 ? 0.0 : std::chrono::duration<double>(Clock::now() - last_progress_).count();
  return stats;
}

// -- the engine's thread ---------------------------------------------------------------------------------------------

void Engine::Loop::run() {
  while (turn()) {
  }
}

bool Engine::Loop::turn() {
  std::vector<Owned> arrived;
  std::vector<RequestId> cancelled;
  bool reset = false;
  bool stop = false;
  {
    std::unique_lock lock(mutex_);
    const bool busy = !running_.empty() || !waiting_.empty() || !spilled_.empty() || under_way();
    if (!busy) {
      wake_.wait(lock, [&] { return stopping_ || reset_cache_ || !inbox_.empty(); });
    }
    arrived.swap(inbox_);
    cancelled.swap(cancels_);
    reset = std::exchange(reset_cache_, false);
    stop = stopping_;
  }
  for (Owned& sequence : arrived) waiting_.push_back(std::move(sequence));
  if (stop) {
    for (const auto& sequence : waiting_) retire(*sequence, FinishReason::kCancelled);
    for (const auto& sequence : spilled_) retire(*sequence, FinishReason::kCancelled);
    for (const auto& sequence : running_) retire(*sequence, FinishReason::kCancelled);
    sweep();
    if (PrefixCache* cache = residency_.cache()) cache->flush();
    return false;
  }
  try {
    if (reset && residency_.cache() != nullptr) residency_.cache()->clear();
    cancel_and_expire(cancelled);
    restore_spilled();
    admit_waiting();
    sweep();
    if (!running_.empty() || under_way()) step();
  } catch (const std::exception& thrown) {
    fail_running(thrown.what());
  }
  sweep();
  publish();
  return true;
}

void Engine::Loop::cancel_and_expire(const std::vector<RequestId>& cancelled) {
  const Clock::time_point now = Clock::now();
  const auto visit = [&](auto& sequences) {
    for (const auto& sequence : sequences) {
      if (std::find(cancelled.begin(), cancelled.end(), sequence->id) != cancelled.end()) {
        retire(*sequence, FinishReason::kCancelled);
      } else if (sequence->overdue(now)) {
        retire(*sequence, FinishReason::kDeadline);
      }
    }
  };
  visit(waiting_);
  visit(spilled_);
  visit(running_);
  sweep();
}

void Engine::Loop::restore_spilled() {
  while (!spilled_.empty()) {
    // A page of growth for everyone, or the newcomer would be the next to go.
    const int spare = running_.empty() ? 0 : static_cast<int>(running_.size()) + 1;
    if (!residency_.restore(*spilled_.front(), spare)) return;
    insert_by_arrival(running_, std::move(spilled_.front()));
    spilled_.pop_front();
  }
}

void Engine::Loop::admit_waiting() {
  if (!spilled_.empty()) return;
  // Pages that prompts in progress have not taken yet are spoken for.
  const auto pages = [](int tokens) { return (tokens + kPageTokens - 1) / kPageTokens; };
  int promised = 0;
  for (const auto& sequence : running_) {
    promised += std::max(0, pages(sequence->prompt_tokens + 1) - static_cast<int>(sequence->pages.size()));
  }
  while (!waiting_.empty() && residency_.has_slot()) {
    Sequence& sequence = *waiting_.front();
    const int needed = std::min(pages(sequence.prompt_tokens + 1), residency_.pages_per_slot());
    if (!running_.empty() && needed > residency_.available() - promised) return;
    residency_.admit(sequence);
    counters_.prompt_tokens += static_cast<uint64_t>(sequence.prompt_tokens);
    counters_.cached_tokens += static_cast<uint64_t>(sequence.stats.cached_tokens);
    if (residency_.cache() != nullptr && !sequence.wants_prompt_logprobs()) {
      counters_.prefix_queries += static_cast<uint64_t>(sequence.prompt_tokens);
      counters_.prefix_hits += static_cast<uint64_t>(sequence.stats.cached_tokens);
    }
    promised += needed - static_cast<int>(sequence.pages.size());
    insert_by_arrival(running_, std::move(waiting_.front()));
    waiting_.pop_front();
    if (sequence.prompt_left() <= 0) retire(sequence, FinishReason::kLength);  // nothing to score
  }
}

void Engine::Loop::retire(Sequence& sequence, FinishReason reason, std::string error) {
  sequence.end(reason, std::move(error));
  // What is under way for it may go on: whatever takes its slot and pages comes after it on the device.
  for (Flight* flight : {&flight_, &following_}) {
    for (Part& part : flight->parts) {
      if (part.sequence == &sequence) part.sequence = nullptr;
    }
  }
  ++counters_.finished[static_cast<size_t>(sequence.finish())];
  residency_.release(sequence, sequence.finish() != FinishReason::kError);
}

void Engine::Loop::sweep() {
  std::vector<Owned> ended;
  const auto take = [&](auto& sequences) {
    for (Owned& sequence : sequences) {
      if (sequence->ended()) ended.push_back(std::move(sequence));
    }
    std::erase(sequences, nullptr);
  };
  take(waiting_);
  take(spilled_);
  take(running_);
  for (Owned& sequence : running_) {
    if (sequence->stage == Sequence::Stage::kSpilled) insert_by_arrival(spilled_, std::move(sequence));
  }
  std::erase(running_, nullptr);
  if (ended.empty()) return;
  // Whoever hears a last event finds the engine without the request.
  publish();
  {
    const std::lock_guard lock(mutex_);
    in_flight_ -= static_cast<int>(ended.size());
  }
  for (const Owned& sequence : ended) sequence->emit();
}

void Engine::Loop::publish() {
  counters_.running = static_cast<int>(running_.size());
  counters_.waiting = static_cast<int>(waiting_.size() + spilled_.size());
  counters_.pages_used = residency_.used();
  counters_.pages_cached = residency_.cached();
  counters_.host_kv_bytes = 0;
  if (const PrefixCache* cache = residency_.cache()) {
    const PrefixCacheStats stats = cache->stats();
    counters_.host_kv_bytes = stats.host_bytes;
    counters_.disk_kv_bytes = stats.disk_bytes;
  }
  for (const auto& sequence : spilled_) counters_.host_kv_bytes += static_cast<int64_t>(sequence->spilled.bytes());
  const std::lock_guard lock(mutex_);
  published_ = counters_;
  last_progress_ = Clock::now();
}

void Engine::Loop::fail_running(const std::string& what) {
  log_error("a step failed: {}; {} requests end with it", what, running_.size());
  for (const auto& sequence : running_) {
    if (!sequence->ended()) retire(*sequence, FinishReason::kError, "the step failed: " + what);
  }
  flight_.parts.clear();
  following_.parts.clear();
  forward_.abandon();
}

}  // namespace onelane
