#include "cli/report_output.h"

#include <iostream>

#include "base/mapped_file.h"

namespace onelane {
namespace {

Result<void> write_to(const std::string& path, const std::string& text) {
  if (path != "-") return write_file(path, text);
  std::cout << text;
  return {};
}

}  // namespace

Result<void> write_report(const Document& document, const std::string& title, const std::string& html,
                          const std::string& markdown) {
  if (html.empty() && markdown.empty()) return write_to("-", render_markdown(document));
  if (!html.empty()) ONELANE_TRY(write_to(html, render_html(document, title)));
  if (!markdown.empty()) ONELANE_TRY(write_to(markdown, render_markdown(document)));
  return {};
}

}  // namespace onelane
