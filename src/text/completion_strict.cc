#include <algorithm>
#include <string>
#include <vector>

#include "base/format.h"
#include "text/completion.h"
#include "text/python_json.h"

namespace onelane {
namespace {

class StrictParser {
 public:
  StrictParser(std::string_view text, const PromptFormat& format)
      : text_(text),
        calls_open_(tag("\n\n<", format.calls_tag)),
        calls_close_(tag("</", format.calls_tag) + ">"),
        invoke_open_(tag("<", format.invoke_tag)),
        invoke_close_(tag("</", format.invoke_tag)),
        parameter_open_(tag("<", format.parameter_tag)),
        parameter_close_(tag("</", format.parameter_tag)) {}

  Result<AssistantMessage> run(bool thinking) {
    AssistantMessage message;
    if (thinking) {
      const size_t end = text_.find(kThinkEndText);
      if (end > text_.find(calls_open_)) return expected(text_.find(calls_open_), kThinkEndText);
      if (end == std::string_view::npos) return expected(text_.size(), kThinkEndText);
      ONELANE_TRY(refuse_control(0, end));
      message.reasoning = text_.substr(0, end);
      at_ = end + kThinkEndText.size();
    }
    const size_t calls = std::min(text_.find(calls_open_, at_), text_.size());
    const size_t eos = std::min(text_.find(kEosText, at_), text_.size());
    const size_t end = std::min(calls, eos);
    ONELANE_TRY(refuse_control(at_, end));
    message.content = text_.substr(at_, end - at_);
    at_ = end;
    if (calls < eos) {
      at_ += calls_open_.size();
      ONELANE_TRY(read_calls(message.tool_calls));
    }
    if (take(kEosText) && at_ == text_.size()) return message;
    if (at_ == text_.size()) return message;
    return expected(at_, "the end of the text");
  }

 private:
  static std::string tag(std::string_view before, std::string_view name) {
    return fmt::format("{}{}{}", before, kDsmlText, name);
  }

  Error expected(size_t at, std::string_view what) const {
    std::string_view found = text_.substr(at, 40);
    // Show whole characters only.
    while (at + found.size() < text_.size() && !found.empty() && (text_[at + found.size()] & 0xC0) == 0x80) {
      found.remove_suffix(1);
    }
    return Error{ErrorCode::kInvalidArgument, format("completion, offset {}: expected {}, found {}", at, what,
                                                     found.empty() ? "the end" : dump_json_string(found))};
  }
  bool take(std::string_view literal) {
    if (!text_.substr(at_).starts_with(literal)) return false;
    at_ += literal.size();
    return true;
  }
  // Takes everything up to `end`, which is taken too.
  Result<std::string_view> until(std::string_view end) {
    const size_t found = text_.find(end, at_);
    if (found == std::string_view::npos) return expected(text_.size(), dump_json_string(end));
    const std::string_view before = text_.substr(at_, found - at_);
    at_ = found + end.size();
    return before;
  }
  Result<void> need(std::string_view literal) {
    if (take(literal)) return {};
    return expected(at_, dump_json_string(literal));
  }
  Result<void> refuse_control(size_t begin, size_t end) const {
    for (const std::string_view token : {kBosText, kEosText, kThinkText, kThinkEndText, kDsmlText}) {
      const size_t found = text_.find(token, begin);
      if (found < end) return expected(found, format("text without the control token {}", token));
    }
    return {};
  }

  Result<void> read_calls(std::vector<ToolCall>& calls) {
    for (;;) {
      ONELANE_TRY(need(">\n"));
      if (take(calls_close_)) return {};
      if (!take(invoke_open_)) return expected(at_, format("{} or {}", invoke_open_, calls_close_));
      ONELANE_ASSIGN(ToolCall call, read_invoke());
      calls.push_back(std::move(call));
    }
  }

  Result<ToolCall> read_invoke() {
    ToolCall call;
    call.complete = true;
    ONELANE_TRY(need(" name=\""));
    const size_t name_at = at_;
    ONELANE_ASSIGN(call.name, to_text(until("\">\n")));
    ONELANE_TRY(check_name(name_at, call.name));
    call.arguments = "{";
    std::vector<std::string> names;
    // A call without parameters leaves an empty line.
    take("\n");
    while (take(parameter_open_)) {
      ONELANE_TRY(need(" name=\""));
      const size_t key_at = at_;
      ONELANE_ASSIGN(const std::string name, to_text(until("\" string=\"")));
      ONELANE_TRY(check_name(key_at, name));
      if (std::find(names.begin(), names.end(), name) != names.end()) {
        return expected(key_at, format("a new parameter name, not {} again", dump_json_string(name)));
      }
      const bool is_string = take("true\">");
      if (!is_string && !take("false\">")) return expected(at_, "true\"> or false\">");
      const size_t value_at = at_;
      ONELANE_ASSIGN(const std::string value, to_text(until(parameter_close_)));
      if (!is_string && !is_json(value)) return expected(value_at, "JSON (string=\"false\")");
      call.arguments += format("{}{}: {}", names.empty() ? "" : ", ", dump_json_string(name),
                               is_string ? dump_json_string(value) : value);
      names.push_back(name);
      ONELANE_TRY(need(">\n"));
    }
    call.arguments += "}";
    if (!take(invoke_close_)) return expected(at_, format("{} or {}", parameter_open_, invoke_close_));
    return call;
  }
  // A name that runs over the end of its tag is a damaged tag.
  Result<void> check_name(size_t at, std::string_view name) const {
    if (name.find("\">") == std::string_view::npos && name.find(kDsmlText) == std::string_view::npos) return {};
    return expected(at, "a name that ends inside its tag");
  }
  static Result<std::string> to_text(Result<std::string_view> view) {
    if (!view) return std::move(view).error();
    return std::string(*view);
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string calls_open_, calls_close_, invoke_open_, invoke_close_, parameter_open_, parameter_close_;
};

}  // namespace

Result<AssistantMessage> parse_completion(std::string_view text, const PromptFormat& format, bool thinking) {
  return StrictParser(text, format).run(thinking);
}

}  // namespace onelane
