// The oracle of the attention library: plain loops in double, for every format, output and path.
//
// It says what a run means where include/onelane/attention.h is brief:
// - probabilities are not rounded; the sink enters the denominator once;
// - a row without entries has output 0 and LSE +inf; a sink of +inf makes the output 0 and leaves the LSE alone;
// - inverse RoPE turns the unrounded output, which is then rounded once: to bf16, or per 32 values to e4m3 with the
// scale
//   2^ceil(log2(max(amax, 1e-4) / 448)), to nearest even, saturating;
// - NaN or infinity in a record that is attended to reaches the rows that attend to it, as NaN; a block of 32 with a
// NaN
//   has scale 255 and codes 0x7f. Records that no index names are never looked at.
#pragma once

#include <cstdint>
#include <vector>

#include <onelane/attention.h>

#include "kernels/attention/layout.h"

namespace onelane::attention {

struct ReferenceResult {
  std::vector<double> out;  // [rows, heads, 512], rotated back but not rounded
  std::vector<double> lse;  // [rows, heads]
};

// Rows [first, first + count) of a checked call. Reads args alone; args.out and the like are left alone.
ReferenceResult reference_rows(const onelane_attention_shape& shape, const onelane_attention_args& args, int first,
                               int count);
inline ReferenceResult reference_rows(const onelane_attention_shape& shape, const onelane_attention_args& args) {
  return reference_rows(shape, args, 0, shape.rows);
}

// Rounds the result of rows [first, ...) into args.out, args.out_scales and args.lse. The grouped layout's padding rows
// are not written.
void store_reference(const onelane_attention_shape& shape, const onelane_attention_args& args, int first,
                     const ReferenceResult& result);

// Both, for all rows, after the checks of a run: what onelane_attention_run_cpu does, slowly. Takes plans of any path;
// the pointers are the host's. Returns a status as the C functions do.
int run_reference(const onelane_attention_plan& plan, const onelane_attention_args& args);

// One record as 512 values: what its codes say, exactly.
void decode_record(onelane_kv_format format, const uint8_t* data, const uint8_t* scales, float* values);

}  // namespace onelane::attention
