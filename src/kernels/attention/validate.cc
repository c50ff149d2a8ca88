#include "kernels/attention/validate.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/attention/message.h"
#include "kernels/attention/plan.h"

namespace onelane::attention {
namespace {

constexpr size_t kTensorAlignment = 16;

Result<void> check_pointer(const char* name, const void* pointer, size_t alignment) {
  if (pointer == nullptr) ONELANE_ATTENTION_REFUSE("%s is null", name);
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
    ONELANE_ATTENTION_REFUSE("%s must be aligned to %zu bytes", name, alignment);
  }
  return {};
}

Result<void> check_optional(const char* name, const void* pointer, size_t alignment) {
  return pointer == nullptr ? Result<void>() : check_pointer(name, pointer, alignment);
}

Result<void> check_pool(const onelane_attention_list& list, onelane_kv_format format) {
  ONELANE_TRY(check_pointer("pages", list.pages, kTensorAlignment));
  if (list.page_records < 1) ONELANE_ATTENTION_REFUSE("page_records is %d; at least 1", list.page_records);
  if (list.pages_count < 1) ONELANE_ATTENTION_REFUSE("pages_count is %d; at least 1", list.pages_count);
  const int64_t records = int64_t{list.page_records} * list.pages_count;
  if (records > std::numeric_limits<int32_t>::max()) {
    ONELANE_ATTENTION_REFUSE("page_records * pages_count is %lld; an index is an int32",
                             static_cast<long long>(records));
  }
  const auto page_bytes = static_cast<long long>(list.page_bytes);
  if (page_bytes % 16 != 0) ONELANE_ATTENTION_REFUSE("page_bytes is %lld; a multiple of 16 is needed", page_bytes);
  const int64_t record = record_data_bytes(format) + record_scale_bytes(format);
  if (record * list.page_records > std::numeric_limits<int32_t>::max()) {
    ONELANE_ATTENTION_REFUSE("page_records is %d; records of a page may have 2 GiB together", list.page_records);
  }
  if (page_bytes < record * list.page_records) {
    ONELANE_ATTENTION_REFUSE("page_bytes is %lld; %d records of %lld bytes need %lld", page_bytes, list.page_records,
                             static_cast<long long>(record), static_cast<long long>(record * list.page_records));
  }
  return {};
}

Result<void> check_list(const char* name, const onelane_attention_list& list, int width, onelane_kv_format format) {
  if (width == 0) return {};
  const auto check = [&]() -> Result<void> {
    ONELANE_TRY(check_pool(list, format));
    ONELANE_TRY(check_pointer("indices", list.indices, alignof(int32_t)));
    if (list.index_stride < width) {
      ONELANE_ATTENTION_REFUSE("index_stride is %lld; the plan's width is %d",
                               static_cast<long long>(list.index_stride), width);
    }
    return check_optional("lengths", list.lengths, alignof(int32_t));
  };
  auto checked = check();
  if (!checked) return Error{checked.error().code, std::string(name) + "." + checked.error().message};
  return {};
}

Result<void> check_rope(const onelane_attention_args& args) {
  if (args.positions == nullptr) return {};
  ONELANE_TRY(check_pointer("positions", args.positions, alignof(int32_t)));
  if (args.angles == nullptr) ONELANE_ATTENTION_REFUSE("positions without angles");
  ONELANE_TRY(check_pointer("angles", args.angles, alignof(float)));
  if (args.angles_count < 1) ONELANE_ATTENTION_REFUSE("angles_count is %d; at least 1", args.angles_count);
  return {};
}

Result<void> check_outputs(const onelane_attention_plan& plan, const onelane_attention_args& args) {
  ONELANE_TRY(check_pointer("out", args.out, kTensorAlignment));
  switch (plan.shape.output) {
    case ONELANE_OUT_BF16:
      if (args.out_scales != nullptr) ONELANE_ATTENTION_REFUSE("out_scales must be null for a bf16 output");
      break;
    case ONELANE_OUT_FP8:
      ONELANE_TRY(check_pointer("out_scales", args.out_scales, 1));
      break;
    case ONELANE_OUT_FP8_GROUPED:
      ONELANE_TRY(check_pointer("out_scales", args.out_scales, 4));
      break;
  }
  ONELANE_TRY(check_optional("lse", args.lse, alignof(float)));
  if (plan.workspace_bytes > 0) ONELANE_TRY(check_pointer("workspace", args.workspace, kTensorAlignment));
  return {};
}

}  // namespace

Result<void> check_plan(const onelane_attention_plan& plan) {
  auto shape = check_shape(plan.shape);
  if (!shape) return std::move(shape).error().in("plan.shape");
  const bool cpu = plan.device.arch == 0;
  if ((plan.path == ONELANE_PATH_CPU) != cpu || plan.path > ONELANE_PATH_COMBINE) {
    ONELANE_ATTENTION_REFUSE("plan.path is %d and plan.device.arch is %d; use onelane_attention_make_plan",
                             static_cast<int>(plan.path), plan.device.arch);
  }
  auto device = check_device(plan.device);
  if (!device) return std::move(device).error().in("plan");
  const int most = std::max(1, entries_of(plan.shape));
  if (plan.splits < 1 || plan.splits > most || (cpu && plan.splits != 1)) {
    ONELANE_ATTENTION_REFUSE("plan.splits is %d; 1 to %d are possible", plan.splits, cpu ? 1 : most);
  }
  if (plan.block_heads < 1 || plan.shape.heads % plan.block_heads != 0) {
    ONELANE_ATTENTION_REFUSE("plan.block_heads is %d; it must divide the %d heads", plan.block_heads, plan.shape.heads);
  }
  if (plan.chunks_as_few < 0 || plan.chunks_as_few > 1) {
    ONELANE_ATTENTION_REFUSE("plan.chunks_as_few is %d; it is 0 or 1", plan.chunks_as_few);
  }
  const size_t workspace = workspace_bytes(plan.shape, plan.path, plan.splits);
  if (plan.workspace_bytes != workspace) {
    ONELANE_ATTENTION_REFUSE("plan.workspace_bytes is %zu; %d parts of a row need %zu", plan.workspace_bytes,
                             plan.splits, workspace);
  }
  return {};
}

Result<void> check_run(const onelane_attention_plan& plan, const onelane_attention_args& args, bool cpu) {
  ONELANE_TRY(check_plan(plan));
  if (cpu && plan.path != ONELANE_PATH_CPU) ONELANE_ATTENTION_REFUSE("the plan is for a GPU; this is the CPU's run");
  if (!cpu && plan.path == ONELANE_PATH_CPU) ONELANE_ATTENTION_REFUSE("the plan is for the CPU; this is a GPU's run");
  ONELANE_TRY(check_pointer("q", args.q, kTensorAlignment));
  ONELANE_TRY(check_list("window", args.window, plan.shape.window_width, plan.shape.window_format));
  ONELANE_TRY(check_list("extra", args.extra, plan.shape.extra_width, plan.shape.extra_format));
  if (!std::isfinite(args.scale)) ONELANE_ATTENTION_REFUSE("scale is %g; a finite number is needed", args.scale);
  ONELANE_TRY(check_optional("sink", args.sink, alignof(float)));
  ONELANE_TRY(check_rope(args));
  return check_outputs(plan, args);
}

}  // namespace onelane::attention
