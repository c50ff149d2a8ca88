#include "kernels/attention/random_call.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numerics/formats.h"
#include "numerics/records.h"

namespace onelane::attention::testing {
namespace {

constexpr int kDim = ONELANE_ATTENTION_DIM;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kAngles = 300;

RecordFormat record_format(onelane_kv_format format) {
  return format == ONELANE_KV_V4        ? RecordFormat::kV4Fp8
         : format == ONELANE_KV_V41_FP8 ? RecordFormat::kV41Fp8
                                        : RecordFormat::kV41Nvfp4;
}

}  // namespace

RandomCall::RandomCall(const CallOptions& options) : shape_(options.shape), random_(options.seed) {
  const auto rows = static_cast<size_t>(shape_.rows);
  const auto heads = static_cast<size_t>(shape_.heads);
  q_ = Buffer(rows * heads * kDim * sizeof(uint16_t));
  for (uint16_t& value : q_.as<uint16_t>()) value = float_to_bf16(std::clamp(normal(), -3.0f, 3.0f));
  args_.q = q_.data();
  fill_list(options.window, shape_.window_width, shape_.window_format, options.flat, window_, args_.window);
  fill_list(options.extra, shape_.extra_width, shape_.extra_format, options.flat, extra_, args_.extra);
  args_.scale = options.scale;
  if (options.sink) {
    sink_ = Buffer(heads * sizeof(float));
    for (float& value : sink_.as<float>()) {
      value = normal();
      if (!options.flat && chance(0.6)) value = chance(0.5) ? kInfinity : -kInfinity;
    }
    args_.sink = sink_.as<float>().data();
  }
  if (options.rope) {
    angles_ = Buffer(size_t{kAngles} * ONELANE_ATTENTION_ROPE_DIM * sizeof(float));
    const auto angles = angles_.as<float>();
    for (size_t i = 0; i < angles.size(); ++i) {
      const size_t position = i / ONELANE_ATTENTION_ROPE_DIM;
      const size_t pair = i % 32;
      const double angle = static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(pair) / 32);
      angles[i] = static_cast<float>(i % ONELANE_ATTENTION_ROPE_DIM < 32 ? std::cos(angle) : std::sin(angle));
    }
    positions_ = Buffer(rows * sizeof(int32_t));
    for (int32_t& position : positions_.as<int32_t>()) {
      position = below(kAngles);
      if (chance(0.2)) position = chance(0.5) ? -1 - below(1000) : std::numeric_limits<int32_t>::max() - below(1000);
    }
    args_.positions = positions_.as<int32_t>().data();
    args_.angles = angles.data();
    args_.angles_count = kAngles;
  }
  own_ = outputs();
  if (!options.lse) own_.lse = Buffer();
  args_ = args_with(own_);
}

void RandomCall::fill_list(const ListOptions& options, int width, onelane_kv_format format, bool flat, List& list,
                           onelane_attention_list& args) {
  if (width == 0) return;
  const int record = record_data_bytes(format) + record_scale_bytes(format);
  const int pages = (options.records + options.page_records - 1) / options.page_records;
  args.page_records = options.page_records;
  args.pages_count = pages;
  args.page_bytes = (int64_t{record} * options.page_records + options.page_padding + 15) / 16 * 16;
  list.pages = Buffer(static_cast<size_t>(args.page_bytes) * static_cast<size_t>(pages));
  list.pages.poison();  // NaN in every format, its scales too
  args.pages = list.pages.data();

  const int total = pages * options.page_records;
  const auto rows = static_cast<size_t>(shape_.rows);
  args.index_stride = width + options.stride_padding;
  list.indices = Buffer(rows * static_cast<size_t>(args.index_stride) * sizeof(int32_t));
  args.indices = list.indices.as<int32_t>().data();
  if (options.lengths) {
    list.lengths = Buffer(rows * sizeof(int32_t));
    args.lengths = list.lengths.as<int32_t>().data();
  }
  std::vector<bool> used(static_cast<size_t>(total));
  for (size_t row = 0; row < rows; ++row) {
    int length = width;
    if (options.lengths) {
      length = flat ? 1 + below(width) : below(width + 1);
      list.lengths.as<int32_t>()[row] = length;
      if (!flat && chance(0.2)) {
        constexpr int32_t kWild[] = {-1, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
        const int32_t wild = kWild[below(3)];
        list.lengths.as<int32_t>()[row] = wild;
        length = wild < 0 ? 0 : width;
      }
    }
    for (int i = 0; i < args.index_stride; ++i) {
      int32_t& index =
          list.indices.as<int32_t>()[row * static_cast<size_t>(args.index_stride) + static_cast<size_t>(i)];
      index = std::numeric_limits<int32_t>::max();
      if (i >= length) continue;
      index = below(std::min(total, options.records));
      if (chance(options.invalid) && !(flat && i == 0)) {
        const int32_t wild[] = {-1, -1 - below(100000), total, std::numeric_limits<int32_t>::max(),
                                std::numeric_limits<int32_t>::min()};
        index = wild[below(5)];
        continue;
      }
      if (used[static_cast<size_t>(index)]) continue;
      used[static_cast<size_t>(index)] = true;
      const RecordPlace place = find_record(args, format, index);
      fill_record(format, const_cast<uint8_t*>(place.data), const_cast<uint8_t*>(place.scales));
    }
  }
}

void RandomCall::fill_record(onelane_kv_format format, uint8_t* data, uint8_t* scales) {
  float values[kDim];
  for (float& value : values) value = normal();
  if (format != ONELANE_KV_BF16) return encode_record(record_format(format), values, data, scales);
  for (int i = 0; i < kDim; ++i) reinterpret_cast<uint16_t*>(data)[i] = float_to_bf16(values[i]);
}

RandomCall::Outputs RandomCall::outputs() const {
  Outputs outputs;
  outputs.out = Buffer(out_bytes(shape_));
  outputs.scales = Buffer(out_scale_bytes(shape_));
  outputs.lse = Buffer(static_cast<size_t>(shape_.rows) * static_cast<size_t>(shape_.heads) * sizeof(float));
  outputs.out.poison();
  outputs.scales.poison();
  outputs.lse.poison();
  return outputs;
}

onelane_attention_args RandomCall::args_with(Outputs& outputs) const {
  onelane_attention_args args = args_;
  args.out = outputs.out.data();
  args.out_scales = outputs.scales.data();
  args.lse = outputs.lse.as<float>().data();
  return args;
}

std::vector<float> output_values(const onelane_attention_shape& shape, const onelane_attention_args& args) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.heads) * kDim);
  for (int row = 0; row < shape.rows; ++row) {
    for (int head = 0; head < shape.heads; ++head) {
      for (int dim = 0; dim < kDim; ++dim) {
        const size_t at = value_offset(shape, row, head, dim);
        if (shape.output == ONELANE_OUT_BF16) {
          values.push_back(bf16_to_float(static_cast<const uint16_t*>(args.out)[at]));
          continue;
        }
        const uint8_t scale = static_cast<const uint8_t*>(args.out_scales)[scale_offset(shape, row, head, dim / 32)];
        values.push_back(e4m3_to_float(static_cast<const uint8_t*>(args.out)[at]) * e8m0_to_float(scale));
      }
    }
  }
  return values;
}

}  // namespace onelane::attention::testing
