// The reference implementation of `Kernels`: the stages of stages.h behind the interface.
#include "kernels/reference/stages.h"

namespace onelane {
namespace {

class ReferenceKernels final : public Kernels {
 public:
  std::string_view name() const override { return "reference"; }

  void embed(const StepRows& rows, const EmbedArgs& args) override { reference::embed(rows, args); }
  void mix_streams(const StepRows& rows, const MixArgs& args) override { reference::mix_streams(rows, args); }
  void expand_streams(const StepRows& rows, const ExpandArgs& args) override { reference::expand_streams(rows, args); }
  void tap(const StepRows& rows, const TapArgs& args) override { reference::tap(rows, args); }
  void project_qkv(const StepRows& rows, const QkvArgs& args) override { reference::project_qkv(rows, args); }
  void compress(const StepRows& rows, const CompressArgs& args) override { reference::compress(rows, args); }
  void index(const StepRows& rows, const IndexArgs& args) override { reference::index(rows, args); }
  void attend(const StepRows& rows, const AttendArgs& args) override { reference::attend(rows, args); }
  void commit(const StepRows& rows, const CommitArgs& args) override { reference::commit(rows, args); }
  void project_out(const StepRows& rows, const ProjectOutArgs& args) override { reference::project_out(rows, args); }
  void route(const StepRows& rows, const RouteArgs& args) override { reference::route(rows, args); }
  void experts(const StepRows& rows, const ExpertsArgs& args) override {
    if (args.router != nullptr) reference::route(rows, *args.router);
    reference::experts(rows, args);
  }
  void engram(const StepRows& rows, const EngramArgs& args) override { reference::engram(rows, args); }
  void head(const StepRows& rows, const HeadArgs& args) override {
    reference::head(rows, args);
    if (args.best != nullptr) reference::choose(choice_of(args));
  }
  void main_input(const StepRows& rows, const MainInputArgs& args) override { reference::main_input(rows, args); }
  void markov(const StepRows& rows, const MarkovArgs& args) override { reference::markov(rows, args); }
  void choose(const StepRows& /*rows*/, const ChooseArgs& args) override { reference::choose(args); }
};

}  // namespace

std::unique_ptr<Kernels> make_reference_kernels() { return std::make_unique<ReferenceKernels>(); }

}  // namespace onelane
