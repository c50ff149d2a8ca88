// Where things lie: records in pools, codes and scales in outputs. constexpr, so that device code may use it too.
#pragma once

#include <cstddef>
#include <cstdint>

#include <onelane/attention.h>

namespace onelane::attention {

// Bytes of one record's data and of its scales.
constexpr int record_data_bytes(onelane_kv_format format) {
  switch (format) {
    case ONELANE_KV_BF16:
      return 1024;
    case ONELANE_KV_V4:
      return 576;
    case ONELANE_KV_V41_FP8:
      return 512;
    case ONELANE_KV_V41_FP4:
      return 256;
  }
  return 0;
}
constexpr int record_scale_bytes(onelane_kv_format format) {
  switch (format) {
    case ONELANE_KV_BF16:
      return 0;
    case ONELANE_KV_V4:
      return 8;
    case ONELANE_KV_V41_FP8:
      return 16;
    case ONELANE_KV_V41_FP4:
      return 32;
  }
  return 0;
}

// The record that `index` names; nulls when it names none. The product fits an int32: validate.h sees to it.
struct RecordPlace {
  const uint8_t* data = nullptr;
  const uint8_t* scales = nullptr;
};
constexpr bool names_record(const onelane_attention_list& list, int32_t index) {
  return index >= 0 && index < list.page_records * list.pages_count;
}
inline RecordPlace find_record(const onelane_attention_list& list, onelane_kv_format format, int32_t index) {
  if (!names_record(list, index)) return {};
  const int64_t place = index % list.page_records;
  const auto* page = static_cast<const uint8_t*>(list.pages) + index / list.page_records * list.page_bytes;
  return {page + place * record_data_bytes(format),
          page + int64_t{list.page_records} * record_data_bytes(format) + place * record_scale_bytes(format)};
}

// Entries of a row's list that may name records: its length, clamped.
constexpr int list_length(const onelane_attention_list& list, int width, int row) {
  if (width == 0 || list.lengths == nullptr) return width;
  const int32_t length = list.lengths[row];
  return length < 0 ? 0 : length < width ? length : width;
}

// -- outputs ---------------------------------------------------------------------------------------------------------

constexpr int kScaleBlock = 32;  // dims that share an e8m0 scale
constexpr int kChunks = ONELANE_ATTENTION_DIM / kScaleBlock;
constexpr int kGroupHeads = 8;

// Index of output value (row, head, dim), in values.
constexpr size_t value_offset(const onelane_attention_shape& shape, int row, int head, int dim) {
  const size_t first = static_cast<size_t>(row) * static_cast<size_t>(shape.heads) * ONELANE_ATTENTION_DIM;
  if (shape.output != ONELANE_OUT_FP8_GROUPED) return first + static_cast<size_t>(head * ONELANE_ATTENTION_DIM + dim);
  const int group = head / kGroupHeads * kGroupHeads * ONELANE_ATTENTION_DIM;
  return first + static_cast<size_t>(group + (dim / kScaleBlock * kGroupHeads + head % kGroupHeads) * kScaleBlock +
                                     dim % kScaleBlock);
}

constexpr int padded_rows(int rows) { return (rows + 3) / 4 * 4; }

// Byte of the e8m0 scale of (row, head, chunk of 32 dims).
constexpr size_t scale_offset(const onelane_attention_shape& shape, int row, int head, int chunk) {
  if (shape.output != ONELANE_OUT_FP8_GROUPED) {
    return (static_cast<size_t>(row) * static_cast<size_t>(shape.heads) + static_cast<size_t>(head)) * kChunks +
           static_cast<size_t>(chunk);
  }
  const int byte = chunk * kGroupHeads + head % kGroupHeads;
  const size_t word = static_cast<size_t>(head / kGroupHeads * (kChunks * kGroupHeads / 4) + byte / 4);
  return (word * static_cast<size_t>(padded_rows(shape.rows)) + static_cast<size_t>(row)) * 4 +
         static_cast<size_t>(byte % 4);
}

constexpr size_t out_bytes(const onelane_attention_shape& shape) {
  const size_t values = static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.heads) * ONELANE_ATTENTION_DIM;
  return shape.output == ONELANE_OUT_BF16 ? 2 * values : values;
}
constexpr size_t out_scale_bytes(const onelane_attention_shape& shape) {
  if (shape.output == ONELANE_OUT_BF16) return 0;
  const int rows = shape.output == ONELANE_OUT_FP8_GROUPED ? padded_rows(shape.rows) : shape.rows;
  return static_cast<size_t>(rows) * static_cast<size_t>(shape.heads) * kChunks;
}

}  // namespace onelane::attention
