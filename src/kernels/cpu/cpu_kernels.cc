#include "kernels/cpu/context.h"
#include "kernels/cpu/stages.h"
#include "kernels/kernels.h"

namespace onelane {
namespace {

class CpuKernels final : public Kernels {
 public:
  explicit CpuKernels(int threads) : context_(threads) {}

  std::string_view name() const override { return "cpu"; }

  void embed(const StepRows& rows, const EmbedArgs& args) override { cpu::embed(context_, rows, args); }
  void mix_streams(const StepRows& rows, const MixArgs& args) override { cpu::mix_streams(context_, rows, args); }
  void expand_streams(const StepRows& rows, const ExpandArgs& args) override {
    cpu::expand_streams(context_, rows, args);
  }
  void tap(const StepRows& rows, const TapArgs& args) override { cpu::tap(context_, rows, args); }
  void project_qkv(const StepRows& rows, const QkvArgs& args) override { cpu::project_qkv(context_, rows, args); }
  void compress(const StepRows& rows, const CompressArgs& args) override { cpu::compress(context_, rows, args); }
  void index(const StepRows& rows, const IndexArgs& args) override { cpu::index(context_, rows, args); }
  void attend(const StepRows& rows, const AttendArgs& args) override { cpu::attend(context_, rows, args); }
  void commit(const StepRows& rows, const CommitArgs& args) override { cpu::commit(context_, rows, args); }
  void project_out(const StepRows& rows, const ProjectOutArgs& args) override {
    cpu::project_out(context_, rows, args);
  }
  void route(const StepRows& rows, const RouteArgs& args) override { cpu::route(context_, rows, args); }
  void experts(const StepRows& rows, const ExpertsArgs& args) override {
    if (args.router != nullptr) cpu::route(context_, rows, *args.router);
    cpu::experts(context_, rows, args);
  }
  void engram(const StepRows& rows, const EngramArgs& args) override { cpu::engram(context_, rows, args); }
  void head(const StepRows& rows, const HeadArgs& args) override {
    cpu::head(context_, rows, args);
    if (args.best != nullptr) cpu::choose(context_, choice_of(args));
  }
  void main_input(const StepRows& rows, const MainInputArgs& args) override { cpu::main_input(context_, rows, args); }
  void markov(const StepRows& rows, const MarkovArgs& args) override { cpu::markov(context_, rows, args); }
  void choose(const StepRows& /*rows*/, const ChooseArgs& args) override { cpu::choose(context_, args); }

 private:
  cpu::Context context_;
};

}  // namespace

std::unique_ptr<Kernels> make_cpu_kernels(int threads) { return std::make_unique<CpuKernels>(threads); }

}  // namespace onelane
