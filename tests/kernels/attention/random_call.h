// Random and hostile calls of the attention library, in host memory.
//
// Every operand is a Buffer of its own, so that a fenced run (ONELANE_FENCE=1) sees the first byte past it. What no
// call may look at says so: records that no index names are NaN, places past a row's length hold INT_MAX.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include <onelane/attention.h>

#include "device/buffer.h"
#include "kernels/attention/layout.h"

namespace onelane::attention::testing {

struct ListOptions {
  int page_records = 64;
  int records = 700;       // that some index may name
  int page_padding = 0;    // bytes
  int stride_padding = 0;  // indices a row
  bool lengths = true;     // random ones, some out of range
  double invalid = 0.2;    // share of indices within a length that name nothing
};

struct CallOptions {
  onelane_attention_shape shape{};
  ListOptions window, extra;
  bool sink = true;  // a third each +inf, -inf and normal
  bool rope = true;
  bool lse = true;
  float scale = 0.0441941738f;
  bool flat = false;  // no row is empty, no sink infinite: outputs are of one size
  uint32_t seed = 1;
};

class RandomCall {
 public:
  explicit RandomCall(const CallOptions& options);

  const onelane_attention_shape& shape() const { return shape_; }
  const onelane_attention_args& args() const { return args_; }
  onelane_attention_args& args() { return args_; }

  // A second set of outputs with the same inputs; valid as long as this call.
  struct Outputs {
    Buffer out, scales, lse;
  };
  Outputs outputs() const;
  onelane_attention_args args_with(Outputs& outputs) const;

 private:
  struct List {
    Buffer pages, indices, lengths;
  };
  void fill_list(const ListOptions& options, int width, onelane_kv_format format, bool flat, List& list,
                 onelane_attention_list& args);
  void fill_record(onelane_kv_format format, uint8_t* data, uint8_t* scales);
  float normal() { return std::normal_distribution<float>()(random_); }
  int below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }
  bool chance(double share) { return std::uniform_real_distribution<double>()(random_) < share; }

  onelane_attention_shape shape_;
  onelane_attention_args args_{};
  std::mt19937 random_;
  Buffer q_, sink_, positions_, angles_;
  List window_, extra_;
  Outputs own_;
};

// The outputs as numbers: [rows, heads, 512] in the plain order, whatever the layout.
std::vector<float> output_values(const onelane_attention_shape& shape, const onelane_attention_args& args);

}  // namespace onelane::attention::testing
