// The lists of problems that attention_check runs: FlashMLA's and FlashInfer's own test shapes (spec/attention.md
// section 9), what the two model generations ask for, and what has broken others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/compare.h"
#include "attention/inputs.h"

namespace onelane::attention_test {

enum class Proof {
  kOracle,  // the output is right
  kSplits,  // and so is that of 1, 2, 4, 8 (16, 32) forced splits, which agree with each other
  kBlocks,  // and that of 2 and 4 forced splits has the same bits with blocks of 8, 16 and 64 heads
  kReplay   // and a second run, a graph's replay, and its replay again have the same bits
};

struct Group {
  std::string name;
  Proof proof = Proof::kOracle;
  std::vector<Case> cases{};
  Limits limits{};
};

// `full`: every flag of FlashMLA's tests in every combination, instead of in turn.
std::vector<Group> all_groups(uint64_t seed, bool full);

// "6 rows, 64 heads, 128 v4 (page 256) + 512 v4 (page 64), fp8, seed 17"
std::string describe(const Case& spec);

// Multiply-adds of a case.
double cost(const Case& spec);

}  // namespace onelane::attention_test
