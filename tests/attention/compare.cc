#include "attention/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <span>

#include "attention/parallel.h"
#include "attention/random.h"
#include "kernels/attention/layout.h"
#include "numerics/formats.h"
#include "numerics/quantize.h"

namespace onelane::attention_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kUnitHeads = 8;
constexpr float kEdge = 4e-3f;  // of a mantissa: what rounding probabilities to bf16 may do to an output

uint16_t bf16_at(const Output& output, size_t index) {
  uint16_t code;
  std::memcpy(&code, output.out.data() + 2 * index, sizeof(code));
  return code;
}

std::string text(const char* format, auto... values) {
  char buffer[256];
  std::snprintf(buffer, sizeof(buffer), format, values...);
  return buffer;
}

// The difference, relative to the larger one above 1; equal infinities and two NaN do not differ.
double lse_difference(double got, double want) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return 0;
  if (!std::isfinite(got) || !std::isfinite(want)) return kInfinity;
  return std::fabs(got - want) / std::max(1.0, std::fabs(want));
}

double at_least(double value, double floor) { return value > floor ? value : floor; }

}  // namespace

float decoded(const onelane_attention_shape& shape, const Output& output, int row, int head, int dim) {
  const size_t at = attention::value_offset(shape, row, head, dim);
  if (shape.output == ONELANE_OUT_BF16) return bf16_to_float(bf16_at(output, at));
  return e4m3_to_float(output.out[at]) *
         e8m0_to_float(output.scales[attention::scale_offset(shape, row, head, dim / attention::kScaleBlock)]);
}

void Comparison::value(int row, int head, int dim, double got, double want, double bound) {
  ++elements_;
  double excess = 0;
  if (std::isfinite(got) && std::isfinite(want)) {
    const double error = std::fabs(got - want);
    excess = error / bound;
    xx_ += got * got;
    yy_ += want * want;
    xy_ += got * want;
    dd_ += error * error;
  } else if (!(std::isnan(got) && std::isnan(want)) && got != want) {
    excess = kInfinity;
  }
  if (excess > worst_.excess) worst_ = {excess, row, head, dim, got, want};
}

void Comparison::chunk_fp8(const onelane_attention_shape& shape, const Output& output, int row, int head, int chunk,
                           const double* want) {
  constexpr int kBlock = attention::kScaleBlock;
  float values[kBlock];
  uint8_t codes[kBlock];
  for (int i = 0; i < kBlock; ++i) values[i] = static_cast<float>(want[i]);
  const uint8_t scale = quantize_fp8_block(std::span<const float>(values, kBlock), codes);
  const uint8_t got_scale = output.scales[attention::scale_offset(shape, row, head, chunk)];
  // A chunk whose largest value is 448 times a power of two, but for rounding, may be told either of two scales.
  // Records are made so, and an output that is nearly one record keeps it.
  float largest = 0;
  for (const float v : values) largest = std::max(largest, std::fabs(v));
  int exponent;
  const bool on_edge = std::fabs(std::frexp(largest, &exponent) - 0.875f) < kEdge && scale != got_scale;
  ++scales_;
  scales_equal_ += scale == got_scale || on_edge;
  if (std::abs(int{scale} - int{got_scale}) > 1 && worst_.excess < kInfinity) {
    worst_ = {kInfinity, row, head, chunk * kBlock, e8m0_to_float(got_scale), e8m0_to_float(scale)};
  }
  // Half a step of e4m3 either way, at the scale that was taken; subnormal steps are 2^-9 of the scale.
  const double step = std::isnan(e8m0_to_float(got_scale)) ? 0 : double{e8m0_to_float(got_scale)} * 0x1p-10;
  for (int i = 0; i < kBlock; ++i) {
    const int dim = chunk * kBlock + i;
    const uint8_t code = output.out[attention::value_offset(shape, row, head, dim)];
    const bool both_zero = ((code | codes[i]) & 0x7f) == 0;
    codes_ += !on_edge;
    codes_equal_ += scale == got_scale && (code == codes[i] || both_zero);
    const double bound =
        std::fabs(want[i]) / 16 + step + at_least(limits_.element_rel * std::fabs(want[i]), limits_.element_abs);
    value(row, head, dim, decoded(shape, output, row, head, dim), want[i], bound);
  }
}

void Comparison::lse(int row, int head, double got, double want) {
  const double most = lse_difference(got, want);
  lse_most_ = std::max(lse_most_, most);
  const bool fine = most == 0 || std::fabs(got - want) <= limits_.lse_abs ||
                    std::fabs(got - want) <= limits_.lse_rel * std::fabs(want);
  if (!fine && worst_lse_.excess <= most) worst_lse_ = {most, row, head, 0, got, want};
}

void Comparison::add(const onelane_attention_shape& shape, const Output& output, int row, int first_head,
                     const attention::ReferenceResult& expected) {
  fp8_ = shape.output != ONELANE_OUT_BF16;
  for (int i = 0; i < static_cast<int>(expected.lse.size()); ++i) {
    const int head = first_head + i;
    const double* want = expected.out.data() + static_cast<size_t>(i) * kDim;
    lse(row, head, output.lse[static_cast<size_t>(row) * shape.heads + head], expected.lse[static_cast<size_t>(i)]);
    if (fp8_) {
      for (int chunk = 0; chunk < attention::kChunks; ++chunk) {
        chunk_fp8(shape, output, row, head, chunk, want + chunk * attention::kScaleBlock);
      }
      continue;
    }
    for (int dim = 0; dim < kDim; ++dim) {
      value(row, head, dim, decoded(shape, output, row, head, dim), want[dim],
            at_least(limits_.element_rel * std::fabs(want[dim]), limits_.element_abs));
    }
  }
}

void Comparison::add(const Comparison& other) {
  fp8_ |= other.fp8_;
  elements_ += other.elements_;
  codes_ += other.codes_;
  codes_equal_ += other.codes_equal_;
  scales_ += other.scales_;
  scales_equal_ += other.scales_equal_;
  xx_ += other.xx_;
  yy_ += other.yy_;
  xy_ += other.xy_;
  dd_ += other.dd_;
  lse_most_ = std::max(lse_most_, other.lse_most_);
  if (other.worst_.excess > worst_.excess) worst_ = other.worst_;
  if (other.worst_lse_.excess > worst_lse_.excess) worst_lse_ = other.worst_lse_;
}

double Comparison::l2() const { return yy_ > 0 ? std::sqrt(dd_ / yy_) : std::sqrt(dd_); }

std::string Comparison::figures() const {
  std::string figures = text("l2 %.2e, lse %.1e", l2(), lse_most_);
  if (fp8_ && codes_ > 0) {
    figures += text(", codes %.3f %%", 100.0 * static_cast<double>(codes_equal_) / static_cast<double>(codes_));
  }
  return figures;
}

std::string Comparison::verdict() const {
  std::string verdict;
  const auto complain = [&](const std::string& what) { verdict += (verdict.empty() ? "" : "; ") + what; };
  if (elements_ == 0) complain("nothing was compared");
  if (worst_.excess > 1) {
    complain(text("row %d head %d dim %d is %.6g, should be %.6g (%.3g times the bound)", worst_.row, worst_.head,
                  worst_.dim, worst_.got, worst_.want, worst_.excess));
  }
  if (worst_lse_.excess > 0) {
    complain(text("lse of row %d head %d is %.9g, should be %.9g", worst_lse_.row, worst_lse_.head, worst_lse_.got,
                  worst_lse_.want));
  }
  const double l2_limit = fp8_ ? limits_.fp8_l2 : limits_.l2;
  if (l2() > l2_limit) complain(text("relative error %.3e above %.1e", l2(), l2_limit));
  const double cosine = xx_ + yy_ > 0 ? 1 - 2 * xy_ / (xx_ + yy_) : 0;
  if (!fp8_ && cosine > limits_.cosine) complain(text("cosine difference %.2e above %.1e", cosine, limits_.cosine));
  if (fp8_ && static_cast<double>(codes_equal_) < limits_.fp8_codes_equal * static_cast<double>(codes_)) {
    complain(text("only %.2f %% of the e4m3 codes are the oracle's",
                  100.0 * static_cast<double>(codes_equal_) / static_cast<double>(codes_)));
  }
  if (fp8_ && static_cast<double>(scales_equal_) < limits_.fp8_scales_equal * static_cast<double>(scales_)) {
    complain(text("only %.2f %% of the scales are the oracle's",
                  100.0 * static_cast<double>(scales_equal_) / static_cast<double>(scales_)));
  }
  return verdict;
}

Difference difference(const onelane_attention_shape& shape, const Output& a, const Output& b) {
  Difference total;
  double dd = 0, aa = 0;
  std::mutex mutex;
  parallel_for(shape.rows, 1, [&](int64_t row64) {
    const int row = static_cast<int>(row64);
    Difference part;
    double part_dd = 0, part_aa = 0;
    for (int head = 0; head < shape.heads; ++head) {
      const size_t at = static_cast<size_t>(row) * shape.heads + head;
      part.lse_most = std::max(part.lse_most, lse_difference(a.lse[at], b.lse[at]));
      bool same_scale = true;
      for (int dim = 0; dim < kDim; ++dim) {
        if (shape.output != ONELANE_OUT_BF16 && dim % attention::kScaleBlock == 0) {
          const size_t scale = attention::scale_offset(shape, row, head, dim / attention::kScaleBlock);
          same_scale = a.scales[scale] == b.scales[scale];
          ++part.scales;
          part.scales_equal += same_scale;
        }
        ++part.elements;
        const double x = decoded(shape, a, row, head, dim);
        const double y = decoded(shape, b, row, head, dim);
        // As values: with a denominator that is infinite, kernels end at zeros of either sign.
        const bool same = x == y || (std::isnan(x) && std::isnan(y));
        part.equal += same_scale && same;
        constexpr double kNothing = 0x1p-24;
        part.nothing += same_scale && !same && std::abs(x) < kNothing && std::abs(y) < kNothing;
        if (std::isnan(x) && std::isnan(y)) continue;
        part_dd += (x - y) * (x - y);
        part_aa += x * x;
      }
    }
    const std::lock_guard lock(mutex);
    total.elements += part.elements;
    total.equal += part.equal;
    total.nothing += part.nothing;
    total.scales += part.scales;
    total.scales_equal += part.scales_equal;
    total.lse_most = std::max(total.lse_most, part.lse_most);
    dd += part_dd;
    aa += part_aa;
  });
  total.l2 = aa > 0 ? std::sqrt(dd / aa) : std::sqrt(dd);
  return total;
}

std::string unwritten(const onelane_attention_shape& shape, const Output& output, int faulty_row) {
  std::mutex mutex;
  std::string found;
  parallel_for(shape.rows, 4, [&](int64_t row64) {
    const int row = static_cast<int>(row64);
    if (row == faulty_row) return;
    for (int head = 0; head < shape.heads; ++head) {
      const bool lse = !std::isnan(output.lse[static_cast<size_t>(row) * shape.heads + head]);
      int dim = 0;
      while (dim < kDim && !std::isnan(decoded(shape, output, row, head, dim))) ++dim;
      if (lse && dim == kDim) continue;
      const std::lock_guard lock(mutex);
      if (found.empty())
        found = text("%s of row %d head %d is NaN or was never written", lse ? "out" : "lse", row, head);
      return;
    }
  });
  return found;
}

Comparison compare_with_oracle(const Problem& problem, const Output& output, const Limits& limits, double budget) {
  const onelane_attention_shape& shape = problem.spec.shape;
  const int groups = shape.heads / kUnitHeads;
  const int units = shape.rows * groups;
  const double unit_cost = 1024.0 * (kUnitHeads + 1) * std::max(1, shape.window_width + shape.extra_width);
  const int count = std::clamp(static_cast<int>(std::min(budget / unit_cost, 1e9)), std::min(units, 16), units);
  std::vector<int> chosen;
  Random random(problem.spec.seed, 5);
  for (int i = 0; i < count; ++i) {
    // Evenly over the rows, and any head group.
    const int row = count == 1 ? 0 : static_cast<int>(int64_t{i} * (shape.rows - 1) / (count - 1));
    chosen.push_back(count == units ? i : row * groups + random.below(groups));
  }
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());

  Comparison total(limits);
  std::mutex mutex;
  parallel_for(static_cast<int64_t>(chosen.size()), 1, [&](int64_t i) {
    const int row = chosen[static_cast<size_t>(i)] / groups;
    const int head = chosen[static_cast<size_t>(i)] % groups * kUnitHeads;
    if (row == problem.faulty_row) return;  // what a spoiled row holds is not specified
    // The unit as a call of its own: 8 heads of one row.
    onelane_attention_shape unit = shape;
    unit.rows = 1;
    unit.heads = kUnitHeads;
    onelane_attention_args args = problem.host_args();
    args.q = problem.q.data() + (static_cast<size_t>(row) * shape.heads + head) * kDim;
    if (args.sink != nullptr) args.sink += head;
    if (args.positions != nullptr) args.positions += row;
    for (onelane_attention_list* list : {&args.window, &args.extra}) {
      if (list->indices != nullptr) list->indices += row * list->index_stride;
      if (list->lengths != nullptr) list->lengths += row;
    }
    Comparison part(limits);
    part.add(shape, output, row, head, attention::reference_rows(unit, args));
    const std::lock_guard lock(mutex);
    total.add(part);
  });
  return total;
}

}  // namespace onelane::attention_test
