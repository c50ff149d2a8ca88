#include "inputs.h"

#include <algorithm>
#include <map>

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

// In libtorch_cuda: absent from a PyTorch that was built for the CPU, where nothing asks for it.
extern "C" [[gnu::weak]] AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);

namespace onelane::torch_operator {
namespace {

constexpr int64_t kDim = ONELANE_ATTENTION_DIM;

void check_status(int status) { ONELANE_TORCH_CHECK(status == ONELANE_ATTENTION_OK, onelane_attention_message()); }

// Of q's device, which is the current one. Asked once a thread and device: it does not change.
onelane_attention_device describe(const Tensor& q) {
  if (q.is_cpu()) {
    const int32_t threads = static_cast<int32_t>(std::min<uint32_t>(torch::stable::get_num_threads(), 1024));
    return {.arch = 0, .processors = threads, .shared_bytes = 0, .cluster_blocks = 1};
  }
  thread_local std::map<int32_t, onelane_attention_device> known;
  const auto found = known.find(q.get_device_index());
  if (found != known.end()) return found->second;
  onelane_attention_device device;
  check_status(onelane_attention_describe_cuda(&device));
  known[q.get_device_index()] = device;
  return device;
}

// Width of a list: indices int32 [rows, width] or [rows, 1, width].
int64_t width_of(const ListInput& list, int64_t rows) {
  if (!list.indices.has_value()) return 0;
  const Tensor& indices = *list.indices;
  const bool flat = indices.dim() == 2;
  ONELANE_TORCH_CHECK((flat || (indices.dim() == 3 && indices.size(1) == 1)) && indices.size(0) == rows, list.name,
                      "_indices must be [", rows, ", width], not ", shape_text(indices));
  return indices.size(flat ? 1 : 2);
}

struct RecordSize {
  const char* name;
  int64_t bytes;
};
constexpr RecordSize kRecords[] = {{"bf16", 1024}, {"v4", 584}, {"v41_fp8", 528}, {"v41_fp4", 288}};

// Cache [pages, ...], each page dense: page_size records. What follows a page's records up to the next page is its own.
void read_cache(const ListInput& list, const Tensor& q, onelane_attention_list& out) {
  ONELANE_TORCH_CHECK(list.cache.has_value(), list.name, "_indices without ", list.name, "_cache");
  const Tensor& cache = *list.cache;
  const std::string name = std::string(list.name) + "_cache";
  check_dtype(name.c_str(), cache, {kUInt8, kFloat8, kBFloat16});
  check_device(name.c_str(), cache, q);
  const RecordSize& record = kRecords[list.format];
  ONELANE_TORCH_CHECK(list.page_size >= 1, list.name, "_page_size is ", list.page_size, "; at least 1");
  ONELANE_TORCH_CHECK(cache.dim() >= 2 && cache.size(0) >= 1, name, " must be [pages, page_bytes], not ",
                      shape_text(cache));
  ONELANE_TORCH_CHECK(dense_from(cache, 1), name, " must be contiguous within a page (stride only in dim 0)");
  const auto element = static_cast<int64_t>(cache.element_size());
  const int64_t held = cache.numel() / cache.size(0) * element;
  ONELANE_TORCH_CHECK(held / record.bytes >= list.page_size, name, " has ", held, " bytes a page; ", list.page_size,
                      " records of ", record.name, " take ", list.page_size * record.bytes);
  const bool single = cache.size(0) == 1;  // its stride says nothing
  const int64_t page_bytes = single ? (held + 15) / 16 * 16 : cache.stride(0) * element;
  ONELANE_TORCH_CHECK(page_bytes % 16 == 0, name, " has pages ", page_bytes,
                      " bytes apart; a multiple of 16 is needed");
  ONELANE_TORCH_CHECK(page_bytes >= held, name, " has pages that overlap");
  out.pages = cache.const_data_ptr();
  ONELANE_TORCH_CHECK(reinterpret_cast<uintptr_t>(out.pages) % 16 == 0, name, " must be aligned to 16 bytes");
  out.page_bytes = page_bytes;
  out.page_records = narrow_int((std::string(list.name) + "_page_size").c_str(), list.page_size);
  out.pages_count = narrow_int((name + ".size(0)").c_str(), cache.size(0));
}

onelane_attention_list read_list(const ListInput& list, const Tensor& q, int64_t width) {
  onelane_attention_list out = {};
  if (width == 0) return out;
  read_cache(list, q, out);
  const Tensor& indices = *list.indices;
  const std::string name = std::string(list.name) + "_indices";
  check_dtype(name.c_str(), indices, {kInt32});
  check_device(name.c_str(), indices, q);
  ONELANE_TORCH_CHECK(dense_from(indices, indices.dim() - 1), name, " must be contiguous within a row");
  out.index_stride = indices.size(0) == 1 ? width : indices.stride(0);
  ONELANE_TORCH_CHECK(out.index_stride >= width, name, " has rows that overlap");
  out.indices = static_cast<const int32_t*>(indices.const_data_ptr());
  if (list.lengths.has_value()) {
    const std::string lengths = std::string(list.name) + "_lengths";
    check_dtype(lengths.c_str(), *list.lengths, {kInt32});
    check_dense(lengths.c_str(), *list.lengths, q, {q.size(0)});
    out.lengths = pointer<int32_t>(list.lengths);
  }
  return out;
}

}  // namespace

onelane_attention_shape make_shape(const Tensor& q, int64_t window_width, int64_t extra_width, int64_t window_format,
                                   int64_t extra_format, int64_t output, int64_t splits) {
  check_dtype("q", q, {kBFloat16});
  ONELANE_TORCH_CHECK(q.dim() == 3 && q.size(2) == kDim, "q must be [rows, heads, 512], not ", shape_text(q));
  for (const auto& [name, format] : {std::pair{"window_format", window_format}, {"extra_format", extra_format}}) {
    ONELANE_TORCH_CHECK(format >= ONELANE_KV_BF16 && format <= ONELANE_KV_V41_FP4, name, " is ", format,
                        "; 0 (bf16), 1 (v4), 2 (v41_fp8) or 3 (v41_fp4)");
  }
  ONELANE_TORCH_CHECK(output >= ONELANE_OUT_BF16 && output <= ONELANE_OUT_FP8_GROUPED, "output is ", output,
                      "; 0 (bf16), 1 (fp8) or 2 (fp8_grouped)");
  ONELANE_TORCH_CHECK(splits >= 0, "splits is ", splits, "; 0 (chosen) or the most parts of a row");
  return {.rows = narrow_int("q.size(0)", q.size(0)),
          .heads = narrow_int("q.size(1)", q.size(1)),
          .window_width = narrow_int("the width of window_indices", window_width),
          .extra_width = narrow_int("the width of extra_indices", extra_width),
          .window_format = static_cast<onelane_kv_format>(window_format),
          .extra_format = static_cast<onelane_kv_format>(extra_format),
          .output = static_cast<onelane_attention_output>(output),
          .splits = narrow_int("splits", splits)};
}

onelane_attention_shape shape_of(const Inputs& inputs) {
  ONELANE_TORCH_CHECK(inputs.q.dim() == 3, "q must be [rows, heads, 512], not ", shape_text(inputs.q));
  const int64_t rows = inputs.q.size(0);
  return make_shape(inputs.q, width_of(inputs.window, rows), width_of(inputs.extra, rows), inputs.window.format,
                    inputs.extra.format, inputs.output, inputs.splits);
}

onelane_attention_plan make_plan(const Tensor& q, const onelane_attention_shape& shape) {
  const onelane_attention_device device = describe(q);
  onelane_attention_plan plan;
  check_status(onelane_attention_make_plan(&shape, &device, &plan));
  return plan;
}

Call prepare(const Inputs& inputs) {
  const Tensor& q = inputs.q;
  const onelane_attention_shape shape = shape_of(inputs);
  ONELANE_TORCH_CHECK(q.is_contiguous(), "q must be contiguous");
  Call call = {.plan = make_plan(q, shape), .args = {}};
  onelane_attention_args& args = call.args;
  args.q = q.const_data_ptr();
  args.window = read_list(inputs.window, q, shape.window_width);
  args.extra = read_list(inputs.extra, q, shape.extra_width);
  args.scale = static_cast<float>(inputs.scale);
  if (inputs.sink.has_value()) {
    check_dtype("sink", *inputs.sink, {kFloat32});
    check_dense("sink", *inputs.sink, q, {q.size(1)});
    args.sink = pointer<float>(inputs.sink);
  }
  ONELANE_TORCH_CHECK(inputs.positions.has_value() == inputs.cos_sin.has_value(),
                      inputs.positions.has_value() ? "positions without cos_sin" : "cos_sin without positions");
  if (inputs.positions.has_value()) {
    check_dtype("positions", *inputs.positions, {kInt32});
    check_dense("positions", *inputs.positions, q, {q.size(0)});
    const Tensor& angles = *inputs.cos_sin;
    check_dtype("cos_sin", angles, {kFloat32});
    ONELANE_TORCH_CHECK(angles.dim() == 2 && angles.size(1) == ONELANE_ATTENTION_ROPE_DIM && angles.size(0) >= 1,
                        "cos_sin must be [positions, 64], not ", shape_text(angles));
    check_dense("cos_sin", angles, q, {angles.size(0), ONELANE_ATTENTION_ROPE_DIM});
    args.positions = pointer<int32_t>(inputs.positions);
    args.angles = pointer<float>(inputs.cos_sin);
    args.angles_count = static_cast<int32_t>(std::min<int64_t>(angles.size(0), INT32_MAX));
  }
  return call;
}

void launch(const Tensor& q, const Call& call) {
  if (q.is_cpu()) {
    check_status(onelane_attention_run_cpu(&call.plan, &call.args));
    return;
  }
  ONELANE_TORCH_CHECK(aoti_torch_get_current_cuda_stream != nullptr, "this PyTorch was built without CUDA");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(q.get_device_index(), &stream));
  check_status(onelane_attention_run_cuda(&call.plan, &call.args, stream));
}

}  // namespace onelane::torch_operator
