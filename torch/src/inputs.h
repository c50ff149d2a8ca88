// The tensors of one call, checked and laid out as the C interface (onelane/attention.h) wants them.
#pragma once

#include <onelane/attention.h>

#include "arguments.h"

namespace onelane::torch_operator {

// One of the two entry lists, as it came.
struct ListInput {
  const char* name;  // "window" or "extra"
  const OptionalTensor& cache;
  const OptionalTensor& indices;
  const OptionalTensor& lengths;
  int64_t format;
  int64_t page_size;
};

struct Inputs {
  const Tensor& q;
  ListInput window;
  ListInput extra;
  double scale;
  const OptionalTensor& sink;
  const OptionalTensor& positions;
  const OptionalTensor& cos_sin;
  int64_t output;
  int64_t splits;
};

// A call as the C interface sees it, its outputs and its workspace still missing.
struct Call {
  onelane_attention_plan plan;
  onelane_attention_args args;
};

// The plan of a shape on the device of q. Throws when there is none.
onelane_attention_plan make_plan(const Tensor& q, const onelane_attention_shape& shape);

// The formats, the output and the splits of a shape, checked; q must be [rows, heads, 512].
onelane_attention_shape make_shape(const Tensor& q, int64_t window_width, int64_t extra_width, int64_t window_format,
                                   int64_t extra_format, int64_t output, int64_t splits);

// Checks every input. q must have rows.
Call prepare(const Inputs& inputs);

// Only the shape: what a call without rows needs.
onelane_attention_shape shape_of(const Inputs& inputs);

// Runs on the current stream of q's device, or on the CPU. Throws the library's own sentence if it refuses.
void launch(const Tensor& q, const Call& call);

}  // namespace onelane::torch_operator
