// CudaKernels: the stages on one GPU, behind the contract of kernels.h. Stages are enqueued on one stream and return at
// once; what the host gives them (rows, expert tables) is copied to the device here, and nowhere else.
#include "cuda/kernels.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include "base/check.h"
#include "cuda/lanes.h"
#include "cuda/stages.h"
#include "cuda/transfer.h"

namespace onelane::cuda {
namespace {

class CudaKernels final : public Kernels {
 public:
  CudaKernels(int device, cudaStream_t stream, const cudaDeviceProp& properties)
      : device_(device),
        stream_(stream),
        memory_(stream, calls_),
        shared_memory_(calls_),
        upload_(stream, calls_),
        workspace_(stream, calls_),
        pairs_(stream, calls_),
        lanes_(stream, calls_) {
    for (cudaEvent_t& sent : sends_) check(cudaEventCreateWithFlags(&sent, cudaEventDisableTiming), "cudaEventCreate");
    stage_ = {.stream = stream,
              .processors = properties.multiProcessorCount,
              .arch = 10 * properties.major + properties.minor,
              .workspace = &workspace_,
              .pairs = &pairs_,
              .row_angles = &row_angles_,
              .launches = &launches_,
              .calls = &calls_};
  }
  ~CudaKernels() override {
    cudaStreamSynchronize(stream_);
    while (!recordings_.empty()) CudaKernels::forget(recordings_.begin()->first);
    CudaKernels::marks_us();
    for (const cudaEvent_t event : spare_events_) cudaEventDestroy(event);
    for (const cudaEvent_t sent : sends_) cudaEventDestroy(sent);
    for (auto& [experts, table] : tables_) cudaFree(table.on_device);
    cudaStreamDestroy(stream_);
  }

  std::string_view name() const override { return "cuda"; }
  Memory& memory() override { return memory_; }
  Memory& shared_memory() override { return shared_memory_; }

  void begin(const StepRows& rows) override {
    use_device();
    for (int i = 0; i < rows.logit_count; ++i) {
      ONELANE_CHECK(rows.logit_row[i] >= 0 && rows.logit_row[i] < rows.count,
                    "logits of a row that is not in the step");
    }
    int slots = 0;
    for (int i = 0; i < rows.run_count; ++i) slots = std::max(slots, rows.runs[i].slot + 1);
    const auto count = static_cast<size_t>(rows.count);
    const size_t pages = rows.page_table == nullptr ? 0 : static_cast<size_t>(slots) * rows.pages_per_slot;
    const size_t history = rows.before == nullptr ? 0 : static_cast<size_t>(rows.run_count) * kHistory;
    const size_t moved = rows.moved_by == nullptr ? 0 : static_cast<size_t>(rows.run_count);
    upload_.begin();
    const size_t token = upload_.add(rows.token, count), position = upload_.add(rows.position, count),
                 run_of = upload_.add(rows.run_of, count), runs = upload_.add(rows.runs, rows.run_count),
                 logit_row = upload_.add(rows.logit_row, rows.logit_count), before = upload_.add(rows.before, history),
                 moved_by = upload_.add(rows.moved_by, moved), page_table = upload_.add(rows.page_table, pages);
    upload_.send();
    stage_.rows = rows;
    stage_.rows.token = upload_.at<int32_t>(token);
    stage_.rows.position = upload_.at<int32_t>(position);
    stage_.rows.run_of = upload_.at<int32_t>(run_of);
    stage_.rows.runs = upload_.at<RowRun>(runs);
    stage_.rows.logit_row = upload_.at<int32_t>(logit_row);
    stage_.rows.page_table = upload_.at<int32_t>(page_table);
    if (history > 0) stage_.rows.before = upload_.at<int32_t>(before);
    if (moved > 0) stage_.rows.moved_by = upload_.at<int32_t>(moved_by);
    if (rows.later != nullptr) {
      resolve(stage_, {.token = upload_.at<int32_t>(token),
                       .position = upload_.at<int32_t>(position),
                       .before = history > 0 ? upload_.at<int32_t>(before) : nullptr,
                       .runs = upload_.at<RowRun>(runs)});
      launches_.apart = true;  // kernels read the rows before they wait for the kernel ahead
    }
    row_angles_.begin();
    begun_ = rows.token;
    logit_rows_ = rows.logit_row;
  }

  // The first call with a key runs as it is, so that scratch grows; the second records a graph; the others repeat it.
  void run(const void* owner, uint64_t key, const std::function<void()>& stages) override {
    constexpr size_t kMostRecordings = 256;  // a few MB each; whoever makes more starts over
    use_device();
    if (stage_.rows.count > kMostRecordedRows) return stages();
    if (recordings_[owner].size() >= kMostRecordings && !recordings_[owner].contains(key)) forget(owner);
    Recording& recording = recordings_[owner][key];
    if (recording.graph != nullptr && recording.generation == generation()) return repeat(recording);
    if (recording.runs++ == 0) return stages();
    if (recording.graph != nullptr) finish();  // the device may be at it
    discard(recording);
    cudaGraph_t graph = nullptr;
    const int64_t launched = launches_.count;
    for (Workspace* scratch : {&workspace_, &pairs_}) scratch->reset();  // outgrown memory cannot be given back below
    lanes_.join(stage_);
    lanes_.record(true);
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    recorded_marks_ = &recording.marks;
    row_angles_.begin();  // a recording makes its own: its part may be repeated where the part before it was not
    stages();
    catch_up();
    recorded_marks_ = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    lanes_.record(false);
    launches_.count = launched;
    recording.kernels = kernels_in(graph);
    check(cudaGraphInstantiate(&recording.graph, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    recording.generation = generation();
    row_angles_.begin();  // those of the recording have not been made
    repeat(recording);
  }
  void forget(const void* owner) override {
    const auto found = recordings_.find(owner);
    if (found == recordings_.end()) return;
    finish();
    for (auto& [key, recording] : found->second) discard(recording);
    recordings_.erase(found);
  }
  void finish() override {
    use_device();
    ++calls_.other_waits;
    check(cudaStreamSynchronize(stream_), "a kernel of this step");
  }
  uint64_t send(void* to, const void* from, size_t bytes) override {
    use_device();
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    check(cudaEventRecord(sends_[sent_ % kSends], stream_), "cudaEventRecord");
    return sent_++;
  }
  void wait(uint64_t sent) override {
    use_device();
    ONELANE_CHECK(sent < sent_ && sent_ - sent <= kSends, "at most kSends copies may be waited for");
    ++calls_.waits;
    check(cudaEventSynchronize(sends_[sent % kSends]), "a kernel of this step");
  }
  HostCalls host_calls() const override { return calls_; }

  void mark() override {
    use_device();
    catch_up();
    if (recorded_marks_ != nullptr) lanes_.record(false);  // what runs beside others costs every mark, and is not seen
    cudaEvent_t event = nullptr;
    if (spare_events_.empty()) {
      check(cudaEventCreate(&event), "cudaEventCreate");
    } else {
      event = spare_events_.back();
      spare_events_.pop_back();
    }
    if (recorded_marks_ != nullptr) {
      recorded_marks_->push_back(event);
      check(cudaEventRecordWithFlags(event, stream_, cudaEventRecordExternal), "cudaEventRecordWithFlags");
    } else {
      marks_.push_back(event);
      used_events_.push_back(event);
      check(cudaEventRecord(event, stream_), "cudaEventRecord");
    }
    launches_.apart = true;
  }
  std::vector<double> marks_us() override {
    finish();
    std::vector<double> us;
    for (const cudaEvent_t event : marks_) {
      float ms = 0;
      check(cudaEventElapsedTime(&ms, marks_.front(), event), "cudaEventElapsedTime");
      us.push_back(1e3 * static_cast<double>(ms));
    }
    marks_.clear();
    spare_events_.insert(spare_events_.end(), used_events_.begin(), used_events_.end());
    used_events_.clear();
    return us;
  }
  void profile(bool on) override {
    finish();
    check(on ? cudaProfilerStart() : cudaProfilerStop(), "the profiler");
  }
  int64_t launches() const override { return launches_.count; }

  void embed(const StepRows& rows, const EmbedArgs& args) override { cuda::embed(stage(rows), args); }
  void mix_streams(const StepRows& rows, const MixArgs& args) override {
    std::optional<PairSum> sum;
    std::optional<ExpandArgs> expand;
    if (expand_ && expand_->stream == args.stream && expand_->dim == args.dim) {
      sum.swap(sum_);
      expand.swap(expand_);
    }
    cuda::mix_streams(stage(rows), args, expand ? &*expand : nullptr, sum ? &*sum : nullptr);
  }
  // Of a recorded step, where nobody looks before the next stage: that may be mix_streams, which then does both, and
  // the end of experts too.
  void expand_streams(const StepRows& rows, const ExpandArgs& args) override {
    if (recorded_marks_ == nullptr) return cuda::expand_streams(stage(rows), args);
    if (!sum_ || expand_ || sum_->y != args.y || sum_->dim != args.dim) stage(rows);
    expand_ = args;
  }
  void tap(const StepRows& rows, const TapArgs& args) override { cuda::tap(stage(rows), args); }
  void project_qkv(const StepRows& rows, const QkvArgs& args) override {
    const Lanes::Project stages = lanes_.project_qkv(stage(rows), args);
    cuda::project_qkv(stages.main, stages.beside, args);
  }
  void compress(const StepRows& rows, const CompressArgs& args) override {
    cuda::compress(lanes_.compress(step(rows), args), args);
  }
  void index(const StepRows& rows, const IndexArgs& args) override {
    cuda::index(lanes_.index(step(rows), args), args);
  }
  void attend(const StepRows& rows, const AttendArgs& args) override {
    const Lanes::Attend stages = lanes_.attend(step(rows), args);
    cuda::attend(stages.lists, stages.attention, args);
  }
  void commit(const StepRows& rows, const CommitArgs& args) override {
    cuda::commit(lanes_.commit(step(rows), args), args);
  }
  void project_out(const StepRows& rows, const ProjectOutArgs& args) override { cuda::project_out(stage(rows), args); }
  void route(const StepRows& rows, const RouteArgs& args) override { cuda::route(stage(rows), args); }
  void experts(const StepRows& rows, const ExpertsArgs& args) override {
    const Stage& now = stage(rows);
    const PairSum sum = cuda::experts(now, args, table_of(args.experts, args.expert_count));
    if (recorded_marks_ == nullptr || !sum.stays || !mix_takes_sums(now, args.dim)) return cuda::sum_pairs(now, sum);
    sum_ = sum;
  }
  void engram(const StepRows& rows, const EngramArgs& args) override { cuda::engram(stage(rows), args); }
  void head(const StepRows& rows, const HeadArgs& args) override {
    ONELANE_CHECK(args.rows == logit_rows_ && args.count <= stage_.rows.logit_count,
                  "the head reads StepRows::logit_row");
    const Stage& now = stage(rows);
    cuda::head(now, args, now.rows.logit_row);
    if (args.best != nullptr) cuda::choose(now, choice_of(args));
  }
  void main_input(const StepRows& rows, const MainInputArgs& args) override { cuda::main_input(stage(rows), args); }
  void markov(const StepRows& rows, const MarkovArgs& args) override { cuda::markov(stage(rows), args); }
  void choose(const StepRows& rows, const ChooseArgs& args) override { cuda::choose(stage(rows), args); }
  void address(const StepRows& rows, const AddressArgs& args) override {
    cuda::address(stage(rows), args);
    launches_.apart = true;  // engram reads the numbers before it waits for the kernel ahead
  }
  void verify(const StepRows& rows, const VerifyArgs& args) override { cuda::verify(stage(rows), args); }

 private:
  struct ExpertTable {
    std::vector<ExpertPointers> pointers;
    ExpertPointers* on_device = nullptr;
  };
  struct Recording {
    cudaGraphExec_t graph = nullptr;
    int generation = 0;
    int runs = 0;
    int kernels = 0;
    std::vector<cudaEvent_t> marks;
  };

  void repeat(const Recording& recording) {
    check(cudaGraphLaunch(recording.graph, stream_), "cudaGraphLaunch");
    launches_.count += recording.kernels;
    marks_.insert(marks_.end(), recording.marks.begin(), recording.marks.end());
  }
  void discard(Recording& recording) {
    if (recording.graph != nullptr) cudaGraphExecDestroy(recording.graph);
    recording.graph = nullptr;
    used_events_.insert(used_events_.end(), recording.marks.begin(), recording.marks.end());
    recording.marks.clear();
  }
  static int kernels_in(cudaGraph_t graph) {
    size_t count = 0;
    check(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> nodes(count);
    check(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
    return static_cast<int>(std::count_if(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
      cudaGraphNodeType type;
      check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
      return type == cudaGraphNodeTypeKernel;
    }));
  }
  // Of the addresses that a recording holds.
  int generation() const {
    return upload_.generation() + workspace_.generation() + pairs_.generation() + lanes_.generation() +
           row_angles_.generation() + table_generation_;
  }

  void use_device() { check(cudaSetDevice(device_), "cudaSetDevice"); }

  // For a stage that comes behind all before it.
  const Stage& stage(const StepRows& rows) {
    const Stage& now = step(rows);
    lanes_.join(stage_);
    return now;
  }
  // For one that may run beside others: lanes_ knows how.
  const Stage& step(const StepRows& rows) {
    ONELANE_CHECK(rows.token == begun_ && rows.count == stage_.rows.count, "a stage of a step that was not begun");
    use_device();
    workspace_.reset();
    launch_put_off();
    return stage_;
  }
  // What comes next comes behind all that was asked for.
  void catch_up() {
    launch_put_off();
    lanes_.join(stage_);
  }
  void launch_put_off() {
    if (sum_) cuda::sum_pairs(stage_, *sum_);
    if (expand_) cuda::expand_streams(stage_, *expand_);
    sum_.reset();
    expand_.reset();
  }

  // Tables are made once a layer. Their content is compared, since a caller may put other experts in the same place.
  const ExpertPointers* table_of(const ExpertWeights* experts, int count) {
    ExpertTable& table = tables_[experts];
    std::vector<ExpertPointers>& now = scratch_pointers_;
    now.clear();
    for (int e = 0; e < count; ++e) now.push_back(pointers_of(experts[e]));
    const size_t bytes = now.size() * sizeof(ExpertPointers);
    if (table.pointers.size() != now.size() || std::memcmp(table.pointers.data(), now.data(), bytes) != 0) {
      finish();
      ++calls_.allocations;
      check(cudaFree(table.on_device), "cudaFree");
      check(cudaMalloc(reinterpret_cast<void**>(&table.on_device), bytes), "cudaMalloc");
      memory_.copy(table.on_device, now.data(), bytes);
      table.pointers = now;
      ++table_generation_;
    }
    return table.on_device;
  }

  int device_;
  cudaStream_t stream_;
  HostCalls calls_;
  DeviceMemory memory_;
  SharedMemory shared_memory_;
  Upload upload_;
  Workspace workspace_, pairs_;
  Lanes lanes_;
  RowAngles row_angles_;
  LaunchState launches_;
  std::optional<PairSum> sum_;            // asked for and not launched; if both, expand_ takes what this makes
  std::optional<ExpandArgs> expand_;      // likewise
  std::vector<cudaEvent_t> marks_;        // in order, since marks_us()
  std::vector<cudaEvent_t> used_events_;  // spare again after marks_us()
  std::vector<cudaEvent_t> spare_events_;
  std::vector<cudaEvent_t>* recorded_marks_ = nullptr;  // of the run that is being recorded
  Stage stage_;
  std::array<cudaEvent_t, kSends> sends_{};  // the n-th copy's is n % kSends
  uint64_t sent_ = 0;
  const int32_t* begun_ = nullptr;
  const int32_t* logit_rows_ = nullptr;
  std::unordered_map<const ExpertWeights*, ExpertTable> tables_;
  std::vector<ExpertPointers> scratch_pointers_;
  int table_generation_ = 0;
  std::unordered_map<const void*, std::unordered_map<uint64_t, Recording>> recordings_;  // by owner and key
};

}  // namespace

Kernels* make_kernels(int device, std::string& reason) {
  cudaDeviceProp properties;
  cudaStream_t stream = nullptr;
  cudaError_t status = cudaGetDeviceProperties(&properties, device);
  if (status == cudaSuccess) status = cudaSetDevice(device);
  if (status == cudaSuccess) status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (status != cudaSuccess) {
    reason = "GPU " + std::to_string(device) + ": " + cudaGetErrorString(status);
    return nullptr;
  }
  return new CudaKernels(device, stream, properties);
}

}  // namespace onelane::cuda
