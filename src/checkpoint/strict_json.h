// JSON from files that nobody vouches for: the safetensors header, the shard index and config.json.
#pragma once

#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"

namespace onelane {

// Parses `text`. Refused, beside malformed JSON and text that is not UTF-8: a key given twice in one object (most
// parsers keep the last one silently, so two readers of one file could disagree) and nesting deeper than 32.
// The message says where; the caller prefixes the file.
Result<nlohmann::json> parse_strict_json(std::string_view text);

}  // namespace onelane
