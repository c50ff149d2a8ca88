// Kernels with planted faults, for tests that must notice them.
#pragma once

#include <vector>

#include "kernels/forwarding_kernels.h"

namespace onelane {

// Faults that must show (spec/model.md 9.4 item 5), each bending the arguments of otherwise right stages.
enum class Fault { kNone, kTransposedComb, kOwnPre, kNoInverseRope, kNormEps, kRopeTableA, kNoEngram };

class FaultyKernels : public ForwardingKernels {
 public:
  // `table_a` is needed for kRopeTableA only.
  FaultyKernels(Kernels& inner, Fault fault, const RopeFrequencies* table_a = nullptr)
      : ForwardingKernels(inner), fault_(fault), table_a_(table_a) {}

  void mix_streams(const StepRows& rows, const MixArgs& args) override {
    MixArgs bent = args;
    if (fault_ == Fault::kOwnPre) bent.collapse_with = nullptr;
    bent.norm_eps = eps(args.norm_eps);
    inner_.mix_streams(rows, bent);
  }
  void expand_streams(const StepRows& rows, const ExpandArgs& args) override {
    ExpandArgs bent = args;
    std::vector<float> transposed;
    if (fault_ == Fault::kTransposedComb) {
      for (int row = 0; row < rows.count; ++row) {
        for (int i = 0; i < kStreams * kStreams; ++i) {
          const int from = i % kStreams * kStreams + i / kStreams;
          transposed.push_back(args.comb[row * kStreams * kStreams + from]);
        }
      }
      bent.comb = transposed.data();
    }
    inner_.expand_streams(rows, bent);
  }
  void project_qkv(const StepRows& rows, const QkvArgs& args) override {
    QkvArgs bent = args;
    bent.rope = rope(args.rope);
    bent.norm_eps = eps(args.norm_eps);
    inner_.project_qkv(rows, bent);
  }
  void compress(const StepRows& rows, const CompressArgs& args) override {
    CompressArgs bent = args;
    bent.rope = rope(args.rope);
    bent.norm_eps = eps(args.norm_eps);
    inner_.compress(rows, bent);
  }
  void index(const StepRows& rows, const IndexArgs& args) override {
    IndexArgs bent = args;
    bent.rope = rope(args.rope);
    inner_.index(rows, bent);
  }
  void attend(const StepRows& rows, const AttendArgs& args) override {
    AttendArgs bent = args;
    bent.rope = fault_ == Fault::kNoInverseRope ? &standing_ : rope(args.rope);
    inner_.attend(rows, bent);
  }
  void engram(const StepRows& rows, const EngramArgs& args) override {
    if (fault_ != Fault::kNoEngram) inner_.engram(rows, args);
  }
  void head(const StepRows& rows, const HeadArgs& args) override {
    HeadArgs bent = args;
    bent.norm_eps = eps(args.norm_eps);
    inner_.head(rows, bent);
  }

 private:
  float eps(float right) const { return fault_ == Fault::kNormEps ? 1e-6f : right; }
  const RopeFrequencies* rope(const RopeFrequencies* right) const {
    return fault_ == Fault::kRopeTableA ? table_a_ : right;
  }
  const Fault fault_;
  const RopeFrequencies* table_a_;
  const RopeFrequencies standing_{};  // frequency 0: every rotation is the identity
};

}  // namespace onelane
