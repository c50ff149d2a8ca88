#include "attention/inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/parallel.h"
#include "attention/random.h"
#include "numerics/formats.h"
#include "numerics/records.h"

namespace onelane::attention_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kMaxPosition = 4096;

// Streams of a case's seed; those of a tensor's parts follow its own.
enum Stream : uint64_t {
  kSinks = 1,
  kPositions = 2,
  kWindow = 3,  // also which records may be named, and the records themselves, at these offsets
  kExtra = 4,
  kNameable = 16,
  kQueries = uint64_t{1} << 32,
  kIndices = uint64_t{2} << 32,
  kRecords = uint64_t{8} << 32
};

RecordFormat record_format(onelane_kv_format format) {
  switch (format) {
    case ONELANE_KV_V4:
      return RecordFormat::kV4Fp8;
    case ONELANE_KV_V41_FP8:
      return RecordFormat::kV41Fp8;
    default:
      return RecordFormat::kV41Nvfp4;
  }
}

float clamp1(float value) { return std::clamp(value, -1.0f, 1.0f); }

void record_values(const Case& spec, uint64_t stream, int record, float* values) {
  // Equal: every record draws the same numbers.
  Random random(spec.seed, (stream << 32) + kRecords + (spec.values == Values::kEqual ? 0 : record));
  for (int d = 0; d < kDim; ++d) {
    const float value = random.normal();
    switch (spec.values) {
      case Values::kPeaked:
        values[d] = clamp1(value);
        break;
      case Values::kNegative:
        values[d] = -0.75f - 0.1f * clamp1(value);
        break;
      default:
        values[d] = clamp1(value / 10);
    }
  }
}

void shape_list(List& list, onelane_kv_format format, int width, int page_records, int records) {
  list.format = format;
  list.width = width;
  if (width == 0) return;
  list.page_records = page_records;
  list.pages_count = std::max(1, (records + page_records - 1) / page_records);
  // Whole pages of a multiple of 16 and a padding, so that nobody can take pages for contiguous.
  const int64_t payload = static_cast<int64_t>(page_records) * record_bytes(format);
  list.page_bytes = (payload + 15) / 16 * 16 + 64;
  list.pages.assign(static_cast<size_t>((list.pages_count - 1) * list.page_bytes + payload), 0xff);
}

// Encodes the records marked in `named`, leaves the others 0xff.
void fill_pool(const Case& spec, uint64_t stream, List& list, const std::vector<uint8_t>& named) {
  parallel_for(list.records(), 64, [&](int64_t record) {
    if (!named[static_cast<size_t>(record)]) return;
    float values[kDim];
    record_values(spec, stream, static_cast<int>(record), values);
    uint8_t* page = list.pages.data() + record / list.page_records * list.page_bytes;
    write_record(list.format, values, page, list.page_records, static_cast<int>(record % list.page_records));
  });
}

int32_t garbage(Random& random, const List& list) {
  switch (random.below(5)) {
    case 0:
      return std::numeric_limits<int32_t>::max();
    case 1:
      return std::numeric_limits<int32_t>::min();
    case 2:
      return list.records();  // the first that is not there
    case 3:
      return list.records() + random.below(1 << 20);
    default:
      return -1 - random.below(1000);
  }
}

// Lengths and indices of all rows; `nameable` lists the records that may be named.
void fill_rows(const Case& spec, uint64_t stream, Lengths kind, List& list, const std::vector<int32_t>& nameable,
               int live_rows) {
  if (list.width == 0) return;
  const int rows = spec.shape.rows;
  Random random(spec.seed, stream);
  if (list.index_stride == 0) list.index_stride = list.width + random.below(3) * 4;
  list.lengths.clear();
  for (int row = 0; row < rows && kind != Lengths::kNull; ++row) {
    int length = list.width;
    if (kind == Lengths::kZero) length = -random.below(2);
    if (kind == Lengths::kRandom) {
      const int draw = random.below(16);
      length = draw == 0   ? 0
               : draw == 1 ? -1 - random.below(1 << 30)
               : draw == 2 ? list.width + 1 + random.below(1 << 30)
               : draw <= 5 ? list.width
                           : random.below(list.width + 1);
    }
    // Padding is empty by its length or by its indices.
    if (row >= live_rows) length = random.chance(0.5) ? -random.below(2) : list.width;
    list.lengths.push_back(length);
  }
  list.indices.resize(static_cast<size_t>((rows - 1) * list.index_stride + list.width));
  parallel_for(rows, 16, [&](int64_t row) {
    Random own(spec.seed, kIndices + 16 * static_cast<uint64_t>(row) + stream);
    const int length = list.length(static_cast<int>(row));
    int32_t* indices = list.indices.data() + row * list.index_stride;
    const int64_t slots = row + 1 == rows ? list.width : list.index_stride;
    for (int slot = 0; slot < slots; ++slot) {
      // Beyond the length also indices that look right: whoever follows them gets a wrong sum instead of a fault.
      const bool beyond = slot >= length;
      const bool hole = row >= live_rows && !beyond ? true : own.chance(beyond ? 0.7 : spec.holes);
      indices[slot] = hole ? (!beyond && own.chance(0.5) ? -1 : garbage(own, list))
                           : nameable[static_cast<size_t>(own.below(static_cast<int>(nameable.size())))];
    }
  });
}

std::vector<uint8_t> named_records(const List& list, int rows) {
  std::vector<uint8_t> named(static_cast<size_t>(list.records()), 0);
  for (int row = 0; row < rows && list.width > 0; ++row) {
    const int32_t* indices = list.indices.data() + row * list.index_stride;
    for (int slot = 0; slot < list.length(row); ++slot) {
      if (list.valid(indices[slot])) named[static_cast<size_t>(indices[slot])] = 1;
    }
  }
  return named;
}

std::vector<int32_t> choose_nameable(const List& list, double live, Random random) {
  std::vector<int32_t> nameable;
  for (int record = 0; record < list.records(); ++record) {
    if (random.chance(live)) nameable.push_back(record);
  }
  if (nameable.empty()) nameable.push_back(random.below(std::max(1, list.records())));
  return nameable;
}

void fill_queries(Problem& problem, int live_rows) {
  const Case& spec = problem.spec;
  problem.q.resize(static_cast<size_t>(problem.rows()) * problem.heads() * kDim);
  parallel_for(static_cast<int64_t>(problem.rows()) * problem.heads(), 64, [&](int64_t head) {
    if (head >= static_cast<int64_t>(live_rows) * problem.heads()) {
      std::fill_n(problem.q.begin() + head * kDim, kDim, uint16_t{0xffff});  // NaN
      return;
    }
    Random random(spec.seed, kQueries + static_cast<uint64_t>(head));
    for (int d = 0; d < kDim; ++d) {
      const float value = clamp1(random.normal());
      problem.q[static_cast<size_t>(head * kDim + d)] =
          float_to_bf16(spec.values == Values::kNegative ? 1.0f + 0.1f * value : value);
    }
  });
}

void fill_positions(Problem& problem, int live_rows) {
  if (!problem.spec.rope) return;
  Random random(problem.spec.seed, kPositions);
  problem.positions.resize(static_cast<size_t>(problem.rows()));
  for (int row = 0; row < problem.rows(); ++row) {
    int32_t& position = problem.positions[static_cast<size_t>(row)];
    position = random.below(kMaxPosition);
    const double out_of_range = row < live_rows ? 0.05 : 0.5;
    if (random.chance(out_of_range)) position = -1 - random.below(1 << 30);
    if (random.chance(out_of_range)) position = kMaxPosition + random.below(1 << 30);
  }
}

void fill_constants(Problem& problem) {
  const Case& spec = problem.spec;
  problem.scale = spec.scale > 0 ? spec.scale : static_cast<float>(std::pow(kDim, -0.55));
  if (spec.values == Values::kPeaked || spec.values == Values::kNegative) problem.scale = 100;
  Random random(spec.seed, kSinks);
  for (int head = 0; head < problem.heads() && spec.sinks != Sinks::kNone; ++head) {
    const double draw = random.uniform();
    if (spec.sinks == Sinks::kMixed) {
      problem.sink.push_back(draw < 0.31 ? kInfinity : draw < 0.62 ? -kInfinity : random.normal());
    } else {
      problem.sink.push_back(draw < 0.2   ? 3e38f
                             : draw < 0.4 ? -3e38f
                             : draw < 0.6 ? 1e4f * random.normal()
                                          : 100 * random.normal());
    }
  }
  if (!spec.rope) return;
  problem.angles.resize(static_cast<size_t>(kMaxPosition) * ONELANE_ATTENTION_ROPE_DIM);
  for (size_t position = 0; position < kMaxPosition; ++position) {
    for (size_t i = 0; i < 32; ++i) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(i) / 32);
      problem.angles[position * 64 + i] = static_cast<float>(std::cos(angle));
      problem.angles[position * 64 + 32 + i] = static_cast<float>(std::sin(angle));
    }
  }
}

// NaN in every value and scale; or, where a record has a bf16 part, infinity there.
void poison_record(List& list, int32_t record, bool infinite) {
  uint8_t* page = list.pages.data() + record / list.page_records * list.page_bytes;
  const auto place = static_cast<size_t>(record % list.page_records);
  const auto data_bytes = static_cast<size_t>(record_data_bytes(list.format));
  const auto scale_bytes = static_cast<size_t>(record_scale_bytes(list.format));
  uint8_t* data = page + place * data_bytes;
  const bool has_bf16 = list.format == ONELANE_KV_BF16 || list.format == ONELANE_KV_V4;
  if (infinite && has_bf16) {
    const uint16_t infinity = float_to_bf16(kInfinity);
    const size_t first = list.format == ONELANE_KV_V4 ? 448 : 0;
    for (size_t at = first; at < data_bytes; at += 2) std::memcpy(data + at, &infinity, sizeof(infinity));
    return;
  }
  std::memset(data, 0xff, data_bytes);
  std::memset(page + static_cast<size_t>(list.page_records) * data_bytes + place * scale_bytes, 0xff, scale_bytes);
}

// Poisons one record that only `row` names: the first valid one of its lists, all other mentions of it made holes.
void plant_fault(Problem& problem) {
  List& list = problem.window.width > 0 ? problem.window : problem.extra;
  for (int row = problem.rows() / 2; row < problem.rows(); ++row) {
    const int32_t* own = list.indices.data() + row * list.index_stride;
    const auto found = std::find_if(own, own + list.length(row), [&](int32_t index) { return list.valid(index); });
    if (found == own + list.length(row)) continue;
    const int32_t record = *found;
    for (int other = 0; other < problem.rows(); ++other) {
      if (other == row) continue;
      int32_t* indices = list.indices.data() + other * list.index_stride;
      std::replace(indices, indices + list.width, record, -1);
    }
    poison_record(list, record, problem.spec.seed % 2 == 1);
    problem.faulty_row = row;
    return;
  }
}

Problem begin_problem(const Case& spec) {
  Problem problem;
  problem.spec = spec;
  const onelane_attention_shape& shape = spec.shape;
  shape_list(problem.window, shape.window_format, shape.window_width, spec.window_page, spec.window_records);
  shape_list(problem.extra, shape.extra_format, shape.extra_width, spec.extra_page, spec.extra_records);
  fill_queries(problem, problem.rows());
  fill_positions(problem, problem.rows());
  fill_constants(problem);
  return problem;
}

}  // namespace

const char* format_name(onelane_kv_format format) {
  constexpr const char* kNames[] = {"bf16", "v4", "v41fp8", "v41fp4"};
  return kNames[format];
}

void write_record(onelane_kv_format format, const float* values, uint8_t* page, int page_records, int place) {
  uint8_t* data = page + static_cast<size_t>(place) * record_data_bytes(format);
  if (format == ONELANE_KV_BF16) {
    for (int d = 0; d < kDim; ++d) {
      const uint16_t code = float_to_bf16(values[d]);
      std::memcpy(data + 2 * d, &code, sizeof(code));
    }
    return;
  }
  uint8_t* scales = page + static_cast<size_t>(page_records) * record_data_bytes(format) +
                    static_cast<size_t>(place) * record_scale_bytes(format);
  encode_record(record_format(format), values, data, scales);
}

int List::length(int row) const {
  return lengths.empty() ? width : std::clamp(lengths[static_cast<size_t>(row)], 0, width);
}

onelane_attention_args Problem::host_args() const {
  const auto list_args = [](const List& list) {
    return onelane_attention_list{.pages = list.width ? list.pages.data() : nullptr,
                                  .page_bytes = list.page_bytes,
                                  .page_records = list.page_records,
                                  .pages_count = list.pages_count,
                                  .indices = list.width ? list.indices.data() : nullptr,
                                  .index_stride = list.index_stride,
                                  .lengths = list.lengths.empty() ? nullptr : list.lengths.data()};
  };
  onelane_attention_args args{};
  args.q = q.data();
  args.window = list_args(window);
  args.extra = list_args(extra);
  args.scale = scale;
  args.sink = sink.empty() ? nullptr : sink.data();
  args.positions = positions.empty() ? nullptr : positions.data();
  args.angles = angles.empty() ? nullptr : angles.data();
  args.angles_count = positions.empty() ? 0 : kMaxPosition;
  return args;
}

Problem make_problem(const Case& spec) {
  Problem problem = begin_problem(spec);
  const auto fill = [&](List& list, Stream stream, Lengths lengths) {
    const std::vector<int32_t> nameable = choose_nameable(list, 0.75, Random(spec.seed, kNameable + stream));
    fill_rows(spec, stream, lengths, list, nameable, problem.rows());
    fill_pool(spec, stream, list, named_records(list, problem.rows()));
  };
  if (problem.window.width > 0) fill(problem.window, kWindow, spec.window_lengths);
  if (problem.extra.width > 0) fill(problem.extra, kExtra, spec.extra_lengths);
  if (spec.values == Values::kFaulty) plant_fault(problem);
  return problem;
}

Problem make_standing_problem(const Case& spec, double live) {
  Problem problem = begin_problem(spec);
  const auto fill = [&](List& list, Stream stream) {
    std::vector<uint8_t> named(static_cast<size_t>(list.records()), 0);
    for (const int32_t record : choose_nameable(list, live, Random(spec.seed, kNameable + stream))) {
      named[static_cast<size_t>(record)] = 1;
    }
    fill_pool(spec, stream, list, named);
    list.nameable.clear();
    for (int record = 0; record < list.records(); ++record) {
      if (named[static_cast<size_t>(record)]) list.nameable.push_back(record);
    }
  };
  if (problem.window.width > 0) fill(problem.window, kWindow);
  if (problem.extra.width > 0) fill(problem.extra, kExtra);
  return problem;
}

void remake_rows(Problem& problem, uint64_t seed, int rows, int live_rows) {
  problem.spec.seed = seed;
  problem.spec.shape.rows = rows;
  fill_queries(problem, live_rows);
  fill_positions(problem, live_rows);
  fill_rows(problem.spec, kWindow, problem.spec.window_lengths, problem.window, problem.window.nameable, live_rows);
  fill_rows(problem.spec, kExtra, problem.spec.extra_lengths, problem.extra, problem.extra.nameable, live_rows);
}

}  // namespace onelane::attention_test
