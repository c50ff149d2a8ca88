// CompletionParser: a completion as it grows, read into reasoning, content and tool calls.
//
// For serving, so it never fails: what a model gets wrong is repaired or dropped, and the marker of a tool call never
// reaches the content. A text that the strict parser accepts gives the same message here (but for the beginning of a
// tag at the very end, which is dropped), and the message does not depend on how the text was cut into pieces. Repairs:
//   - both bars, a missing or extra space in tag names, calls without the surrounding block;
//   - a complete block of calls in reasoning that never ends: the calls count, the prose before them stays reasoning;
//   - a parameter that says it is JSON and is not becomes a string; a repeated one is ignored;
//   - calls left open at the end are closed, unless the output was cut off (finish(true)).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/completion.h"
#include "text/dsml.h"
#include "text/prompt_format.h"

namespace onelane {

struct CompletionEvent {
  enum class Kind {
    kReasoning,      // text: more reasoning
    kContent,        // text: more content
    kCallBegin,      // text: the function's name
    kCallArguments,  // text: the next stretch of the arguments' JSON
    kCallEnd,        // the arguments are complete
  };
  Kind kind = Kind::kContent;
  int call = -1;  // index of the tool call
  std::string text;
};

class CompletionParser {
 public:
  // `format` must outlive this object. `thinking`: the completion starts inside <think>.
  CompletionParser(const PromptFormat& format, bool thinking);

  // Takes the next piece of (UTF-8) text and returns what became certain. Text that may still turn out to be a tag is
  // held back, so the last characters can come with a later call. After EOS in the text, pieces are ignored.
  std::vector<CompletionEvent> feed(std::string_view piece);

  // The end of the text. `truncated`: it was cut off (by a length limit), so an open call stays incomplete.
  std::vector<CompletionEvent> finish(bool truncated = false);

  // All events so far, put together.
  const AssistantMessage& message() const { return message_; }

 private:
  enum class State { kReasoning, kHeld, kContent, kBetweenTags, kTag, kStringValue, kRawValue, kDone };
  using Kind = CompletionEvent::Kind;

  void run();
  bool step();
  bool text_step(std::string_view rest);
  bool held_step(std::string_view rest);
  bool between_step(std::string_view rest);
  bool tag_step(std::string_view rest);
  bool value_step(std::string_view rest);
  bool drop_partial_marker(std::string_view rest);
  void take_plain_text(std::string_view rest);

  void on_tag(const DsmlTag& tag);
  void finish_tag();
  void begin_call(std::string_view name);
  void end_call();
  void leave_call();
  void begin_value();
  void value_text(std::string_view text);
  void end_value();
  void finish_held();
  void emit(Kind kind, std::string_view text);

  const PromptFormat* format_;
  State state_;
  bool last_ = false;    // no more text follows
  std::string pending_;  // text not consumed yet
  size_t at_ = 0;        // consumed part of pending_
  std::vector<CompletionEvent> events_;
  AssistantMessage message_;

  bool in_block_ = false;  // between the calls tag and its end
  bool call_open_ = false;
  bool after_calls_ = false;         // white space behind a block belongs to nobody
  bool seam_ = false;                // a tag was taken out since the last content
  bool skip_close_ = false;          // a '>' directly here ends a closing tag
  DsmlName tag_ = DsmlName::kOther;  // kTag: the tag whose attributes are read
  std::string attributes_;
  std::string value_name_;
  std::string raw_value_;
  bool value_is_string_ = true;
  bool value_ignored_ = false;
  std::vector<std::string> value_names_;  // of the open call
  std::string held_;                      // kHeld: a block of calls inside reasoning, waiting for </think> or the end
};

}  // namespace onelane
