// StepMeter: kernels that note, stage by stage, what a real forward pass costs.
//
// Everything runs on the kernels it is given; what it notes depends on the mode. It is for one thread and one
// ForwardPass.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "cli/step_cost.h"
#include "kernels/forwarding_kernels.h"

namespace onelane {

struct StageEntry {
  std::string part;   // "target", "seed", "draft"
  std::string stage;  // "attend, ratio 4", or one of the names below
  int calls = 0;
  double us = 0;
  StageCost cost;
};

// Time between two parts: copies, and waiting for the host.
inline constexpr std::string_view kBetween = "between";
// Two marks with nothing between them: how much of every call's time is the mark's own.
inline constexpr std::string_view kMarkAlone = "mark";
// A whole part, where parts are what is timed.
inline constexpr std::string_view kWhole = "whole";

class StepMeter final : public ForwardingKernels {
 public:
  enum class Mode {
    kOff,     // nothing
    kParts,   // how long a part takes, as recorded and repeated
    kStages,  // how long each stage takes: marks around it, so that none overlaps the next
    kCosts,   // no times: StageCost of every stage, with what was picked read back
  };

  explicit StepMeter(Kernels& inner) : ForwardingKernels(inner) {}

  void set(Mode mode) { mode_ = mode; }
  // What follows belongs to this part of the step.
  void part(std::string_view name) { part_ = name; }
  // Waits and reads the marks, which must be done before a part is repeated (Kernels::mark).
  void drain();
  // What was noted since the last call, one entry for every part and stage, in the order of first appearance.
  std::vector<StageEntry> take();

  void run(const void* owner, uint64_t key, const std::function<void()>& stages) override;
  void forget(const void* owner) override;
  void embed(const StepRows& rows, const EmbedArgs& args) override;
  void mix_streams(const StepRows& rows, const MixArgs& args) override;
  void expand_streams(const StepRows& rows, const ExpandArgs& args) override;
  void tap(const StepRows& rows, const TapArgs& args) override;
  void project_qkv(const StepRows& rows, const QkvArgs& args) override;
  void compress(const StepRows& rows, const CompressArgs& args) override;
  void index(const StepRows& rows, const IndexArgs& args) override;
  void attend(const StepRows& rows, const AttendArgs& args) override;
  void commit(const StepRows& rows, const CommitArgs& args) override;
  void project_out(const StepRows& rows, const ProjectOutArgs& args) override;
  void experts(const StepRows& rows, const ExpertsArgs& args) override;
  void engram(const StepRows& rows, const EngramArgs& args) override;
  void head(const StepRows& rows, const HeadArgs& args) override;
  void main_input(const StepRows& rows, const MainInputArgs& args) override;
  void markov(const StepRows& rows, const MarkovArgs& args) override;
  void choose(const StepRows& rows, const ChooseArgs& args) override;

 private:
  struct Label {
    std::string part, stage;
  };

  // Ends what is called `stage`.
  void mark(std::string_view stage);
  template <class Call, class Cost>
  void note(std::string_view stage, const Call& call, const Cost& cost);
  std::vector<int32_t> read(const int32_t* from, size_t count);

  Mode mode_ = Mode::kOff;
  std::string part_;
  std::vector<Label> labels_;                                  // of the marks since drain(): what ended there
  std::unordered_map<uint64_t, std::vector<Label>> recorded_;  // and of the marks in a recorded run
  std::vector<Label>* into_ = &labels_;
  std::vector<StageEntry> entries_;
};

}  // namespace onelane
