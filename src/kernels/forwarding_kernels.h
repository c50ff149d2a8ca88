// Kernels that pass every stage on to others. Whoever watches or bends single stages of a real forward pass derives
// from it. run() is not passed on: a recording would pass by whoever watches.
#pragma once

#include <vector>

#include "kernels/kernels.h"

namespace onelane {

class ForwardingKernels : public Kernels {
 public:
  explicit ForwardingKernels(Kernels& inner) : inner_(inner) {}
  std::string_view name() const override { return inner_.name(); }
  Memory& memory() override { return inner_.memory(); }
  Memory& shared_memory() override { return inner_.shared_memory(); }
  void begin(const StepRows& rows) override { inner_.begin(rows); }
  void finish() override { inner_.finish(); }
  uint64_t send(void* to, const void* from, size_t bytes) override { return inner_.send(to, from, bytes); }
  void wait(uint64_t sent) override { inner_.wait(sent); }
  HostCalls host_calls() const override { return inner_.host_calls(); }
  void mark() override { inner_.mark(); }
  std::vector<double> marks_us() override { return inner_.marks_us(); }
  void profile(bool on) override { inner_.profile(on); }
  int64_t launches() const override { return inner_.launches(); }
  void embed(const StepRows& rows, const EmbedArgs& args) override { inner_.embed(rows, args); }
  void mix_streams(const StepRows& rows, const MixArgs& args) override { inner_.mix_streams(rows, args); }
  void expand_streams(const StepRows& rows, const ExpandArgs& args) override { inner_.expand_streams(rows, args); }
  void tap(const StepRows& rows, const TapArgs& args) override { inner_.tap(rows, args); }
  void project_qkv(const StepRows& rows, const QkvArgs& args) override { inner_.project_qkv(rows, args); }
  void compress(const StepRows& rows, const CompressArgs& args) override { inner_.compress(rows, args); }
  void index(const StepRows& rows, const IndexArgs& args) override { inner_.index(rows, args); }
  void attend(const StepRows& rows, const AttendArgs& args) override { inner_.attend(rows, args); }
  void commit(const StepRows& rows, const CommitArgs& args) override { inner_.commit(rows, args); }
  void project_out(const StepRows& rows, const ProjectOutArgs& args) override { inner_.project_out(rows, args); }
  void route(const StepRows& rows, const RouteArgs& args) override { inner_.route(rows, args); }
  void experts(const StepRows& rows, const ExpertsArgs& args) override { inner_.experts(rows, args); }
  void engram(const StepRows& rows, const EngramArgs& args) override { inner_.engram(rows, args); }
  void head(const StepRows& rows, const HeadArgs& args) override { inner_.head(rows, args); }
  void main_input(const StepRows& rows, const MainInputArgs& args) override { inner_.main_input(rows, args); }
  void markov(const StepRows& rows, const MarkovArgs& args) override { inner_.markov(rows, args); }
  void choose(const StepRows& rows, const ChooseArgs& args) override { inner_.choose(rows, args); }
  void address(const StepRows& rows, const AddressArgs& args) override { inner_.address(rows, args); }
  void verify(const StepRows& rows, const VerifyArgs& args) override { inner_.verify(rows, args); }

 protected:
  Kernels& inner_;
};

}  // namespace onelane
