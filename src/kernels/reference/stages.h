// The stages of the reference kernels, one function per entry of `Kernels`; contracts in kernels/kernels.h.
#pragma once

#include "kernels/kernels.h"

namespace onelane::reference {

void embed(const StepRows& rows, const EmbedArgs& args);
void mix_streams(const StepRows& rows, const MixArgs& args);
void expand_streams(const StepRows& rows, const ExpandArgs& args);
void tap(const StepRows& rows, const TapArgs& args);
void project_qkv(const StepRows& rows, const QkvArgs& args);
void compress(const StepRows& rows, const CompressArgs& args);
void index(const StepRows& rows, const IndexArgs& args);
void attend(const StepRows& rows, const AttendArgs& args);
void commit(const StepRows& rows, const CommitArgs& args);
void project_out(const StepRows& rows, const ProjectOutArgs& args);
void route(const StepRows& rows, const RouteArgs& args);
void experts(const StepRows& rows, const ExpertsArgs& args);
void engram(const StepRows& rows, const EngramArgs& args);
void head(const StepRows& rows, const HeadArgs& args);
void main_input(const StepRows& rows, const MainInputArgs& args);
void markov(const StepRows& rows, const MarkovArgs& args);
void choose(const ChooseArgs& args);

}  // namespace onelane::reference
