// Where reports go.
#pragma once

#include <string>

#include "base/result.h"
#include "lane/document.h"

namespace onelane {

// Writes the page to `html` and Markdown to `markdown`; "-" is stdout, empty is nowhere, and both empty is Markdown to
// stdout.
Result<void> write_report(const Document& document, const std::string& title, const std::string& html,
                          const std::string& markdown);

}  // namespace onelane
