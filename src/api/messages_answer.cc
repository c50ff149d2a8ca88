#include "api/messages_answer.h"

#include <utility>

#include "api/json_tree.h"
#include "api/messages_input.h"
#include "api/router.h"

namespace onelane {
namespace {

using Event = CompletionEvent::Kind;

}  // namespace

MessagesAnswer::MessagesAnswer(std::string model, bool hide_thinking)
    : model_(std::move(model)), hide_thinking_(hide_thinking), id_(random_id("msg_")) {}

// input_tokens are those that were not cached, as Anthropic counts; nothing is paid for writing to the cache.
JsonValue MessagesAnswer::usage_json() const {
  return json_object({{"input_tokens", json_number(usage_.input - usage_.cached)},
                      {"cache_creation_input_tokens", json_number(0)},
                      {"cache_read_input_tokens", json_number(usage_.cached)},
                      {"output_tokens", json_number(usage_.output)},
                      {"output_tokens_details", json_object({{"thinking_tokens", json_number(usage_.reasoning)}})}});
}

JsonValue MessagesAnswer::message(JsonValue content) const {
  return json_object({{"id", json_text(id_)},
                      {"type", json_text("message")},
                      {"role", json_text("assistant")},
                      {"model", json_text(model_)},
                      {"content", std::move(content)},
                      {"stop_reason", stop_reason_},
                      {"stop_sequence", stop_sequence_},
                      {"usage", usage_json()}});
}

JsonValue MessagesAnswer::block_json(const Block& block, bool start) const {
  const std::string text = start ? "" : block.text;
  if (block.kind == Kind::kThinking) {
    const std::string signature = start ? "" : thinking_signature(hide_thinking_ ? block.text : "");
    return json_object({{"type", json_text("thinking")},
                        {"thinking", json_text(hide_thinking_ ? "" : text)},
                        {"signature", json_text(signature)}});
  }
  if (block.kind == Kind::kText) return json_object({{"type", json_text("text")}, {"text", json_text(text)}});
  JsonValue input = json_object();
  if (!start) {
    if (auto parsed = parse_json(block.text); parsed && parsed->is(JsonValue::Kind::kObject)) {
      input = *std::move(parsed);
    }
  }
  return json_object({{"type", json_text("tool_use")},
                      {"id", json_text(block.id)},
                      {"name", json_text(block.name)},
                      {"input", std::move(input)}});
}

void MessagesAnswer::tell(std::string_view type, JsonValue event) {
  event.members.insert(event.members.begin(), {"type", json_text(std::string(type))});
  emit(type, dump_json(event));
}

void MessagesAnswer::begin() {
  if (streams()) tell("message_start", json_object({{"message", message(json_array())}}));
}

MessagesAnswer::Block& MessagesAnswer::block_of(Kind kind) {
  if (block_open_ && blocks_.back().kind == kind && kind != Kind::kToolUse) return blocks_.back();
  close_block(blocks_.empty() || blocks_.back().kind != Kind::kToolUse);
  blocks_.push_back({.kind = kind});
  block_open_ = true;
  return blocks_.back();
}

void MessagesAnswer::tell_delta(const char* type, const char* field, const std::string& text) {
  if (!streams()) return;
  tell("content_block_delta",
       json_object({{"index", json_number(static_cast<int64_t>(blocks_.size()) - 1)},
                    {"delta", json_object({{"type", json_text(type)}, {field, json_text(text)}})}}));
}

void MessagesAnswer::add(const CompletionEvent& event) {
  const auto start = [&](const Block& block) {
    if (!streams()) return;
    tell("content_block_start", json_object({{"index", json_number(static_cast<int64_t>(blocks_.size()) - 1)},
                                             {"content_block", block_json(block, true)}}));
  };
  switch (event.kind) {
    case Event::kReasoning:
    case Event::kContent: {
      const Kind kind = event.kind == Event::kReasoning ? Kind::kThinking : Kind::kText;
      const bool fresh = !block_open_ || blocks_.back().kind != kind;
      Block& block = block_of(kind);
      if (fresh) start(block);
      block.text += event.text;
      if (kind == Kind::kText) {
        tell_delta("text_delta", "text", event.text);
      } else if (!hide_thinking_) {
        tell_delta("thinking_delta", "thinking", event.text);
      }
      break;
    }
    case Event::kCallBegin: {
      Block& block = block_of(Kind::kToolUse);
      block.id = random_id("toolu_");
      block.name = event.text;
      start(block);
      break;
    }
    case Event::kCallArguments:
      if (!block_open_ || blocks_.back().kind != Kind::kToolUse) break;
      blocks_.back().text += event.text;
      tell_delta("input_json_delta", "partial_json", event.text);
      break;
    case Event::kCallEnd:
      if (block_open_ && blocks_.back().kind == Kind::kToolUse) close_block(true);
      break;
  }
}

void MessagesAnswer::close_block(bool complete) {
  if (!std::exchange(block_open_, false)) return;
  Block& block = blocks_.back();
  block.complete = complete;
  if (block.kind == Kind::kThinking) {
    tell_delta("signature_delta", "signature", thinking_signature(hide_thinking_ ? block.text : ""));
  }
  if (streams()) {
    tell("content_block_stop", json_object({{"index", json_number(static_cast<int64_t>(blocks_.size()) - 1)}}));
  }
}

void MessagesAnswer::end(const AnswerEnd& end) {
  // A tool use ends by itself; one that is still open was cut off, be it by a stop string.
  close_block(end.reason == FinishReason::kStop && !blocks_.empty() && blocks_.back().kind != Kind::kToolUse);
  if (end.failed()) {
    if (streams()) emit("error", anthropic_error(end.error).body);
    return;
  }
  bool calls = false;
  for (const Block& block : blocks_) calls = block.kind == Kind::kToolUse ? block.complete : calls;
  if (end.reason == FinishReason::kLength) {
    stop_reason_ = json_text("max_tokens");
  } else if (calls) {
    stop_reason_ = json_text("tool_use");
  } else if (!end.stop.empty()) {
    stop_reason_ = json_text("stop_sequence");
    stop_sequence_ = json_text(end.stop);
  } else {
    stop_reason_ = json_text("end_turn");
  }
  if (!streams()) return;
  tell("message_delta",
       json_object({{"delta", json_object({{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}})},
                    {"usage", usage_json()}}));
  tell("message_stop", json_object());
}

std::string MessagesAnswer::body() const {
  JsonValue content = json_array();
  for (const Block& block : blocks_) {
    // Input that was cut off is no JSON, and half of it must not run.
    if (block.kind != Kind::kToolUse || block.complete) content.items.push_back(block_json(block, false));
  }
  return dump_json(message(std::move(content)));
}

}  // namespace onelane
