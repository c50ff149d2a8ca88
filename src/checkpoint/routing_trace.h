// Routing traces: how often a real model picked each of its experts.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace onelane {

// By layer, times that each expert was picked: whole numbers, but other weights do as well.
using RoutingTrace = std::map<int, std::vector<double>>;

// JSON, as `onelane score --routing-out` writes it:
//   {"format": "onelane-routing/1", "layers": {"3": [times that each expert of layer 3 was picked, ...], ...}}
// kInvalidArgument for anything else, for a negative count and for a layer without a count above 0. The message says
// what is wrong; the caller prefixes the file.
Result<RoutingTrace> parse_routing_trace(std::string_view text);
std::string routing_trace_json(const RoutingTrace& trace);

}  // namespace onelane
