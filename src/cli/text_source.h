// Where the text commands get their text, tokenizer and prompt format from.
#pragma once

#include <string>

#include "base/result.h"
#include "text/prompt_format.h"
#include "text/tokenizer.h"

namespace onelane {

// The text of `path`, or all of stdin where `path` is empty or "-".
Result<std::string> read_text(const std::string& path);

// `name` ("v4", "v41") where given, otherwise what DIR/config.json's model_type says.
Result<const PromptFormat*> choose_format(const std::string& dir, const std::string& name);

}  // namespace onelane
