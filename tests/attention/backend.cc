#include "attention/backend.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "kernels/attention/reference.h"

namespace onelane::attention_test {
namespace {

#ifdef ONELANE_WITHOUT_CPU  // built where Highway is not installed (tools/gpu/build.sh): the oracle stands in
int run_on_host(const onelane_attention_plan& plan, const onelane_attention_args& args) {
  return attention::run_reference(plan, args);
}
#else
int run_on_host(const onelane_attention_plan& plan, const onelane_attention_args& args) {
  return onelane_attention_run_cpu(&plan, &args);
}
#endif

class HostBackend : public Backend {
 public:
  explicit HostBackend(int threads) {
    device_.arch = 0;
    device_.processors = threads;
    device_.shared_bytes = 0;
    device_.cluster_blocks = 1;
    // A fence was hit: say so instead of leaving a bare signal number.
    struct sigaction action{};
    action.sa_handler = [](int) {
      constexpr char kSentence[] = "FAIL: an operand was touched past its end (the page after it is not mapped)\n";
      [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kSentence, sizeof(kSentence) - 1);
      _exit(1);
    };
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
  }

  std::string name() const override { return "cpu, " + std::to_string(device_.processors) + " threads"; }
  onelane_attention_device device() const override { return device_; }

  void* allocate(size_t bytes, bool fenced) override {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t mapped = (bytes + page - 1) / page * page;
    const size_t total = mapped + page;
    void* mapping = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) die("no memory for " + std::to_string(bytes) + " bytes");
    auto* start = static_cast<char*>(mapping);
    if (fenced && mprotect(start + mapped, page, PROT_NONE) != 0) die("mprotect failed");
    void* memory = start + (mapped - (bytes + 15) / 16 * 16);
    mappings_[memory] = {mapping, total};
    return memory;
  }
  void release(void* memory) override {
    const auto found = mappings_.find(memory);
    munmap(found->second.first, found->second.second);
    mappings_.erase(found);
  }
  void upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void fill(void* memory, int byte, size_t bytes) override {
    if (bytes == 0) return;
    if (recording_ == nullptr) {
      std::memset(memory, byte, bytes);
    } else {
      recording_->push_back([=] { std::memset(memory, byte, bytes); });
    }
  }
  void synchronize() override {}

  int run(const onelane_attention_plan& plan, const onelane_attention_args& args) override {
    if (recording_ == nullptr) return run_on_host(plan, args);
    recording_->push_back([plan, args] { check_status(run_on_host(plan, args), "a replayed run"); });
    return 0;
  }
  void count_and_sum(const float* in, int rows, int parts, float* out, unsigned* counter) override {
    const auto sum = [=] {
      for (int row = 0; row < rows; ++row) {
        for (int part = 0; part < parts; ++part) {
          if (counter[row]++ != static_cast<unsigned>(parts) - 1) continue;
          out[row] = 0;
          for (int i = 0; i < parts; ++i) out[row] += in[row * parts + i];
        }
      }
    };
    if (recording_ == nullptr) return sum();
    recording_->push_back(sum);
  }
  std::unique_ptr<Recording> record(const std::function<void()>& enqueue) override {
    auto recording = std::make_unique<Calls>();
    recording_ = &recording->calls;
    enqueue();
    recording_ = nullptr;
    return recording;
  }

 private:
  struct Calls : Recording {
    std::vector<std::function<void()>> calls;
    void replay() override {
      for (const auto& call : calls) call();
    }
  };
  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  onelane_attention_device device_{};
  std::map<void*, std::pair<void*, size_t>> mappings_;
  std::vector<std::function<void()>>* recording_ = nullptr;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(int threads) { return std::make_unique<HostBackend>(threads); }

#ifndef ONELANE_WITH_CUDA
std::unique_ptr<Backend> make_cuda_backend(std::string* why_not) {
  *why_not = "this program was built without CUDA";
  return nullptr;
}
#endif

std::unique_ptr<Backend> make_backend(const std::string& name) {
  if (name == "cpu") return make_host_backend(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  if (name != "cuda") die("--backend is cuda or cpu, not \"" + name + "\"");
  std::string why_not;
  std::unique_ptr<Backend> backend = make_cuda_backend(&why_not);
  if (!backend) die("no CUDA device: " + why_not);
  return backend;
}

void die(const std::string& sentence) {
  std::fflush(stdout);
  std::fprintf(stderr, "FAIL: %s\n", sentence.c_str());
  // Not exit(): destructors would call a device that may have just failed.
  std::fflush(stderr);
  std::_Exit(1);
}

void check_status(int status, const std::string& what) {
  if (status != 0) die(what + ": " + onelane_attention_message());
}

Region::Region(Region&& other) noexcept
    : backend_(other.backend_),
      fenced_(other.fenced_),
      memory_(std::exchange(other.memory_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)) {}

Region::~Region() {
  if (memory_ != nullptr) backend_->release(memory_);
}

void Region::reserve(size_t bytes) {
  bytes = (bytes + 15) / 16 * 16;
  if (bytes <= capacity_) return;
  backend_->synchronize();
  if (memory_ != nullptr) backend_->release(memory_);
  memory_ = backend_->allocate(bytes, fenced_);
  capacity_ = bytes;
}

void* Region::tail(size_t bytes, size_t alignment) const {
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  return static_cast<char*>(memory_) + (capacity_ - rounded);
}

void Region::fill(int byte) const {
  if (capacity_ > 0) backend_->fill(memory_, byte, capacity_);
}

}  // namespace onelane::attention_test
