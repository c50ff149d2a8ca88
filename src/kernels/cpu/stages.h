// The stages of the CPU kernels, one function each; contracts in kernels.h.
#pragma once

#include "kernels/cpu/context.h"
#include "kernels/kernels.h"

namespace onelane::cpu {

void embed(Context& context, const StepRows& rows, const EmbedArgs& args);
void mix_streams(Context& context, const StepRows& rows, const MixArgs& args);
void expand_streams(Context& context, const StepRows& rows, const ExpandArgs& args);
void tap(Context& context, const StepRows& rows, const TapArgs& args);
void project_qkv(Context& context, const StepRows& rows, const QkvArgs& args);
void compress(Context& context, const StepRows& rows, const CompressArgs& args);
void index(Context& context, const StepRows& rows, const IndexArgs& args);
void attend(Context& context, const StepRows& rows, const AttendArgs& args);
void commit(Context& context, const StepRows& rows, const CommitArgs& args);
void project_out(Context& context, const StepRows& rows, const ProjectOutArgs& args);
void route(Context& context, const StepRows& rows, const RouteArgs& args);
void experts(Context& context, const StepRows& rows, const ExpertsArgs& args);
void engram(Context& context, const StepRows& rows, const EngramArgs& args);
void head(Context& context, const StepRows& rows, const HeadArgs& args);
void main_input(Context& context, const StepRows& rows, const MainInputArgs& args);
void markov(Context& context, const StepRows& rows, const MarkovArgs& args);
void choose(Context& context, const ChooseArgs& args);

}  // namespace onelane::cpu
