// See lanes.h.
#include "cuda/lanes.h"

#include <utility>

namespace onelane::cuda {
namespace {

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
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
    : compress_(main, calls), index_(main, calls), input_(make_event()), low_(make_event()), lists_(make_event()) {}

Lanes::~Lanes() {
  for (const cudaEvent_t event : {input_, low_, lists_}) cudaEventDestroy(event);
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
  x_ = qr_ = nullptr;
  records_ = listed_ = nullptr;
}

Stage Lanes::project_qkv(const Stage& main, const QkvArgs& args) {
  if (main.rows.count > kMostRecordedRows) return main;
  x_ = args.x;
  qr_ = args.wq_a ? args.qr : nullptr;
  records_ = args.kv.base;
  if (!recording_) return main;
  check(cudaEventRecord(input_, main.stream), "cudaEventRecord");
  Stage stage = main;
  stage.reached = low_;
  return stage;
}

Stage Lanes::compress(const Stage& main, const CompressArgs& args) {
  if (x_ == nullptr || args.x != x_ || compress_.is_open() || index_.is_open()) {
    join(main);
    return main;
  }
  return compress_.leave(main, input_);
}

Stage Lanes::index(const Stage& main, const IndexArgs& args) {
  if (qr_ == nullptr || args.x != x_ || args.qr != qr_ || index_.is_open()) {
    join(main);
    return main;
  }
  Stage stage = index_.leave(main, low_);
  if (recording_ && compress_.is_open()) stage.awaited = compress_.close();
  return stage;
}

Lanes::Attend Lanes::attend(const Stage& main, const AttendArgs& args) {
  if (records_ == nullptr || args.kv.base != records_ || qr_ == nullptr) {
    join(main);
    return {main, main};
  }
  Attend stages = {index_.is_open() ? index_.go_on(main) : index_.leave(main, low_), main};
  join(main, compress_);
  index_.close();
  if (recording_) stages.lists.reached = stages.attention.awaited = lists_;
  x_ = qr_ = nullptr;
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
