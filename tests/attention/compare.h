// Is an output right? FlashMLA's habit: a bound for each element, a bound for the whole, and the worst place printed.
//
// The oracle is the double reference. An output in e4m3 is held against the oracle's own codes too: the kernel's error
// may move a value over a rounding boundary now and then, and never further than to the next code.
#pragma once

#include <cstdint>
#include <string>

#include "attention/inputs.h"
#include "attention/operands.h"
#include "kernels/attention/reference.h"

namespace onelane::attention_test {

struct Limits {
  double element_abs = 1e-3, element_rel = 2.01 / 128;  // either is enough (FlashMLA's tests)
  double cosine = 5e-6;                                 // 1 - 2 xy / (xx + yy), bf16 outputs
  double l2 = 3e-3;                                     // |out - ref| / |ref|, bf16 outputs
  double lse_abs = 1e-6, lse_rel = 8.01 / 65536;
  double fp8_l2 = 0.035;           // rounding to e4m3 alone is about 0.026
  double fp8_codes_equal = 0.90;   // of the oracle's
  double fp8_scales_equal = 0.98;  // the others next to it
};

// Sums over compared elements. Gathered apart by threads, then added up.
class Comparison {
 public:
  explicit Comparison(const Limits& limits = {}) : limits_(limits) {}

  // Heads [first_head, + heads of `expected`) of one row. `expected.out` is [heads, 512], `expected.lse` [heads].
  void add(const onelane_attention_shape& shape, const Output& output, int row, int first_head,
           const attention::ReferenceResult& expected);
  void add(const Comparison& other);

  // What is wrong, or empty.
  std::string verdict() const;
  // "l2 2.1e-03, lse 3e-08": the figures a passing line shows.
  std::string figures() const;
  double l2() const;
  int64_t elements() const { return elements_; }

 private:
  struct Worst {
    double excess = 0;  // error / bound; above 1 fails
    int row = 0, head = 0, dim = 0;
    double got = 0, want = 0;
  };
  void value(int row, int head, int dim, double got, double want, double bound);
  void chunk_fp8(const onelane_attention_shape& shape, const Output& output, int row, int head, int chunk,
                 const double* want);
  void lse(int row, int head, double got, double want);

  Limits limits_;
  bool fp8_ = false;
  int64_t elements_ = 0;
  int64_t codes_ = 0, codes_equal_ = 0, scales_ = 0, scales_equal_ = 0;
  double xx_ = 0, yy_ = 0, xy_ = 0, dd_ = 0;
  double lse_most_ = 0;  // largest difference, relative above 1
  Worst worst_, worst_lse_;
};

// How two outputs of one problem differ, over every element.
struct Difference {
  int64_t elements = 0, equal = 0;  // values; of one scale and one code, if fp8
  // Of one scale and not equal, but both below 2^-24: where the entries that count are zero, what is left of others
  // depends on when the largest score came (softmax.h).
  int64_t nothing = 0;
  int64_t scales = 0, scales_equal = 0;
  double lse_most = 0;  // relative above 1; infinite where one is not finite and the other differs
  double l2 = 0;        // decoded
  double equal_share() const { return elements == 0 ? 1 : static_cast<double>(equal) / static_cast<double>(elements); }
};
Difference difference(const onelane_attention_shape& shape, const Output& a, const Output& b);

// The first place that still holds poison (nothing was written there), or empty. `faulty_row` is left out: a spoiled
// row may hold anything.
std::string unwritten(const onelane_attention_shape& shape, const Output& output, int faulty_row);

// One output value, decoded.
float decoded(const onelane_attention_shape& shape, const Output& output, int row, int head, int dim);

// Compares with the oracle on all processors: every row and head if that costs no more than `budget` multiply-adds,
// else a sample of them (8 heads of a row at a time; the first and the last row are always in it). The faulty row is
// left out.
Comparison compare_with_oracle(const Problem& problem, const Output& output, const Limits& limits, double budget);

}  // namespace onelane::attention_test
