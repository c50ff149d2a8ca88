// ResponsesAnswer: the output items of a response, and the events that tell of them.
//
// Items come in the order in which the model writes: a reasoning item, a message, function calls. Every item is added,
// grows by deltas and is done, each with the same id and place; sequence numbers count all events. Reasoning is
// always in the same field (content, as reasoning_text), in every item.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/chat_run.h"
#include "api/responses_input.h"

namespace onelane {

class ResponsesAnswer final : public ProtocolAnswer {
 public:
  // `request`: what the response repeats of it is copied.
  ResponsesAnswer(const JsonValue& request, ResponsesInput input, std::string model, int64_t created_at);

  void open() override;
  void use(const AnswerUsage& usage) override { usage_ = usage; }
  void add(const CompletionEvent& event) override;
  void end(const AnswerEnd& end) override;
  std::string body() const override { return dump_json(response()); }
  std::string_view keep_alive() const override { return ": keep-alive\n\n"; }

 private:
  enum class Kind { kReasoning, kMessage, kCall };
  struct Item {
    Kind kind = Kind::kMessage;
    std::string id;
    std::string call_id;
    ResponsesTool tool;
    std::string text;  // reasoning, the message, a call's arguments
    std::string status = "in_progress";
  };

  JsonValue response() const;
  JsonValue item_json(const Item& item) const;
  static JsonValue part_json(const Item& item, const std::string& text);
  Item& item_of(Kind kind);
  void close_item(bool complete);
  // An event about the last item; `members` come behind its place.
  void tell(std::string_view type, std::vector<JsonMember> members);
  void tell_response(std::string_view type);
  void send(std::string_view type, JsonValue event);

  JsonValue echo_;  // of the request
  ResponsesInput input_;
  std::string model_;
  int64_t created_at_;
  std::string id_;
  AnswerUsage usage_;
  std::vector<Item> items_;
  bool item_open_ = false;
  int64_t sequence_ = 0;
  std::string status_ = "in_progress";
  JsonValue error_;
  JsonValue incomplete_;
};

}  // namespace onelane
