// Document: a report as a list of blocks, rendered as Markdown or as one HTML page that stands alone.
//
// The page loads nothing: its style is inside, its plots are inline SVG (plot.h), it has no script, and its content
// policy forbids all three. It follows the reader's light or dark setting and fits a narrow window.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace onelane {

struct Heading {
  int level = 2;  // 1: the title
  std::string text;
};
struct Paragraph {
  std::string text;
};
struct TextList {
  std::vector<std::string> items;
};
// "PASS", "FAIL", "NOT RUN" and "VOID" as a cell's whole text are shown as badges.
struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  size_t text_columns = 1;  // the first ones are text, to the left; the rest figures, to the right
  std::string caption;
};
// An SVG image; Markdown leaves it out, so what it shows must also stand in a table.
struct Figure {
  std::string svg, caption;
};
// Blocks under a summary line, folded up on the page: long lists that few read.
struct Folded;
using DocumentBlock = std::variant<Heading, Paragraph, TextList, Table, Figure, Folded>;
struct Folded {
  std::string summary;
  std::vector<Table> tables;
};

using Document = std::vector<DocumentBlock>;

std::string render_markdown(const Document& document);
std::string render_html(const Document& document, std::string_view title);

// `text` as the text of a Markdown table's cell: bars are escaped, line breaks become spaces.
std::string markdown_cell(std::string_view text);

// `text` as HTML text or attribute value.
std::string html_text(std::string_view text);

// Three significant digits, without an exponent below a million: 0.0123, 1.23, 123, 12300. "–" for nothing is the
// caller's.
std::string three_digits(double value);

}  // namespace onelane
