// The operands of a call on a backend: one region for each kind, shared by all problems and captured shapes, as a
// server shares them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "attention/backend.h"
#include "attention/inputs.h"

namespace onelane::attention_test {

enum Operand {
  kQ,
  kWindowPages,
  kWindowIndices,
  kWindowLengths,
  kExtraPages,
  kExtraIndices,
  kExtraLengths,
  kSink,
  kPositions,
  kAngles,
  kOut,
  kOutScales,
  kLse,
  kWorkspace,
  kOperands
};
inline constexpr std::array<const char*, kOperands> kOperandNames = {"q",
                                                                     "window.pages",
                                                                     "window.indices",
                                                                     "window.lengths",
                                                                     "extra.pages",
                                                                     "extra.indices",
                                                                     "extra.lengths",
                                                                     "sink",
                                                                     "positions",
                                                                     "angles",
                                                                     "out",
                                                                     "out_scales",
                                                                     "lse",
                                                                     "workspace"};

// Bytes of each operand of a problem under a plan, 0: not there. Also the alignment that the contract asks for.
using OperandBytes = std::array<size_t, kOperands>;
OperandBytes operand_bytes(const Problem& problem, const onelane_attention_plan& plan);
size_t operand_alignment(Operand operand);

// What a call wrote, copied to the host.
struct Output {
  std::vector<uint8_t> out, scales;
  std::vector<float> lse;
  bool operator==(const Output& other) const;  // bit for bit
};

class Operands {
 public:
  Operands(Backend& backend, bool fenced);

  // Makes room. Pointers handed out before are void if anything grew.
  void reserve(const OperandBytes& bytes);
  // The arguments of a call: every operand at the end of its region, the workspace perhaps of another.
  onelane_attention_args bind(const Problem& problem, const onelane_attention_plan& plan,
                              const Region* workspace = nullptr) const;
  // Enqueues copies of the inputs to where bind() says they are.
  void upload(const Problem& problem, const onelane_attention_args& args, bool with_pools = true) const;
  // Fills outputs and workspace with 0xff: NaN as bf16, float and e4m3.
  void poison() const;
  // Waits for the call and fetches what it wrote.
  Output download(const Problem& problem, const onelane_attention_plan& plan, const onelane_attention_args& args) const;
  Region& region(Operand operand) { return regions_[operand]; }

 private:
  Backend* backend_;
  std::vector<Region> regions_;
};

}  // namespace onelane::attention_test
