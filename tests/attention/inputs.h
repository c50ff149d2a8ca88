// Problems for the attention library, from a seed: every shape of the contract, with the values that have broken
// published kernels where they are allowed (spec/attention.md sections 1.3, 4.2 and 9).
//
// What a kernel must not look at is poison: index slots at or past a row's length hold INT_MAX and other garbage,
// records that no valid index names are filled with 0xff (NaN in every format), operands end where they end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <onelane/attention.h>

#include "kernels/attention/plan.h"

namespace onelane::attention_test {

enum class Lengths {
  kNull,    // no lengths: the whole width
  kFull,    // lengths given, all equal to the width
  kRandom,  // anything from empty to full; some negative or above the width, which are clamped
  kZero     // every row empty
};

enum class Values {
  kPlain,     // q normal, clamped to +-1; records a tenth of that
  kPeaked,    // scores up to about 1e4: one entry or a few ties take all the weight
  kEqual,     // all records alike: the output is that record
  kNegative,  // every score around -4e4: a maximum that starts at 0 or underflows shows
  kFaulty     // one record holds NaN or infinity; one row names it, and only that row may suffer
};

enum class Sinks { kNone, kMixed, kHuge };  // mixed: 31 % +inf, 31 % -inf; huge: finite, up to +-3e38

struct Case {
  std::string name;
  onelane_attention_shape shape{};
  int window_page = 64, extra_page = 64;            // records of a page
  int window_records = 1024, extra_records = 4096;  // of the pool, rounded up to whole pages
  Lengths window_lengths = Lengths::kRandom, extra_lengths = Lengths::kRandom;
  double holes = 0.1;  // share of indices that are -1, INT_MIN or out of range, anywhere in a list
  Sinks sinks = Sinks::kMixed;
  bool rope = false;
  Values values = Values::kPlain;
  float scale = 0;  // 0: 512^-0.55, as FlashMLA's tests have it
  uint64_t seed = 1;
};

struct List {
  onelane_kv_format format = ONELANE_KV_BF16;
  int width = 0;
  int page_records = 1, pages_count = 0;
  int64_t page_bytes = 0, index_stride = 0;
  std::vector<uint8_t> pages;     // up to the last record's end: the last page has no padding
  std::vector<int32_t> indices;   // (rows - 1) * stride + width
  std::vector<int32_t> lengths;   // empty: a null pointer
  std::vector<int32_t> nameable;  // records that remake_rows() may name

  int records() const { return page_records * pages_count; }
  // How many slots of a row count, and whether the slot's index names a record.
  int length(int row) const;
  bool valid(int32_t index) const { return index >= 0 && index < records(); }
};

struct Problem {
  Case spec;
  List window, extra;
  std::vector<uint16_t> q;
  std::vector<float> sink;         // empty: null
  std::vector<int32_t> positions;  // empty: null
  std::vector<float> angles;
  int faulty_row = -1;  // of Values::kFaulty
  float scale = 0;

  int rows() const { return spec.shape.rows; }
  int heads() const { return spec.shape.heads; }
  // Arguments with host pointers; outputs and workspace left null.
  onelane_attention_args host_args() const;
};

inline constexpr int kDim = ONELANE_ATTENTION_DIM;

using attention::record_data_bytes;
using attention::record_scale_bytes;
constexpr int record_bytes(onelane_kv_format format) { return record_data_bytes(format) + record_scale_bytes(format); }
const char* format_name(onelane_kv_format format);

// Writes 512 values into place `place` of a page.
void write_record(onelane_kv_format format, const float* values, uint8_t* page, int page_records, int place);

Problem make_problem(const Case& spec);

// A problem for remake_rows(): the share `live` of the records can be named, the others are poison.
Problem make_standing_problem(const Case& spec, double live);

// Another seed's lists, lengths, queries and positions for `rows` rows, the pools left as they are: what changes from
// step to step of a server. Rows from `live_rows` on are padding: no valid entry, and garbage everywhere else, as stale
// buffers have it.
void remake_rows(Problem& problem, uint64_t seed, int rows, int live_rows);

}  // namespace onelane::attention_test
