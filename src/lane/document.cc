#include "lane/document.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace onelane {
namespace {

// Overloads of lambdas, for std::visit.
template <class... F>
struct Each : F... {
  using F::operator()...;
};

std::string markdown_line(const std::vector<std::string>& cells, size_t columns) {
  std::string out = "|";
  for (size_t i = 0; i < columns; ++i) out += format(" {} |", i < cells.size() ? markdown_cell(cells[i]) : "");
  return out + "\n";
}

std::string markdown_table(const Table& table) {
  std::string out = markdown_line(table.columns, table.columns.size()) + "|";
  for (size_t i = 0; i < table.columns.size(); ++i) out += i < table.text_columns ? "---|" : "---:|";
  out += "\n";
  for (const auto& row : table.rows) out += markdown_line(row, table.columns.size());
  if (!table.caption.empty()) out += format("\n{}\n", table.caption);
  return out + "\n";
}

std::string html_cell(std::string_view text) {
  for (const auto& [label, name] :
       {std::pair{"PASS", "pass"}, {"FAIL", "fail"}, {"NOT RUN", "other"}, {"VOID", "other"}}) {
    if (text == label) return format("<span class=\"badge {}\">{}</span>", name, label);
  }
  return html_text(text);
}

std::string html_table(const Table& table) {
  std::string out = "<div class=\"scroll\"><table>";
  if (!table.caption.empty()) out += format("<caption>{}</caption>", html_text(table.caption));
  const auto line = [&](const std::vector<std::string>& cells, const char* tag, const char* scope) {
    out += "<tr>";
    for (size_t i = 0; i < table.columns.size(); ++i) {
      out += format("<{}{}{}>{}</{}>", tag, scope, i < table.text_columns ? "" : " class=\"n\"",
                    i < cells.size() ? html_cell(cells[i]) : "", tag);
    }
    out += "</tr>\n";
  };
  out += "<thead>";
  line(table.columns, "th", " scope=\"col\"");
  out += "</thead><tbody>\n";
  for (const auto& row : table.rows) line(row, "td", "");
  return out + "</tbody></table></div>\n";
}

// --a to --h colour series; both palettes were chosen for a contrast of at least 3 to their background.
constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --back: #fcfcfa; --ink: #1d2129; --soft: #5a6272; --rule: #d9dce3; --panel: #f1f2f5;
  --pass: #17703a; --fail: #b3261e; --other: #7a5200;
  --a: #1f5fbf; --b: #b3541e; --c: #2a7d4f; --d: #8a3fa0; --e: #8c6d00; --f: #0f7c85; --g: #b0305c; --h: #555d6b; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171c; --ink: #e6e8ec; --soft: #a2aab8; --rule: #363c47; --panel: #1e232b;
    --pass: #63d08b; --fail: #ff8a80; --other: #f0c060;
    --a: #7fb2ff; --b: #ff9f66; --c: #6fd39b; --d: #d59aec; --e: #e0c04d; --f: #5fd0da; --g: #ff8fb4; --h: #b4bccb; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2.2rem; }
h3 { font-size: 1.05rem; margin-bottom: .4rem; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
caption { caption-side: bottom; text-align: left; color: var(--soft); padding-top: .4rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top; }
th { font-weight: 600; color: var(--soft); white-space: nowrap; } .n { text-align: right; white-space: nowrap; }
.badge { display: inline-block; padding: 0 .5em; border: 1px solid currentColor; border-radius: .4em; font-weight: 600;
  white-space: nowrap; } .pass { color: var(--pass); } .fail { color: var(--fail); } .other { color: var(--other); }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .92rem; }
svg { display: block; width: 100%; height: auto; max-width: 52rem; background: var(--panel); border-radius: .5rem; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .soft { fill: var(--soft); }
svg .rule { stroke: var(--rule); } svg .axis { stroke: var(--soft); }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--soft); }
@media print { body { max-width: none; } details { display: block; } }
)";

std::string series_style() {
  std::string out;
  for (const char name : std::string_view("abcdefgh")) {
    out += format("svg .fill-{0} {{ fill: var(--{0}); }} svg .line-{0} {{ stroke: var(--{0}); fill: none; }}\n", name);
  }
  for (const std::string_view name : {"pass", "fail", "other"}) {
    out += format("svg .fill-{0} {{ fill: var(--{0}); }}\n", name);
  }
  return out;
}

}  // namespace

std::string markdown_cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string three_digits(double value) {
  const double size = std::abs(value);
  if (size < 1000 && value == std::round(value)) return format("{:.0f}", value + 0.0);
  if (size >= 1e6 || size < 1e-4) return format("{:.2e}", value);
  // Rounding may carry into another digit (9.999 to 10.0), so the digits are counted after it.
  const double unit = std::pow(10.0, std::floor(std::log10(size)) - 2);
  const double rounded = std::round(value / unit) * unit;
  const int decimals = std::max(0, 2 - static_cast<int>(std::floor(std::log10(std::abs(rounded)) + 1e-9)));
  return format("{:.{}f}", rounded, decimals);
}

std::string render_markdown(const Document& document) {
  std::string out;
  for (const DocumentBlock& block : document) {
    std::visit(Each{[&](const Heading& heading) {
                      out += format("{} {}\n\n", std::string(static_cast<size_t>(heading.level), '#'), heading.text);
                    },
                    [&](const Paragraph& paragraph) { out += format("{}\n\n", paragraph.text); },
                    [&](const TextList& list) {
                      for (const std::string& item : list.items) out += format("- {}\n", item);
                      out += "\n";
                    },
                    [&](const Table& table) { out += markdown_table(table); }, [&](const Figure&) {},
                    [&](const Folded& folded) {
                      out += format("{}\n\n", folded.summary);
                      for (const Table& table : folded.tables) out += markdown_table(table);
                    }},
               block);
  }
  return out;
}

std::string render_html(const Document& document, std::string_view title) {
  std::string out = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  out +=
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src "
      "data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n";
  out += format("<title>{}</title>\n<style>{}{}</style>\n</head>\n<body>\n", html_text(title), kStyle, series_style());
  for (const DocumentBlock& block : document) {
    std::visit(Each{[&](const Heading& heading) {
                      out += format("<h{0}>{1}</h{0}>\n", heading.level, html_text(heading.text));
                    },
                    [&](const Paragraph& paragraph) { out += format("<p>{}</p>\n", html_cell(paragraph.text)); },
                    [&](const TextList& list) {
                      out += "<ul>\n";
                      for (const std::string& item : list.items) out += format("<li>{}</li>\n", html_text(item));
                      out += "</ul>\n";
                    },
                    [&](const Table& table) { out += html_table(table); },
                    [&](const Figure& figure) {
                      out += format("<figure>{}<figcaption>{}</figcaption></figure>\n", figure.svg,
                                    html_text(figure.caption));
                    },
                    [&](const Folded& folded) {
                      out += format("<details><summary>{}</summary>\n", html_text(folded.summary));
                      for (const Table& table : folded.tables) out += html_table(table);
                      out += "</details>\n";
                    }},
               block);
  }
  return out + "</body>\n</html>\n";
}

}  // namespace onelane
