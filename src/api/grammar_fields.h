// The fields that say what shape an answer must have: OpenAI's response_format, and vLLM's structured_outputs and
// guided_json, guided_regex, guided_choice, guided_grammar.
#pragma once

#include <optional>

#include "api/json_fields.h"
#include "grammar/source.h"

namespace onelane {

// The one shape that is asked for; nothing: the answer is free. Problems end up in `fields`: a wrong type, JSON that is
// none, two shapes, an option of structured_outputs that nothing here follows, min_tokens beside a shape. What is
// written in the source itself the compiler judges (grammar/grammar.h).
std::optional<GrammarSource> read_grammar(JsonFields& fields);

}  // namespace onelane
