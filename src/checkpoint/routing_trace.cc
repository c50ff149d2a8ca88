#include "checkpoint/routing_trace.h"

#include <charconv>
#include <numeric>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "checkpoint/strict_json.h"

namespace onelane {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "onelane-routing/1";

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

Result<int> layer_number(const std::string& key) {
  int layer = -1;
  const char* end = key.data() + key.size();
  const auto [rest, problem] = std::from_chars(key.data(), end, layer);
  if (problem != std::errc() || rest != end || layer < 0) return invalid(format("layers: '{}' is no layer", key));
  return layer;
}

Result<std::vector<double>> counts_of(const std::string& layer, const json& list) {
  if (!list.is_array()) return invalid(format("layers: '{}' is not an array", layer));
  std::vector<double> counts;
  for (const json& count : list) {
    if (!count.is_number() || count.get<double>() < 0) {
      return invalid(format("layers: '{}' has a count that is no number from 0 on", layer));
    }
    counts.push_back(count.get<double>());
  }
  if (std::accumulate(counts.begin(), counts.end(), 0.0) <= 0) {
    return invalid(format("layers: '{}' has no count above 0", layer));
  }
  return counts;
}

}  // namespace

Result<RoutingTrace> parse_routing_trace(std::string_view text) {
  ONELANE_ASSIGN(const json root, parse_strict_json(text));
  if (!root.is_object() || !root.contains("format") || root["format"] != kFormat) {
    return invalid(format("format is not \"{}\"", kFormat));
  }
  if (!root.contains("layers") || !root["layers"].is_object() || root["layers"].empty()) {
    return invalid("layers is not an object with something in it");
  }
  RoutingTrace trace;
  for (const auto& [key, list] : root["layers"].items()) {
    ONELANE_ASSIGN(const int layer, layer_number(key));
    ONELANE_ASSIGN(auto counts, counts_of(key, list));
    if (!trace.emplace(layer, std::move(counts)).second) return invalid(format("layers: {} is there twice", layer));
  }
  return trace;
}

std::string routing_trace_json(const RoutingTrace& trace) {
  json layers = json::object();
  for (const auto& [layer, counts] : trace) layers[format("{}", layer)] = counts;
  return json{{"format", kFormat}, {"layers", layers}}.dump() + "\n";
}

}  // namespace onelane
