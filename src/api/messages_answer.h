// MessagesAnswer: the content blocks of an Anthropic message, and the events that tell of them.
//
// Blocks come one after the other, each started, filled by deltas and stopped under its own index: thinking, text, tool
// uses. The head waits until the prompt was read, so that it can say how much of it the cache held.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/chat_run.h"
#include "text/python_json.h"

namespace onelane {

class MessagesAnswer final : public ProtocolAnswer {
 public:
  // `hide_thinking`: see MessagesInput.
  MessagesAnswer(std::string model, bool hide_thinking);

  void use(const AnswerUsage& usage) override { usage_ = usage; }
  void begin() override;
  void add(const CompletionEvent& event) override;
  void end(const AnswerEnd& end) override;
  std::string body() const override;
  std::string_view keep_alive() const override { return "event: ping\ndata: {\"type\": \"ping\"}\n\n"; }

 private:
  enum class Kind { kThinking, kText, kToolUse };
  struct Block {
    Kind kind = Kind::kText;
    std::string id;    // of a tool use
    std::string name;  // of a tool use
    std::string text;  // the input's JSON, of a tool use
    bool complete = true;
  };

  JsonValue message(JsonValue content) const;
  JsonValue usage_json() const;
  JsonValue block_json(const Block& block, bool start) const;
  Block& block_of(Kind kind);
  void close_block(bool complete);
  void tell_delta(const char* type, const char* field, const std::string& text);
  void tell(std::string_view type, JsonValue event);

  std::string model_;
  bool hide_thinking_;
  std::string id_;
  AnswerUsage usage_;
  std::vector<Block> blocks_;
  bool block_open_ = false;
  JsonValue stop_reason_;
  JsonValue stop_sequence_;
};

}  // namespace onelane
