#include "attention/workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "attention/inputs.h"
#include "attention/random.h"
#include "kernels/attention/layout.h"
#include "numerics/formats.h"

namespace onelane::bench {
namespace {

using attention_test::Random;

constexpr double kColdBytes = 240e6;
constexpr int kFewestNodes = 64;
constexpr int kAngles = 4096;
constexpr size_t kMaxRows = 4096;
constexpr int kSinkHeads = ONELANE_ATTENTION_MAX_HEADS;

double record_bytes_of(const onelane_attention_shape& shape) {
  return static_cast<double>(shape.rows) * (shape.window_width * attention_test::record_bytes(shape.window_format) +
                                            shape.extra_width * attention_test::record_bytes(shape.extra_format));
}

// Fills `bytes` of device memory with copies of `pattern`, doubling what is there.
void tile(void* memory, size_t bytes, const std::vector<uint8_t>& pattern, cudaStream_t stream) {
  size_t done = std::min(bytes, pattern.size());
  CHECK_CUDA(cudaMemcpyAsync(memory, pattern.data(), done, cudaMemcpyHostToDevice, stream));
  while (done < bytes) {
    const size_t more = std::min(done, bytes - done);
    CHECK_CUDA(cudaMemcpyAsync(static_cast<char*>(memory) + done, memory, more, cudaMemcpyDeviceToDevice, stream));
    done += more;
  }
}

template <class T>
void upload(DeviceMemory& memory, const std::vector<T>& values, cudaStream_t stream) {
  memory.reserve(values.size() * sizeof(T));
  CHECK_CUDA(cudaMemcpyAsync(memory.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream));
}

}  // namespace

double floor_bytes(const onelane_attention_shape& shape) {
  const double heads = static_cast<double>(shape.rows) * shape.heads;
  return record_bytes_of(shape) + 4.0 * shape.rows * (shape.window_width + shape.extra_width) +
         heads * ONELANE_ATTENTION_DIM * 2 + static_cast<double>(attention::out_bytes(shape)) +
         static_cast<double>(attention::out_scale_bytes(shape)) + heads * 4;
}

void Workload::prepare_pool(Pool& pool, onelane_kv_format format, int width, int page_records, Timer& timer) {
  pool.width = width;
  pool.list = {};
  if (width == 0) return;
  const int named = sets_ * shape_.rows * width;
  const int pages = (named + page_records - 1) / page_records;
  pool.list.page_records = page_records;
  pool.list.pages_count = pages;
  pool.list.page_bytes = static_cast<int64_t>(page_records) * attention_test::record_bytes(format);
  pool.list.index_stride = width;

  // A few pages of real records, over and over: the time does not depend on values.
  constexpr int kPatternPages = 8;
  std::vector<uint8_t> pattern(static_cast<size_t>(kPatternPages * pool.list.page_bytes));
  Random random(1);
  float values[attention_test::kDim];
  for (int i = 0; i < kPatternPages * page_records; ++i) {
    for (float& value : values) value = std::clamp(random.normal() / 10, -1.0f, 1.0f);
    attention_test::write_record(format, values, pattern.data() + i / page_records * pool.list.page_bytes, page_records,
                                 i % page_records);
  }
  const size_t bytes = static_cast<size_t>(pages) * static_cast<size_t>(pool.list.page_bytes);
  pool.pages.reserve(bytes);
  tile(pool.pages.data(), bytes, pattern, timer.stream());

  // Every record once, in random order, cut into rows and sets.
  std::vector<int32_t> order(static_cast<size_t>(pages) * static_cast<size_t>(page_records));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[static_cast<size_t>(random.below(static_cast<int>(i + 1)))]);
  }
  upload(pool.indices, order, timer.stream());
  pool.list.pages = pool.pages.data();
}

// What is the same for all shapes.
void Workload::prepare_constants(Timer& timer) {
  if (angles_.data() != nullptr) return;
  Random random(3);
  std::vector<float> sink(kSinkHeads);
  for (float& value : sink) value = random.normal();
  upload(sink_, sink, timer.stream());
  std::vector<int32_t> positions(kMaxRows);
  for (int32_t& position : positions) position = random.below(kAngles);
  upload(positions_, positions, timer.stream());
  std::vector<float> angles(static_cast<size_t>(kAngles) * ONELANE_ATTENTION_ROPE_DIM);
  for (size_t i = 0; i < angles.size(); ++i) {
    const double angle = static_cast<double>(i / 64) * std::pow(10000.0, -static_cast<double>(i % 32) / 32);
    angles[i] = static_cast<float>(i % 64 < 32 ? std::cos(angle) : std::sin(angle));
  }
  upload(angles_, angles, timer.stream());
}

void Workload::prepare(const onelane_attention_shape& shape, Timer& timer) {
  shape_ = shape;
  // One set more than fills the span: the one in use does not count.
  sets_ = static_cast<int>(std::ceil(kColdBytes / record_bytes_of(shape))) + 1;
  nodes_ = sets_ * ((kFewestNodes + sets_ - 1) / sets_);
  prepare_pool(window_, shape.window_format, shape.window_width, 256, timer);
  prepare_pool(extra_, shape.extra_format, shape.extra_width, 64, timer);

  Random random(2);
  const auto sets = static_cast<size_t>(sets_);
  const size_t q_bytes = static_cast<size_t>(shape.rows) * shape.heads * ONELANE_ATTENTION_DIM * 2;
  std::vector<uint8_t> q(std::min(q_bytes * sets, size_t{1} << 22));
  for (size_t i = 0; i + 1 < q.size(); i += 2) {
    const uint16_t code = float_to_bf16(std::clamp(random.normal(), -1.0f, 1.0f));
    q[i] = static_cast<uint8_t>(code & 0xff);
    q[i + 1] = static_cast<uint8_t>(code >> 8);
  }
  q_.reserve(q_bytes * sets);
  tile(q_.data(), q_bytes * sets, q, timer.stream());
  out_.reserve(attention::out_bytes(shape) * sets);
  out_scales_.reserve(attention::out_scale_bytes(shape) * sets);
  lse_.reserve(static_cast<size_t>(shape.rows) * shape.heads * sizeof(float) * sets);

  prepare_constants(timer);
  CHECK_CUDA(cudaStreamSynchronize(timer.stream()));
}

onelane_attention_args Workload::args(int node, bool warm) const {
  const auto set = static_cast<size_t>(warm ? 0 : node % sets_);
  onelane_attention_args args{};
  args.q = q_.as<uint8_t>() + set * static_cast<size_t>(shape_.rows) * shape_.heads * ONELANE_ATTENTION_DIM * 2;
  const auto list = [&](const Pool& pool) {
    onelane_attention_list result = pool.list;
    if (pool.width > 0) {
      result.indices = pool.indices.as<int32_t>() + set * static_cast<size_t>(shape_.rows) * pool.width;
    }
    return result;
  };
  args.window = list(window_);
  args.extra = list(extra_);
  args.scale = static_cast<float>(std::pow(ONELANE_ATTENTION_DIM, -0.5));
  args.sink = sink_.as<float>();
  if (shape_.output != ONELANE_OUT_BF16) {  // bf16 is what FlashMLA writes: without the rotation
    args.positions = positions_.as<int32_t>();
    args.angles = angles_.as<float>();
    args.angles_count = kAngles;
    args.out_scales = out_scales_.as<uint8_t>() + set * attention::out_scale_bytes(shape_);
  }
  args.out = out_.as<uint8_t>() + set * attention::out_bytes(shape_);
  args.lse = lse_.as<float>() + set * static_cast<size_t>(shape_.rows) * shape_.heads;
  args.workspace = workspace_.data();
  return args;
}

}  // namespace onelane::bench
