// ComparingKernels: runs every stage on a candidate and on the reference, from the same inputs, and compares.
//
// The reference's results stay in the buffers, so one deviation does not spread into the next stage: each is judged by
// itself, however long the chain that feeds it. A failure names the stage, the buffer, the row and the worst element.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace onelane::testing {

class ComparingKernels final : public Kernels {
 public:
  ComparingKernels(Kernels& reference, Kernels& candidate) : reference_(reference), candidate_(candidate) {}

  std::string_view name() const override { return "comparing"; }
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
  void route(const StepRows& rows, const RouteArgs& args) override;
  void experts(const StepRows& rows, const ExpertsArgs& args) override;
  void engram(const StepRows& rows, const EngramArgs& args) override;
  void head(const StepRows& rows, const HeadArgs& args) override;
  void main_input(const StepRows& rows, const MainInputArgs& args) override;
  void markov(const StepRows& rows, const MarkovArgs& args) override;
  void choose(const StepRows& rows, const ChooseArgs& args) override;

  // Results that both made, and how many of them differ in a bit.
  struct Tally {
    size_t made = 0;
    size_t differing = 0;
  };
  // Choices: picks, candidates, experts. Scores that agree up to rounding may choose differently at a near tie.
  Tally choices;
  // Values, by stage and buffer. Of finite rows only.
  std::map<std::string, Tally> values_of;

 private:
  // How far a row of values may be from the reference's: each element within relative * |reference| + of_rms * (the
  // row's root mean square), and the angle between the rows.
  struct Bound {
    double relative;
    double of_rms;
    double cosine;
  };
  struct Region {
    enum class Kind { kBytes, kBf16, kFloat, kRecord, kChoice, kBits };
    std::string name;
    Kind kind;
    void* data;  // of kRecord: data, with scales beside it
    int rows;
    size_t row_bytes;
    RecordFormat format = RecordFormat::kV41Fp8;
    void* scales = nullptr;
  };
  using Regions = std::vector<Region>;

  template <class T>
  static Region values(const char* name, Region::Kind kind, T* data, int rows, int width) {
    return {name, kind, data, rows, static_cast<size_t>(width) * sizeof(T)};
  }
  static void add_record(Regions& regions, const char* name, const RecordBlock& block, int index);
  void run(const char* stage, const Regions& regions, Bound bound, const std::function<void(Kernels&)>& call);
  void compare(const std::string& what, const Region& region, const std::vector<std::byte>& got, Bound bound);

  Kernels& reference_;
  Kernels& candidate_;
};

}  // namespace onelane::testing
