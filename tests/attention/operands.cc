#include "attention/operands.h"

#include <cstring>

#include "kernels/attention/reference.h"

namespace onelane::attention_test {
namespace {

template <class T>
size_t bytes_of(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

void* mutable_pointer(const void* pointer) { return const_cast<void*>(pointer); }

}  // namespace

OperandBytes operand_bytes(const Problem& problem, const onelane_attention_plan& plan) {
  OperandBytes bytes{};
  bytes[kQ] = bytes_of(problem.q);
  bytes[kWindowPages] = bytes_of(problem.window.pages);
  bytes[kWindowIndices] = bytes_of(problem.window.indices);
  bytes[kWindowLengths] = bytes_of(problem.window.lengths);
  bytes[kExtraPages] = bytes_of(problem.extra.pages);
  bytes[kExtraIndices] = bytes_of(problem.extra.indices);
  bytes[kExtraLengths] = bytes_of(problem.extra.lengths);
  bytes[kSink] = bytes_of(problem.sink);
  bytes[kPositions] = bytes_of(problem.positions);
  bytes[kAngles] = bytes_of(problem.angles);
  bytes[kOut] = attention::out_bytes(problem.spec.shape);
  bytes[kOutScales] = attention::out_scale_bytes(problem.spec.shape);
  bytes[kLse] = static_cast<size_t>(problem.rows()) * problem.heads() * sizeof(float);
  bytes[kWorkspace] = plan.workspace_bytes;
  return bytes;
}

size_t operand_alignment(Operand operand) {
  switch (operand) {
    case kQ:
    case kWindowPages:
    case kExtraPages:
    case kOut:
    case kOutScales:
    case kWorkspace:
      return 16;
    default:
      return 4;
  }
}

bool Output::operator==(const Output& other) const {
  return out == other.out && scales == other.scales && lse.size() == other.lse.size() &&
         (lse.empty() || std::memcmp(lse.data(), other.lse.data(), bytes_of(lse)) == 0);
}

Operands::Operands(Backend& backend, bool fenced) : backend_(&backend) {
  for (int i = 0; i < kOperands; ++i) regions_.emplace_back(backend, fenced);
}

void Operands::reserve(const OperandBytes& bytes) {
  for (size_t i = 0; i < kOperands; ++i) regions_[i].reserve(bytes[i]);
}

onelane_attention_args Operands::bind(const Problem& problem, const onelane_attention_plan& plan,
                                      const Region* workspace) const {
  const OperandBytes bytes = operand_bytes(problem, plan);
  const auto at = [&](Operand operand) -> void* {
    const bool elsewhere = operand == kWorkspace && workspace != nullptr;
    const Region& region = elsewhere ? *workspace : regions_[operand];
    return bytes[operand] == 0 ? nullptr : region.tail(bytes[operand], operand_alignment(operand));
  };
  onelane_attention_args args = problem.host_args();
  args.q = at(kQ);
  args.window.pages = at(kWindowPages);
  args.window.indices = static_cast<const int32_t*>(at(kWindowIndices));
  args.window.lengths = static_cast<const int32_t*>(at(kWindowLengths));
  args.extra.pages = at(kExtraPages);
  args.extra.indices = static_cast<const int32_t*>(at(kExtraIndices));
  args.extra.lengths = static_cast<const int32_t*>(at(kExtraLengths));
  args.sink = static_cast<const float*>(at(kSink));
  args.positions = static_cast<const int32_t*>(at(kPositions));
  args.angles = static_cast<const float*>(at(kAngles));
  args.out = at(kOut);
  args.out_scales = at(kOutScales);
  args.lse = static_cast<float*>(at(kLse));
  args.workspace = at(kWorkspace);
  return args;
}

void Operands::upload(const Problem& problem, const onelane_attention_args& args, bool with_pools) const {
  const auto copy = [&](const void* to, const auto& from) {
    if (!from.empty()) backend_->upload(mutable_pointer(to), from.data(), bytes_of(from));
  };
  copy(args.q, problem.q);
  if (with_pools) copy(args.window.pages, problem.window.pages);
  copy(args.window.indices, problem.window.indices);
  copy(args.window.lengths, problem.window.lengths);
  if (with_pools) copy(args.extra.pages, problem.extra.pages);
  copy(args.extra.indices, problem.extra.indices);
  copy(args.extra.lengths, problem.extra.lengths);
  copy(args.sink, problem.sink);
  copy(args.positions, problem.positions);
  copy(args.angles, problem.angles);
}

void Operands::poison() const {
  for (const Operand operand : {kOut, kOutScales, kLse, kWorkspace}) regions_[operand].fill(0xff);
}

Output Operands::download(const Problem& problem, const onelane_attention_plan& plan,
                          const onelane_attention_args& args) const {
  const OperandBytes bytes = operand_bytes(problem, plan);
  Output output;
  output.out.resize(bytes[kOut]);
  output.scales.resize(bytes[kOutScales]);
  output.lse.resize(bytes[kLse] / sizeof(float));
  backend_->download(output.out.data(), args.out, bytes[kOut]);
  if (bytes[kOutScales] > 0) backend_->download(output.scales.data(), args.out_scales, bytes[kOutScales]);
  backend_->download(output.lse.data(), args.lse, bytes[kLse]);
  return output;
}

}  // namespace onelane::attention_test
