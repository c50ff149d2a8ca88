#include "kernels/attention/reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/attention/status.h"
#include "kernels/attention/validate.h"
#include "numerics/formats.h"
#include "numerics/quantize.h"
#include "numerics/records.h"

namespace onelane::attention {
namespace {

constexpr int kDim = ONELANE_ATTENTION_DIM;
constexpr int kRope = ONELANE_ATTENTION_ROPE_DIM;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

float load_bf16(const void* base, size_t index) {
  uint16_t code;
  std::memcpy(&code, static_cast<const uint8_t*>(base) + index * sizeof(code), sizeof(code));
  return bf16_to_float(code);
}

// Appends the records that the row's list names, decoded.
void gather(const onelane_attention_list& list, onelane_kv_format format, int width, int row,
            std::vector<double>& entries) {
  for (int i = 0; i < list_length(list, width, row); ++i) {
    const RecordPlace place = find_record(list, format, list.indices[row * list.index_stride + i]);
    if (place.data == nullptr) continue;
    float values[kDim];
    decode_record(format, place.data, place.scales, values);
    entries.insert(entries.end(), values, values + kDim);
  }
}

// Spec: scores s_t = scale * q . kv_t; out = sum_t exp(s_t) kv_t / (sum_t exp(s_t) + exp(sink)), against the largest
// score. `out` [512]; returns the natural log of the sum without the sink.
double attend(std::span<const double> entries, const double* q, double scale, double sink, double* out) {
  std::fill_n(out, kDim, 0.0);
  const size_t count = entries.size() / kDim;
  if (count == 0) return kInfinity;
  std::vector<double> scores(count);
  double most = -kInfinity;
  for (size_t t = 0; t < count; ++t) {
    std::array<double, 8> sums{};  // several chains, or a test takes minutes
    for (size_t d = 0; d < kDim; d += 8) {
      for (size_t i = 0; i < 8; ++i) sums[i] += q[d + i] * entries[t * kDim + d + i];
    }
    for (const double sum : sums) scores[t] += sum;
    scores[t] *= scale;
    most = std::max(most, scores[t]);
  }
  double total = 0;
  for (size_t t = 0; t < count; ++t) {
    const double p = std::exp(scores[t] - most);
    total += p;
    for (size_t d = 0; d < kDim; ++d) out[d] += p * entries[t * kDim + d];
  }
  const double lse = most + std::log(total);
  // The sink against the whole sum: never an overflow, whatever its size.
  const double share = 1.0 / (1.0 + std::exp(sink - lse));
  for (int d = 0; d < kDim; ++d) out[d] = out[d] / total * share;
  return lse;
}

void rotate_back(const onelane_attention_args& args, int row, double* out) {
  const int position = std::clamp(args.positions[row], 0, args.angles_count - 1);
  const float* angles = args.angles + static_cast<size_t>(position) * kRope;
  double* pairs = out + kDim - kRope;
  for (int i = 0; i < kRope / 2; ++i) {
    const double cosine = angles[i];
    const double sine = angles[kRope / 2 + i];
    const double x = pairs[2 * i];
    const double y = pairs[2 * i + 1];
    pairs[2 * i] = x * cosine + y * sine;
    pairs[2 * i + 1] = y * cosine - x * sine;
  }
}

}  // namespace

void decode_record(onelane_kv_format format, const uint8_t* data, const uint8_t* scales, float* values) {
  switch (format) {
    case ONELANE_KV_BF16:
      for (size_t i = 0; i < kDim; ++i) values[i] = load_bf16(data, i);
      return;
    case ONELANE_KV_V4:
      return onelane::decode_record(RecordFormat::kV4Fp8, data, scales, values);
    case ONELANE_KV_V41_FP8:
      return onelane::decode_record(RecordFormat::kV41Fp8, data, scales, values);
    case ONELANE_KV_V41_FP4:
      return onelane::decode_record(RecordFormat::kV41Nvfp4, data, scales, values);
  }
}

ReferenceResult reference_rows(const onelane_attention_shape& shape, const onelane_attention_args& args, int first,
                               int count) {
  const size_t heads = static_cast<size_t>(shape.heads);
  ReferenceResult result;
  result.out.resize(static_cast<size_t>(count) * heads * kDim);
  result.lse.resize(static_cast<size_t>(count) * heads);
  std::vector<double> entries;
  for (int r = 0; r < count; ++r) {
    const int row = first + r;
    entries.clear();
    gather(args.window, shape.window_format, shape.window_width, row, entries);
    gather(args.extra, shape.extra_format, shape.extra_width, row, entries);
    for (size_t head = 0; head < heads; ++head) {
      double q[kDim];
      for (size_t d = 0; d < kDim; ++d) q[d] = load_bf16(args.q, (static_cast<size_t>(row) * heads + head) * kDim + d);
      const size_t at = static_cast<size_t>(r) * heads + head;
      double* out = result.out.data() + at * kDim;
      const double sink = args.sink == nullptr ? -kInfinity : args.sink[head];
      result.lse[at] = attend(entries, q, args.scale, sink, out);
      if (args.positions != nullptr) rotate_back(args, row, out);
    }
  }
  return result;
}

void store_reference(const onelane_attention_shape& shape, const onelane_attention_args& args, int first,
                     const ReferenceResult& result) {
  const int count = static_cast<int>(result.lse.size()) / shape.heads;
  auto* bytes = static_cast<uint8_t*>(args.out);
  for (int i = 0; i < count * shape.heads; ++i) {
    const int row = first + i / shape.heads;
    const int head = i % shape.heads;
    if (args.lse != nullptr) {
      args.lse[static_cast<size_t>(row) * static_cast<size_t>(shape.heads) + static_cast<size_t>(head)] =
          static_cast<float>(result.lse[static_cast<size_t>(i)]);
    }
    float values[kDim];
    for (size_t d = 0; d < kDim; ++d) values[d] = static_cast<float>(result.out[static_cast<size_t>(i) * kDim + d]);
    if (shape.output == ONELANE_OUT_BF16) {
      for (int d = 0; d < kDim; ++d) {
        const uint16_t code = float_to_bf16(values[d]);
        std::memcpy(bytes + 2 * value_offset(shape, row, head, d), &code, sizeof(code));
      }
      continue;
    }
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const std::span<const float> block(values + chunk * kScaleBlock, kScaleBlock);
      const uint8_t scale = quantize_fp8_block(block, bytes + value_offset(shape, row, head, chunk * kScaleBlock));
      static_cast<uint8_t*>(args.out_scales)[scale_offset(shape, row, head, chunk)] = scale;
    }
  }
}

int run_reference(const onelane_attention_plan& plan, const onelane_attention_args& args) {
  return guarded([&]() -> Result<void> {
    ONELANE_TRY(check_run(plan, args, plan.path == ONELANE_PATH_CPU));
    for (int row = 0; row < plan.shape.rows; ++row) {
      store_reference(plan.shape, args, row, reference_rows(plan.shape, args, row, 1));
    }
    return {};
  });
}

}  // namespace onelane::attention
