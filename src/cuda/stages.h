// The stages of kernels.h on the device, one function each: they launch, and return before anything is done. Pointers
// in the arguments are device pointers, but for those that kernels.h says are the host's.
#pragma once

#include "cuda/stage.h"

namespace onelane::cuda {

// streams/
void embed(const Stage& stage, const EmbedArgs& args);
// `expand`: null, or what is to be done to the same stream before, by the same kernels; `sum`: null, or what is to be
// done before that, and gives its y.
struct PairSum;
void mix_streams(const Stage& stage, const MixArgs& args, const ExpandArgs* expand, const PairSum* sum);
// Whether it had better be left such a sum.
bool mix_takes_sums(const Stage& stage, int dim);
void expand_streams(const Stage& stage, const ExpandArgs& args);
void tap(const Stage& stage, const TapArgs& args);

// linear/
// `beside`: on which the products of x for other stages are made.
void project_qkv(const Stage& stage, const Stage& beside, const QkvArgs& args);
void project_out(const Stage& stage, const ProjectOutArgs& args);
void head(const Stage& stage, const HeadArgs& args, const int32_t* device_rows);  // args.rows on the device
void main_input(const Stage& stage, const MainInputArgs& args);
void markov(const Stage& stage, const MarkovArgs& args);

// sampling/
void choose(const Stage& stage, const ChooseArgs& args);
void address(const Stage& stage, const AddressArgs& args);
void verify(const Stage& stage, const VerifyArgs& args);
// StepRows as begin() got them, on the device: puts in the place of references what they stand for.
struct ResolveArgs {
  int32_t *token, *position, *before;
  RowRun* runs;
};
void resolve(const Stage& stage, const ResolveArgs& args);

// index/
void compress(const Stage& stage, const CompressArgs& args);
void index(const Stage& stage, const IndexArgs& args);

// attention/
// `lists`: on which the lists are made, with the scratch that they lie in.
void attend(const Stage& lists, const Stage& stage, const AttendArgs& args);
void commit(const Stage& stage, const CommitArgs& args);

// moe/
void route(const Stage& stage, const RouteArgs& args);
// The experts' matrices as the device reads them.
struct ExpertPointers {
  const std::byte *w1, *w2, *w3;
  const uint8_t *w1_scale, *w2_scale, *w3_scale;
};
inline ExpertPointers pointers_of(const ExpertWeights& expert) {
  return {expert.w1.data, expert.w2.data, expert.w3.data, expert.w1.scale, expert.w2.scale, expert.w3.scale};
}
// What experts leave: y[row] = round(sum of its pairs), slots in order, the shared expert last.
struct PairSum {
  const bf16* pairs = nullptr;  // [rows, topk, dim], then the shared expert's [rows, dim]
  int topk = 0, dim = 0;
  bf16* y = nullptr;   // [rows, dim]
  bool stays = false;  // until experts' next call; else the pairs are scratch like any other
};
PairSum experts(const Stage& stage, const ExpertsArgs& args, const ExpertPointers* device_experts);
void sum_pairs(const Stage& stage, const PairSum& sum);
void engram(const Stage& stage, const EngramArgs& args);

}  // namespace onelane::cuda
