// The subcommands that measure: receipts, workloads, comparisons, cards.
#pragma once

#include <memory>

#include "cli/subcommands.h"

namespace onelane {

// What their flags are read into; lives until the command has run.
struct MeasuringCommands;
struct DeleteMeasuringCommands {
  void operator()(MeasuringCommands* commands) const;
};

std::unique_ptr<MeasuringCommands, DeleteMeasuringCommands> add_measuring(Subcommands& commands);

}  // namespace onelane
