#include "text/completion_parser.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "text/python_json.h"

namespace onelane {
namespace {

enum class Literal { kNo, kPartial, kYes };

Literal match_literal(std::string_view text, std::string_view literal, bool last) {
  if (text.starts_with(literal)) return Literal::kYes;
  return !last && literal.starts_with(text) ? Literal::kPartial : Literal::kNo;
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Whether text behind a tag that was taken out could complete a marker with what stood in front of it.
bool may_begin_marker(std::string_view text) {
  return !text.empty() && std::string_view("</|DSML\x9C").find(text.back()) != std::string_view::npos;
}

// The value of an attribute: what the quotes behind `key` enclose; without quotes, the rest of `text`, trimmed.
std::string attribute(std::string_view text, std::string_view key) {
  const size_t found = text.find(key);
  if (found != std::string_view::npos) text.remove_prefix(found + key.size());
  const size_t close = text.rfind('"');
  if (text.starts_with('"') && close > 0) return std::string(text.substr(1, close - 1));
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  return std::string(text);
}

}  // namespace

CompletionParser::CompletionParser(const PromptFormat& format, bool thinking)
    : format_(&format), state_(thinking ? State::kReasoning : State::kContent) {}

std::vector<CompletionEvent> CompletionParser::feed(std::string_view piece) {
  pending_.append(piece);
  run();
  return std::exchange(events_, {});
}

std::vector<CompletionEvent> CompletionParser::finish(bool truncated) {
  last_ = true;
  run();
  if (state_ == State::kHeld) finish_held();
  if (call_open_ && !truncated) {
    if (state_ == State::kStringValue || state_ == State::kRawValue) end_value();
    end_call();
  }
  call_open_ = false;
  state_ = State::kDone;
  return std::exchange(events_, {});
}

void CompletionParser::run() {
  while (step()) {
  }
  pending_.erase(0, at_);
  at_ = 0;
  if (state_ == State::kDone) pending_.clear();
}

bool CompletionParser::step() {
  const std::string_view rest = std::string_view(pending_).substr(at_);
  if (rest.empty() || state_ == State::kDone) return false;
  if (skip_close_) {
    skip_close_ = false;
    if (rest.front() == '>') ++at_;
    return true;
  }
  switch (state_) {
    case State::kReasoning:
    case State::kContent:
      return text_step(rest);
    case State::kHeld:
      return held_step(rest);
    case State::kBetweenTags:
      return between_step(rest);
    case State::kTag:
      return tag_step(rest);
    case State::kStringValue:
    case State::kRawValue:
      return value_step(rest);
    case State::kDone:
      break;
  }
  return false;
}

// Emits the text up to the next character that may begin something, or that one character.
void CompletionParser::take_plain_text(std::string_view rest) {
  // The first byte begins nothing; the other bytes of its character are none of these.
  const size_t length = std::min(rest.find_first_of("<|\n\xEF", 1), rest.size());
  at_ += length;
  std::string_view text = rest.substr(0, length);
  if (state_ == State::kContent && after_calls_) {
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    if (text.empty()) return;
    after_calls_ = false;
  }
  if (state_ == State::kContent) {
    if (seam_ && may_begin_marker(message_.content)) emit(Kind::kContent, " ");
    seam_ = false;
  }
  emit(state_ == State::kReasoning ? Kind::kReasoning : Kind::kContent, text);
}

bool CompletionParser::text_step(std::string_view rest) {
  const bool reasoning = state_ == State::kReasoning;
  bool wait = false;
  for (const std::string_view token : {kThinkEndText, kEosText, kThinkText}) {
    // <think> matters only where reasoning starts, when the model repeats what the header already said.
    if (token == kThinkText && !(reasoning && message_.reasoning.empty())) continue;
    if (token == kThinkEndText && !reasoning) continue;
    const Literal match = match_literal(rest, token, last_);
    wait |= match == Literal::kPartial;
    if (match != Literal::kYes) continue;
    at_ += token.size();
    if (token == kThinkEndText) state_ = State::kContent;
    if (token == kEosText) state_ = State::kDone;
    return true;
  }
  // Two line feeds belong to the block behind them, not to the text.
  size_t line_feeds = 0;
  while (line_feeds < 2 && line_feeds < rest.size() && rest[line_feeds] == '\n') ++line_feeds;
  const std::string_view behind = rest.substr(line_feeds);
  wait |= behind.empty() && !last_;
  if (!behind.empty()) {
    DsmlTag tag;
    const DsmlMatch match = match_dsml(behind, *format_, last_, tag);
    wait |= match == DsmlMatch::kPartial;
    const bool opens = !tag.closing && (tag.name == DsmlName::kCalls || tag.name == DsmlName::kInvoke);
    if (match == DsmlMatch::kYes && opens && reasoning) {
      state_ = State::kHeld;
      return true;
    }
    if (match == DsmlMatch::kYes && !reasoning && (opens || line_feeds == 0)) {
      at_ += line_feeds + tag.length;
      on_tag(tag);
      return true;
    }
  }
  if (wait) return false;
  if (last_ && !reasoning && drop_partial_marker(rest)) return true;
  take_plain_text(rest);
  return true;
}

// At the end of the text: the beginning of a marker is dropped, it would have become a tag.
bool CompletionParser::drop_partial_marker(std::string_view rest) {
  DsmlTag tag;
  if (match_dsml(rest, *format_, false, tag) != DsmlMatch::kPartial) return false;
  if (rest.find(rest.front() == '<' ? "D" : "DSML") == std::string_view::npos) return false;
  at_ += rest.size();
  return true;
}

bool CompletionParser::held_step(std::string_view rest) {
  // Reasoning may talk about calls. Only if it never ends were they meant; so nothing of them is shown yet.
  const size_t candidate = rest.find('<');
  if (candidate != 0) {
    held_ += rest.substr(0, candidate);
    at_ += std::min(candidate, rest.size());
    return true;
  }
  const Literal end = match_literal(rest, kThinkEndText, last_);
  const Literal eos = match_literal(rest, kEosText, last_);
  if (end == Literal::kYes) {
    emit(Kind::kReasoning, held_);
    held_.clear();
    at_ += kThinkEndText.size();
    state_ = State::kContent;
    return true;
  }
  if (eos == Literal::kYes) {
    at_ += kEosText.size();
    const bool was_last = std::exchange(last_, true);
    finish_held();
    last_ = was_last;
    return true;
  }
  if (end == Literal::kPartial || eos == Literal::kPartial) return false;
  held_ += '<';
  ++at_;
  return true;
}

void CompletionParser::finish_held() {
  CompletionParser trial(*format_, false);
  trial.feed(held_);
  const bool complete = !trial.message_.tool_calls.empty() && trial.state_ == State::kContent;
  if (complete) {
    // Once more, as our own text and with our own events.
    pending_ = std::exchange(held_, {});
    at_ = 0;
    state_ = State::kContent;
    run();
  } else {
    emit(Kind::kReasoning, held_);
    held_.clear();
  }
  state_ = State::kDone;
}

bool CompletionParser::between_step(std::string_view rest) {
  const size_t candidate = rest.find_first_of("<|\xEF");
  if (candidate != 0) {  // nothing but line feeds belongs here; whatever else there is has no place in a message
    at_ += std::min(candidate, rest.size());
    return true;
  }
  const Literal eos = match_literal(rest, kEosText, last_);
  if (eos == Literal::kYes) {
    if (call_open_) end_call();
    state_ = State::kDone;
    return true;
  }
  DsmlTag tag;
  const DsmlMatch match = match_dsml(rest, *format_, last_, tag);
  if (eos == Literal::kPartial || match == DsmlMatch::kPartial) return false;
  if (match == DsmlMatch::kYes) {
    at_ += tag.length;
    on_tag(tag);
  } else {
    ++at_;
  }
  return true;
}

bool CompletionParser::tag_step(std::string_view rest) {
  const size_t candidate = rest.find_first_of("<>");
  if (candidate != 0) {
    attributes_ += rest.substr(0, candidate);
    at_ += std::min(candidate, rest.size());
    return true;
  }
  if (rest.front() == '>') {
    ++at_;
    // Inside quotes a '>' is part of the name.
    const size_t open = attributes_.find('"');
    if (open == std::string::npos || (attributes_.back() == '"' && open + 1 < attributes_.size())) {
      finish_tag();
    } else {
      attributes_ += '>';
    }
    return true;
  }
  DsmlTag tag;
  const DsmlMatch match = match_dsml(rest, *format_, last_, tag);
  if (match == DsmlMatch::kPartial) return false;
  if (match == DsmlMatch::kYes) {  // the '>' was forgotten
    finish_tag();
    return true;
  }
  attributes_ += '<';
  ++at_;
  return true;
}

bool CompletionParser::value_step(std::string_view rest) {
  const size_t candidate = rest.find('<');
  if (candidate != 0) {
    value_text(rest.substr(0, candidate));
    at_ += std::min(candidate, rest.size());
    return true;
  }
  DsmlTag tag;
  const DsmlMatch match = match_dsml(rest, *format_, last_, tag);
  if (match == DsmlMatch::kPartial) return false;
  if (match == DsmlMatch::kYes && tag.closing && tag.name == DsmlName::kParameter) {
    at_ += tag.length;
    skip_close_ = true;
    end_value();
    state_ = State::kBetweenTags;
    return true;
  }
  value_text("<");
  ++at_;
  return true;
}

void CompletionParser::on_tag(const DsmlTag& tag) {
  seam_ = true;
  if (tag.name == DsmlName::kOther) return;
  if (!tag.closing) {
    tag_ = tag.name;
    attributes_.clear();
    state_ = State::kTag;
    return;
  }
  skip_close_ = true;
  if (tag.name == DsmlName::kParameter) return;
  if (call_open_) end_call();
  if (tag.name == DsmlName::kCalls) in_block_ = false;
  leave_call();
}

void CompletionParser::finish_tag() {
  switch (tag_) {
    case DsmlName::kCalls:
      in_block_ = true;
      state_ = State::kBetweenTags;
      break;
    case DsmlName::kInvoke:
      if (call_open_) end_call();
      begin_call(attribute(attributes_, "name="));
      state_ = State::kBetweenTags;
      break;
    case DsmlName::kParameter:
    case DsmlName::kOther:
      if (call_open_) {
        begin_value();
      } else {
        leave_call();
      }
      break;
  }
}

void CompletionParser::begin_call(std::string_view name) {
  call_open_ = true;
  value_names_.clear();
  message_.tool_calls.push_back({std::string(name), {}, false});
  emit(Kind::kCallBegin, name);
}

void CompletionParser::end_call() {
  emit(Kind::kCallArguments, value_names_.empty() ? "{}" : "}");
  message_.tool_calls.back().complete = true;
  emit(Kind::kCallEnd, {});
  call_open_ = false;
}

void CompletionParser::leave_call() {
  if (!in_block_ && !message_.tool_calls.empty()) after_calls_ = true;
  state_ = in_block_ ? State::kBetweenTags : State::kContent;
}

void CompletionParser::begin_value() {
  std::string_view name = attributes_;
  constexpr std::string_view kString = "string=";
  const size_t flag = name.rfind(kString);
  value_is_string_ = true;
  if (flag != std::string_view::npos) {
    value_is_string_ = attribute(name.substr(flag), kString) != "false";
    name = name.substr(0, flag);
  }
  value_name_ = attribute(name, "name=");
  value_ignored_ = std::find(value_names_.begin(), value_names_.end(), value_name_) != value_names_.end();
  raw_value_.clear();
  state_ = value_is_string_ ? State::kStringValue : State::kRawValue;
  if (value_ignored_) return;
  emit(Kind::kCallArguments, format("{}{}: {}", value_names_.empty() ? "{" : ", ", dump_json_string(value_name_),
                                    value_is_string_ ? "\"" : ""));
  value_names_.push_back(value_name_);
}

void CompletionParser::value_text(std::string_view text) {
  if (value_ignored_) return;
  if (!value_is_string_) {
    raw_value_ += text;
    return;
  }
  std::string escaped;
  append_json_escaped(escaped, text);
  emit(Kind::kCallArguments, escaped);
}

void CompletionParser::end_value() {
  if (value_ignored_) return;
  if (value_is_string_) {
    emit(Kind::kCallArguments, "\"");
  } else {
    emit(Kind::kCallArguments, is_json(raw_value_) ? raw_value_ : dump_json_string(raw_value_));
  }
}

void CompletionParser::emit(Kind kind, std::string_view text) {
  if (text.empty() && kind != Kind::kCallBegin && kind != Kind::kCallEnd) return;
  int call = -1;
  if (kind == Kind::kReasoning) {
    message_.reasoning += text;
  } else if (kind == Kind::kContent) {
    message_.content += text;
  } else {
    call = static_cast<int>(message_.tool_calls.size()) - 1;
    if (kind == Kind::kCallArguments) message_.tool_calls.back().arguments += text;
  }
  const bool extends = kind != Kind::kCallBegin && kind != Kind::kCallEnd && !events_.empty() &&
                       events_.back().kind == kind && events_.back().call == call;
  if (extends) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, call, std::string(text)});
  }
}

}  // namespace onelane
