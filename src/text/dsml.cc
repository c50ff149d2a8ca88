#include "text/dsml.h"

#include <utility>

namespace onelane {
namespace {

constexpr std::string_view kWideBar = "\xEF\xBD\x9C";  // U+FF5C

enum class Step { kNo, kMore, kYes };

// Consumes `literal` from the front of `text`.
Step take(std::string_view& text, std::string_view literal) {
  if (text.starts_with(literal)) {
    text.remove_prefix(literal.size());
    return Step::kYes;
  }
  return literal.starts_with(text) ? Step::kMore : Step::kNo;
}

Step take_bar(std::string_view& text) {
  if (text.starts_with('|')) {
    text.remove_prefix(1);
    return Step::kYes;
  }
  return take(text, kWideBar);
}

std::string_view without_space(std::string_view name) {
  if (name.starts_with(' ')) name.remove_prefix(1);
  return name;
}

}  // namespace

DsmlMatch match_dsml(std::string_view text, const PromptFormat& format, bool last, DsmlTag& tag) {
  std::string_view rest = text;
  const auto unfinished = [&] { return last ? DsmlMatch::kNo : DsmlMatch::kPartial; };
  tag = {};
  if (rest.starts_with('<')) {
    rest.remove_prefix(1);
    if (rest.starts_with('/')) {
      rest.remove_prefix(1);
      tag.closing = true;
    }
  }
  for (const bool bar : {true, false, true}) {
    const Step step = bar ? take_bar(rest) : take(rest, "DSML");
    if (step == Step::kNo) return DsmlMatch::kNo;
    if (step == Step::kMore) return unfinished();
  }
  tag.length = text.size() - rest.size();
  if (!text.starts_with('<')) return DsmlMatch::kYes;
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  const std::pair<std::string_view, DsmlName> names[] = {{format.calls_tag, DsmlName::kCalls},
                                                         {format.invoke_tag, DsmlName::kInvoke},
                                                         {format.parameter_tag, DsmlName::kParameter}};
  for (const auto& [spaced, name] : names) {
    std::string_view after = rest;
    const Step step = take(after, without_space(spaced));
    if (step == Step::kMore) {
      if (!last) return DsmlMatch::kPartial;
      tag.length = text.size();  // the name was cut off: all of it belongs to the tag
    }
    if (step != Step::kYes) continue;
    tag.length = text.size() - after.size();
    tag.name = name;
  }
  return DsmlMatch::kYes;
}

}  // namespace onelane
