// onelane_attention_run_cpu: lists of record addresses for the CPU kernels' attention core, and what becomes of its
// outputs: sink, inverse RoPE, one rounding. A library of its own (attention_cpu), since the core needs Highway.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <onelane/attention.h>

#include "kernels/attention/layout.h"
#include "kernels/attention/plan.h"
#include "kernels/attention/status.h"
#include "kernels/attention/validate.h"
#include "kernels/cpu/attend_lists.h"
#include "kernels/rope.h"
#include "numerics/formats.h"
#include "numerics/quantize.h"

namespace onelane::attention {
namespace {

constexpr int kDim = ONELANE_ATTENTION_DIM;
constexpr int kRope = ONELANE_ATTENTION_ROPE_DIM;

// Threads and scratch stay from call to call; calls take turns. Never destroyed: a thread may be in a call at exit.
struct Workshop {
  std::mutex mutex;
  std::unique_ptr<cpu::Context> context;
  std::vector<cpu::RecordAddress> records;
  std::vector<cpu::RowRecords> rows;
};
Workshop& workshop() {
  static Workshop* const shop = new Workshop;
  return *shop;
}

RecordFormat record_format(onelane_kv_format format) {
  switch (format) {
    case ONELANE_KV_V4:
      return RecordFormat::kV4Fp8;
    case ONELANE_KV_V41_FP4:
      return RecordFormat::kV41Nvfp4;
    case ONELANE_KV_BF16:  // told by its scales, which are null
    case ONELANE_KV_V41_FP8:
      break;
  }
  return RecordFormat::kV41Fp8;
}

void list_records(const onelane_attention_list& list, onelane_kv_format format, int width, int row,
                  std::vector<cpu::RecordAddress>& records) {
  for (int i = 0; i < list_length(list, width, row); ++i) {
    const RecordPlace place = find_record(list, format, list.indices[row * list.index_stride + i]);
    if (place.data == nullptr) continue;
    records.push_back({place.data, format == ONELANE_KV_BF16 ? nullptr : place.scales, record_format(format)});
  }
}

// What a head's outputs go through on their way out.
struct Store {
  const onelane_attention_shape& shape;
  const onelane_attention_args& args;

  void operator()(int row, int head, float* values, double lse) const {
    if (args.lse != nullptr) args.lse[int64_t{row} * shape.heads + head] = static_cast<float>(lse);
    if (args.sink != nullptr && lse < std::numeric_limits<double>::infinity()) {
      // The sink against the whole sum: never an overflow, whatever its size.
      const auto share = static_cast<float>(1 / (1 + std::exp(args.sink[head] - lse)));
      for (int d = 0; d < kDim; ++d) values[d] *= share;
    }
    if (args.positions != nullptr) {
      const int position = std::clamp(args.positions[row], 0, args.angles_count - 1);
      RopeAngles angles;
      static_assert(sizeof(angles) == kRope * sizeof(float));
      std::memcpy(&angles, args.angles + int64_t{position} * kRope, sizeof(angles));
      rotate(values + kDim - kRope, angles, /*inverse=*/true);
    }
    if (shape.output == ONELANE_OUT_BF16) {
      auto* out = static_cast<uint16_t*>(args.out) + value_offset(shape, row, head, 0);
      for (int d = 0; d < kDim; ++d) out[d] = float_to_bf16(values[d]);
      return;
    }
    auto* out = static_cast<uint8_t*>(args.out);
    auto* scales = static_cast<uint8_t*>(args.out_scales);
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int dim = chunk * kScaleBlock;
      scales[scale_offset(shape, row, head, chunk)] = quantize_fp8_block(
          std::span<const float>(values + dim, kScaleBlock), out + value_offset(shape, row, head, dim));
    }
  }
};

Result<void> run(const onelane_attention_plan& plan, const onelane_attention_args& args) {
  ONELANE_TRY(check_run(plan, args, /*cpu=*/true));
  const onelane_attention_shape& shape = plan.shape;
  Workshop& shop = workshop();
  const std::lock_guard lock(shop.mutex);
  if (shop.context == nullptr || shop.context->threads() != plan.device.processors) {
    shop.context.reset();
    shop.context = std::make_unique<cpu::Context>(plan.device.processors);
  }
  shop.records.clear();
  shop.rows.clear();
  for (int row = 0; row < shape.rows; ++row) {
    const size_t before = shop.records.size();
    list_records(args.window, shape.window_format, shape.window_width, row, shop.records);
    list_records(args.extra, shape.extra_format, shape.extra_width, row, shop.records);
    const auto* q = static_cast<const bf16*>(args.q) + int64_t{row} * shape.heads * kDim;
    shop.rows.push_back({nullptr, static_cast<int>(shop.records.size() - before), q});
  }
  const cpu::RecordAddress* next = shop.records.data();
  for (cpu::RowRecords& row : shop.rows) {
    row.record = next;
    next += row.count;
  }
  Store store{shape, args};
  const cpu::ListSink sink{[](void* context, int row, int head, float* values, double lse) {
                             (*static_cast<const Store*>(context))(row, head, values, lse);
                           },
                           &store};
  cpu::attend_lists(*shop.context, shop.rows.data(), shape.rows, shape.heads, args.scale, sink);
  return {};
}

}  // namespace
}  // namespace onelane::attention

extern "C" int onelane_attention_run_cpu(const onelane_attention_plan* plan, const onelane_attention_args* args) {
  using namespace onelane::attention;
  if (plan == nullptr || args == nullptr) return fail(ONELANE_ATTENTION_INVALID, "plan and args must not be null");
  return guarded([&] { return run(*plan, *args); });
}
