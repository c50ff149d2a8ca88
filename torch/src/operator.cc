// The operators onelane::sparse_mla_decode and its two companions, against PyTorch's stable ABI: one binary serves
// every PyTorch from 2.10 on. README.md and onelane_attention/__init__.py explain the arguments.
//
// They only check, allocate and forward: the work is in libonelane_attention.so.
#include <array>
#include <tuple>

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "inputs.h"

namespace onelane::torch_operator {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::accelerator::DeviceGuard;

constexpr int64_t kDim = ONELANE_ATTENTION_DIM;
constexpr int64_t kScaleChunks = kDim / 32;  // e8m0 scales of a head
constexpr int64_t kGroupHeads = 8;
constexpr int64_t kGroupWords = kGroupHeads * kScaleChunks / 4;  // their int32 words, of a group

// Makes q's device the current one. A tensor of the CPU needs no guard.
std::optional<DeviceGuard> guard(const Tensor& q) {
  if (!q.is_cuda()) return std::nullopt;
  return std::optional<DeviceGuard>(std::in_place, q.get_device_index());
}

template <size_t N>
Tensor allocate(const Tensor& q, const std::array<int64_t, N>& shape, ScalarType type) {
  return torch::stable::new_empty(q, {shape.data(), shape.size()}, type);
}

int64_t padded_rows(int64_t rows) { return (rows + 3) / 4 * 4; }

// The workspace, from the caller or allocated for this call: `holder` keeps it until the launch. The allocator reuses
// memory in the order of the stream, so that it may go right after.
void attach_workspace(Call& call, const Tensor& q, const OptionalTensor& given, OptionalTensor& holder) {
  const auto bytes = static_cast<int64_t>(call.plan.workspace_bytes);
  if (bytes == 0) return;
  if (given.has_value()) {
    check_dtype("workspace", *given, {kUInt8});
    check_device("workspace", *given, q);
    ONELANE_TORCH_CHECK(given->is_contiguous(), "workspace must be contiguous");
    ONELANE_TORCH_CHECK(given->numel() >= bytes, "workspace has ", given->numel(), " bytes; this call needs ", bytes,
                        " (onelane::sparse_mla_decode_workspace)");
    holder = given;
  } else {
    holder = allocate(q, std::array{bytes}, ScalarType::Byte);
  }
  call.args.workspace = holder->mutable_data_ptr();
}

void check_outputs(const Tensor& q, int64_t output, const Tensor& out, const OptionalTensor& out_scales,
                   const OptionalTensor& lse) {
  const int64_t rows = q.size(0);
  const int64_t heads = q.size(1);
  const int64_t groups = heads / kGroupHeads;
  if (output == ONELANE_OUT_BF16) {
    check_dtype("out", out, {kBFloat16});
    check_dense("out", out, q, {rows, heads, kDim});
    ONELANE_TORCH_CHECK(!out_scales.has_value(), "out_scales must be None for a bf16 output");
  } else {
    check_dtype("out", out, {kFloat8, kUInt8});
    ONELANE_TORCH_CHECK(out_scales.has_value(), "out_scales is needed for an fp8 output");
    if (output == ONELANE_OUT_FP8) {
      check_dense("out", out, q, {rows, heads, kDim});
      check_dtype("out_scales", *out_scales, {kUInt8});
      check_dense("out_scales", *out_scales, q, {rows, heads, kScaleChunks});
    } else {
      check_dense("out", out, q, {rows, groups, kGroupHeads * kDim});
      check_dtype("out_scales", *out_scales, {kInt32});
      check_dense("out_scales", *out_scales, q, {groups, kGroupWords, padded_rows(rows)});
    }
  }
  if (lse.has_value()) {
    check_dtype("lse", *lse, {kFloat32});
    check_dense("lse", *lse, q, {rows, heads});
  }
}

void run_into(const Inputs& inputs, const Tensor& out, const OptionalTensor& out_scales, const OptionalTensor& lse,
              const OptionalTensor& workspace) {
  const Tensor& q = inputs.q;
  shape_of(inputs);
  check_outputs(q, inputs.output, out, out_scales, lse);
  if (q.size(0) == 0) return;
  const auto current = guard(q);
  Call call = prepare(inputs);
  OptionalTensor holder;
  attach_workspace(call, q, workspace, holder);
  call.args.out = out.mutable_data_ptr();
  if (out_scales.has_value()) call.args.out_scales = out_scales->mutable_data_ptr();
  if (lse.has_value()) call.args.lse = static_cast<float*>(lse->mutable_data_ptr());
  launch(q, call);
}

// The arguments that both forms begin with, in the order of the schema.
#define ONELANE_INPUTS                                                                                              \
  const Tensor &q, const OptionalTensor &window_cache, const OptionalTensor &window_indices,                        \
      const OptionalTensor &window_lengths, const OptionalTensor &extra_cache, const OptionalTensor &extra_indices, \
      const OptionalTensor &extra_lengths, double scale, int64_t window_format, int64_t window_page_size,           \
      int64_t extra_format, int64_t extra_page_size, const OptionalTensor &sink, const OptionalTensor &positions,   \
      const OptionalTensor &cos_sin, int64_t output, int64_t splits
#define ONELANE_COLLECT                                                                                              \
  Inputs {                                                                                                           \
    q, {"window", window_cache, window_indices, window_lengths, window_format, window_page_size},                    \
        {"extra", extra_cache, extra_indices, extra_lengths, extra_format, extra_page_size}, scale, sink, positions, \
        cos_sin, output, splits                                                                                      \
  }

std::tuple<Tensor, Tensor, Tensor> decode(ONELANE_INPUTS) {
  const Inputs inputs = ONELANE_COLLECT;
  const onelane_attention_shape shape = shape_of(inputs);
  const int64_t rows = shape.rows;
  const int64_t heads = shape.heads;
  const int64_t groups = heads / kGroupHeads;
  Tensor lse = allocate(q, std::array{rows, heads}, ScalarType::Float);
  Tensor out;
  Tensor out_scales;
  switch (shape.output) {
    case ONELANE_OUT_BF16:
      out = allocate(q, std::array{rows, heads, kDim}, ScalarType::BFloat16);
      out_scales = allocate(q, std::array{int64_t{0}}, ScalarType::Byte);
      run_into(inputs, out, std::nullopt, lse, std::nullopt);
      break;
    case ONELANE_OUT_FP8:
      out = allocate(q, std::array{rows, heads, kDim}, ScalarType::Float8_e4m3fn);
      out_scales = allocate(q, std::array{rows, heads, kScaleChunks}, ScalarType::Byte);
      run_into(inputs, out, out_scales, lse, std::nullopt);
      break;
    case ONELANE_OUT_FP8_GROUPED:
      out = allocate(q, std::array{rows, groups, kGroupHeads * kDim}, ScalarType::Float8_e4m3fn);
      out_scales = allocate(q, std::array{groups, kGroupWords, padded_rows(rows)}, ScalarType::Int);
      run_into(inputs, out, out_scales, lse, std::nullopt);
      break;
  }
  return {out, out_scales, lse};
}

void decode_out(ONELANE_INPUTS, const Tensor& out, const OptionalTensor& out_scales, const OptionalTensor& lse,
                const OptionalTensor& workspace) {
  run_into(ONELANE_COLLECT, out, out_scales, lse, workspace);
}

int64_t decode_workspace(const Tensor& q, int64_t window_width, int64_t extra_width, int64_t window_format,
                         int64_t extra_format, int64_t output, int64_t splits) {
  const onelane_attention_shape shape =
      make_shape(q, window_width, extra_width, window_format, extra_format, output, splits);
  if (shape.rows == 0) return 0;
  const auto current = guard(q);
  return static_cast<int64_t>(make_plan(q, shape).workspace_bytes);
}

#define ONELANE_SCHEMA_INPUTS                                                                                       \
  "Tensor q, Tensor? window_cache, Tensor? window_indices, Tensor? window_lengths=None, Tensor? extra_cache=None, " \
  "Tensor? extra_indices=None, Tensor? extra_lengths=None, *, float scale, int window_format, "                     \
  "int window_page_size, int extra_format=0, int extra_page_size=0, Tensor? sink=None, Tensor? positions=None, "    \
  "Tensor? cos_sin=None, int output=0, int splits=0"

}  // namespace
}  // namespace onelane::torch_operator

STABLE_TORCH_LIBRARY(onelane, m) {
  m.def("sparse_mla_decode(" ONELANE_SCHEMA_INPUTS ") -> (Tensor out, Tensor out_scales, Tensor lse)");
  m.def("sparse_mla_decode_out(" ONELANE_SCHEMA_INPUTS
        ", Tensor(a!) out, Tensor(b!)? out_scales=None, Tensor(c!)? lse=None, Tensor(d!)? workspace=None) -> ()");
  m.def(
      "sparse_mla_decode_workspace(Tensor q, int window_width, int extra_width, int window_format, "
      "int extra_format=0, int output=0, int splits=0) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(onelane, CPU, m) {
  m.impl("sparse_mla_decode", TORCH_BOX(&onelane::torch_operator::decode));
  m.impl("sparse_mla_decode_out", TORCH_BOX(&onelane::torch_operator::decode_out));
  m.impl("sparse_mla_decode_workspace", TORCH_BOX(&onelane::torch_operator::decode_workspace));
}

STABLE_TORCH_LIBRARY_IMPL(onelane, CUDA, m) {
  m.impl("sparse_mla_decode", TORCH_BOX(&onelane::torch_operator::decode));
  m.impl("sparse_mla_decode_out", TORCH_BOX(&onelane::torch_operator::decode_out));
  m.impl("sparse_mla_decode_workspace", TORCH_BOX(&onelane::torch_operator::decode_workspace));
}
