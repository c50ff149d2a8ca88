// See lanes.h.
#include "cuda/lanes.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace onelane::cuda {
namespace {

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}

const void* products_of(const SideProduct& side) {
  return side.exact != nullptr ? static_cast<const void*>(side.exact) : side.rounded;
}

}  // namespace

Lane::Lane(cudaStream_t main, HostCalls& calls) : end_(make_event()), workspace_(main, calls) {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

Lane::~Lane() {
  cudaEventDestroy(end_);
  cudaStreamDestroy(stream_);
}

void Lane::record(bool on) {
  if (on) workspace_.reset();  // memory outgrown by now cannot be given back while something is recorded
  recording_ = on;
  has_left_ = open_ = false;
}

Stage Lane::leave(const Stage& main, cudaEvent_t after) {
  workspace_.reset();
  open_ = true;
  if (recording_) {
    // What the lane did before was joined.
    if (has_left_) {
      check(cudaStreamUpdateCaptureDependencies(stream_, nullptr, nullptr, 0, cudaStreamSetCaptureDependencies),
            "cudaStreamUpdateCaptureDependencies");
    }
    has_left_ = true;
    check(cudaStreamWaitEvent(stream_, after), "cudaStreamWaitEvent");
  }
  return go_on(main);
}

Stage Lane::go_on(const Stage& main) {
  Stage stage = main;
  stage.workspace = &workspace_;
  if (recording_) {
    stage.stream = stream_;
    stage.launches = &launches_;
  }
  return stage;
}

cudaEvent_t Lane::close() {
  open_ = false;
  if (recording_) check(cudaEventRecord(end_, stream_), "cudaEventRecord");
  return end_;
}

Lanes::Lanes(cudaStream_t main, HostCalls& calls)
    : compress_(main, calls),
      index_(main, calls),
      input_(make_event()),
      sides_(make_event()),
      low_(make_event()),
      lists_(make_event()) {}

Lanes::~Lanes() {
  for (const cudaEvent_t event : {input_, sides_, low_, lists_}) cudaEventDestroy(event);
}

void Lanes::record(bool on) {
  compress_.record(on);
  index_.record(on);
  recording_ = on;
}

void Lanes::join(const Stage& main, Lane& lane) {
  if (!lane.is_open()) return;
  const cudaEvent_t end = lane.close();
  if (recording_) check(cudaStreamWaitEvent(main.stream, end), "cudaStreamWaitEvent");
}

void Lanes::join(const Stage& main) {
  join(main, compress_);
  join(main, index_);
  pooled_ = nullptr;
  index_queries_ = nullptr;
  records_ = listed_ = nullptr;
}

Lanes::Project Lanes::project_qkv(const Stage& main, const QkvArgs& args) {
  Project stages = {main, main};
  if (main.rows.count > kMostRecordedRows) return stages;
  pooled_ = products_of(args.of_x[0]);
  index_queries_ = args.of_qr.rounded;
  records_ = args.wq_a ? args.kv.base : nullptr;
  if (recording_) {
    check(cudaEventRecord(input_, main.stream), "cudaEventRecord");
    stages.main.reached = low_;
  }
  if (std::any_of(std::begin(args.of_x), std::end(args.of_x), [](const SideProduct& of) { return bool{of.weights}; })) {
    stages.beside = compress_.leave(main, input_);
    if (recording_) stages.beside.reached = sides_;
  }
  return stages;
}

Stage Lanes::compress(const Stage& main, const CompressArgs& args) {
  const void* products = args.ratio == 1 ? static_cast<const void*>(args.main.latent) : args.main.kv;
  if (products != pooled_ || !compress_.is_open() || index_.is_open()) {
    join(main);
    return main;
  }
  return compress_.go_on(main);
}

Stage Lanes::index(const Stage& main, const IndexArgs& args) {
  if (args.queries != index_queries_ || index_.is_open()) {
    join(main);
    return main;
  }
  Stage stage = index_.leave(main, low_);
  if (!compress_.is_open()) return stage;
  const cudaEvent_t keys = compress_.close();
  if (recording_) {
    check(cudaStreamWaitEvent(stage.stream, sides_), "cudaStreamWaitEvent");
    stage.awaited = keys;
  }
  return stage;
}

Lanes::Attend Lanes::attend(const Stage& main, const AttendArgs& args) {
  if (records_ == nullptr || args.kv.base != records_) {
    join(main);
    return {main, main};
  }
  Attend stages = {index_.is_open() ? index_.go_on(main) : index_.leave(main, low_), main};
  join(main, compress_);
  index_.close();
  if (recording_) stages.lists.reached = stages.attention.awaited = lists_;
  pooled_ = nullptr;
  index_queries_ = nullptr;
  listed_ = std::exchange(records_, nullptr);
  return stages;
}

Stage Lanes::commit(const Stage& main, const CommitArgs& args) {
  if (listed_ == nullptr || args.kv.base != listed_ || !recording_) {
    join(main);
    return main;
  }
  listed_ = nullptr;
  return index_.leave(main, lists_);
}

}  // namespace onelane::cuda
