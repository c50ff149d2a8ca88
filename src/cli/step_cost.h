// What a stage must move and compute, from its arguments alone.
//
// Bytes: every weight once, every cached record that is read once per sequence, inputs and outputs once; what a kernel
// keeps or rereads inside is its own affair. Operations: two for each multiplication of a product that a trained model
// needs, none for padding. What depends on values (which experts, which entries) is given by whoever has read them.
#pragma once

#include <span>

#include "kernels/kernels.h"

namespace onelane {

struct StageCost {
  double bytes = 0;
  double flops = 0;

  StageCost& operator+=(const StageCost& other) {
    bytes += other.bytes;
    flops += other.flops;
    return *this;
  }
};

// Of the matrix and its scales as they are stored.
double bytes_of(const Matrix& matrix);

// How many different numbers, those below 0 left out.
int distinct(std::span<const int32_t> numbers);

// `rows` has its arrays on the host.
StageCost cost_of(const StepRows& rows, const EmbedArgs& args);
StageCost cost_of(const StepRows& rows, const MixArgs& args);
StageCost cost_of(const StepRows& rows, const ExpandArgs& args);
StageCost cost_of(const StepRows& rows, const TapArgs& args);
StageCost cost_of(const StepRows& rows, const QkvArgs& args);
StageCost cost_of(const StepRows& rows, const CompressArgs& args);
StageCost cost_of(const StepRows& rows, const IndexArgs& args);
// `picks`: a copy on the host of args.picks [rows, topk]; empty when there are none.
StageCost cost_of(const StepRows& rows, const AttendArgs& args, std::span<const int32_t> picks);
StageCost cost_of(const StepRows& rows, const CommitArgs& args);
StageCost cost_of(const StepRows& rows, const ProjectOutArgs& args);
StageCost cost_of(const StepRows& rows, const RouteArgs& args);
// `ids`: a copy on the host of args.ids [rows, topk].
StageCost cost_of(const StepRows& rows, const ExpertsArgs& args, std::span<const int32_t> ids);
StageCost cost_of(const StepRows& rows, const EngramArgs& args);
StageCost cost_of(const StepRows& rows, const HeadArgs& args);
StageCost cost_of(const StepRows& rows, const MainInputArgs& args);
StageCost cost_of(const MarkovArgs& args);
StageCost cost_of(const ChooseArgs& args);

}  // namespace onelane
