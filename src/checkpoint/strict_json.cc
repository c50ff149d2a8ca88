#include "checkpoint/strict_json.h"

#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"

namespace onelane {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;

// Leaves the parser from inside its callback; never seen outside this file.
struct Refused {
  std::string why;
};

}  // namespace

Result<json> parse_strict_json(std::string_view text) {
  std::vector<std::set<std::string>> open_objects;
  auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) throw Refused{format("nested deeper than {} levels", kMaxDepth)};
    switch (event) {
      case json::parse_event_t::object_start:
        open_objects.emplace_back();
        break;
      case json::parse_event_t::object_end:
        open_objects.pop_back();
        break;
      case json::parse_event_t::key: {
        const std::string& key = parsed.get_ref<const std::string&>();
        if (!open_objects.back().insert(key).second) throw Refused{format("key '{}' is given twice", key)};
        break;
      }
      default:
        break;
    }
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const Refused& refused) {
    return Error{ErrorCode::kCorrupt, refused.why};
  } catch (const json::exception& error) {
    return Error{ErrorCode::kCorrupt, format("not valid JSON: {}", error.what())};
  }
}

}  // namespace onelane
