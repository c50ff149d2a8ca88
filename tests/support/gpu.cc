#include "support/gpu.h"

#include <cstdlib>
#include <string_view>

#include "device/buffer.h"
#include "device/plugin.h"
#include "support/deferred_kernels.h"

namespace onelane::testing {
namespace {

class StepByStage final : public Kernels {
 public:
  explicit StepByStage(std::unique_ptr<Kernels> kernels) : kernels_(std::move(kernels)) {}

  std::string_view name() const override { return kernels_->name(); }
  Memory& memory() override { return kernels_->shared_memory(); }
  Memory& shared_memory() override { return kernels_->shared_memory(); }
  void embed(const StepRows& rows, const EmbedArgs& args) override { stage(rows, &Kernels::embed, args); }
  void mix_streams(const StepRows& rows, const MixArgs& args) override { stage(rows, &Kernels::mix_streams, args); }
  void expand_streams(const StepRows& rows, const ExpandArgs& args) override {
    stage(rows, &Kernels::expand_streams, args);
  }
  void tap(const StepRows& rows, const TapArgs& args) override { stage(rows, &Kernels::tap, args); }
  void project_qkv(const StepRows& rows, const QkvArgs& args) override { stage(rows, &Kernels::project_qkv, args); }
  void compress(const StepRows& rows, const CompressArgs& args) override { stage(rows, &Kernels::compress, args); }
  void index(const StepRows& rows, const IndexArgs& args) override { stage(rows, &Kernels::index, args); }
  void attend(const StepRows& rows, const AttendArgs& args) override { stage(rows, &Kernels::attend, args); }
  void commit(const StepRows& rows, const CommitArgs& args) override { stage(rows, &Kernels::commit, args); }
  void project_out(const StepRows& rows, const ProjectOutArgs& args) override {
    stage(rows, &Kernels::project_out, args);
  }
  void route(const StepRows& rows, const RouteArgs& args) override { stage(rows, &Kernels::route, args); }
  void experts(const StepRows& rows, const ExpertsArgs& args) override { stage(rows, &Kernels::experts, args); }
  void engram(const StepRows& rows, const EngramArgs& args) override { stage(rows, &Kernels::engram, args); }
  void head(const StepRows& rows, const HeadArgs& args) override {
    StepRows with_logits = rows;
    with_logits.logit_row = args.rows;
    with_logits.logit_count = args.count;
    stage(with_logits, &Kernels::head, args);
  }
  void main_input(const StepRows& rows, const MainInputArgs& args) override { stage(rows, &Kernels::main_input, args); }
  void markov(const StepRows& rows, const MarkovArgs& args) override { stage(rows, &Kernels::markov, args); }
  void choose(const StepRows& rows, const ChooseArgs& args) override { stage(rows, &Kernels::choose, args); }
  void address(const StepRows& rows, const AddressArgs& args) override { stage(rows, &Kernels::address, args); }
  void verify(const StepRows& rows, const VerifyArgs& args) override { stage(rows, &Kernels::verify, args); }

 private:
  template <class Args>
  void stage(const StepRows& rows, void (Kernels::*call)(const StepRows&, const Args&), const Args& args) {
    kernels_->begin(rows);
    ((*kernels_).*call)(rows, args);
    kernels_->finish();
  }

  std::unique_ptr<Kernels> kernels_;
};

const Plugin* plugin() {
  static const std::unique_ptr<Plugin> loaded = []() -> std::unique_ptr<Plugin> {
    std::vector<std::string> folders = plugin_folders();
    folders.emplace_back(ONELANE_PLUGIN_FOLDER);
    auto found = load_plugin(folders);
    if (!found) return nullptr;
    return std::make_unique<Plugin>(*std::move(found));
  }();
  return loaded.get();
}

bool wants(std::string_view name) {
  const char* backend = std::getenv("ONELANE_TEST_BACKEND");
  return backend != nullptr && backend == name;
}

}  // namespace

std::unique_ptr<Kernels> make_device_kernels() {
  ONELANE_CHECK(plugin() != nullptr, "no CUDA plugin beside this test");
  auto made = make_cuda_kernels(*plugin(), 0);
  ONELANE_CHECK(made.has_value(), made.error().message.c_str());
  return *std::move(made);
}

bool has_gpu() {
  static const bool found = [] {
    onelane_plugin_probe probe;
    if (plugin() == nullptr || plugin()->table->probe(&probe) == 0) return false;
    // The owner of the pinned memory is never destroyed: buffers in it may be, after main().
    set_host_buffers(make_device_kernels().release()->shared_memory());
    return true;
  }();
  return found;
}

std::unique_ptr<Kernels> make_gpu_kernels() { return std::make_unique<StepByStage>(make_device_kernels()); }

std::unique_ptr<Kernels> make_test_kernels(int threads) {
  if (wants("cuda") || wants("deferred")) return make_kernels_beside_host(threads);
  return make_cpu_kernels(threads);
}

std::unique_ptr<Kernels> make_kernels_beside_host(int threads) {
  if (wants("cuda")) return make_device_kernels();
  return std::make_unique<DeferredKernels>(make_cpu_kernels(threads));
}

Kernels* model_kernels() {
  static Kernels* const kernels = wants("cuda") ? make_device_kernels().release() : nullptr;  // as long as the process
  return kernels;
}

}  // namespace onelane::testing
