// Every value of two rich requests replaced by every kind of wrong one: the answer is a prompt, or an error that names
// a field. (fuzz/requests_fuzz.cc goes on from the same seeds.)
#include <functional>

#include <gtest/gtest.h>

#include "api/api_error.h"
#include "api/json_tree.h"
#include "api/messages_input.h"
#include "api/responses_input.h"
#include "base/mapped_file.h"
#include "text/prompt_encoder.h"

namespace onelane {
namespace {

void expect_named(const std::string& message, const std::string& body) {
  const std::string path = leading_path(message);
  EXPECT_FALSE(path.empty()) << message << "\n" << body;
}

template <class Input>
void expect_prompt_or_error(const Result<Input>& input, const std::string& body) {
  if (!input) return expect_named(input.error().message, body);
  for (const auto* format : {&kPromptFormatV4, &kPromptFormatV41}) {
    const auto prompt = encode_prompt(dump_json(input->chat.json), *format);
    if (!prompt) expect_named(input->chat.in_client_words(prompt.error().message), body);
  }
}

// Calls `with` for `root` with each of its values replaced in turn.
size_t replace_each(JsonValue& root, const JsonValue& wrong, const std::function<void()>& with) {
  size_t count = 0;
  const std::function<void(JsonValue&)> walk = [&](JsonValue& value) {
    JsonValue kept = std::move(value);
    value = wrong;
    with();
    ++count;
    value = std::move(kept);
    for (JsonValue& item : value.items) walk(item);
    for (JsonMember& member : value.members) walk(member.value);
  };
  walk(root);
  return count;
}

TEST(HostileRequests, AnyValueAnywhere) {
  const JsonValue kinds[] = {JsonValue(),
                             json_bool(true),
                             json_number(-1),
                             json_text(""),
                             json_text("x"),
                             json_array(),
                             json_object(),
                             json_array({JsonValue()}),
                             json_array({json_object()}),
                             json_object({{"type", json_text("x")}}),
                             json_object({{"type", json_number(1)}})};
  for (const char* seed : {"messages", "responses"}) {
    const auto text = read_file(std::string(ONELANE_ROOT) + "/fuzz/corpus/requests/" + seed);
    ASSERT_TRUE(text) << text.error().message;
    auto body = parse_json(*text);
    ASSERT_TRUE(body) << body.error().message;
    for (const JsonValue& wrong : kinds) {
      const size_t count = replace_each(*body, wrong, [&] {
        const std::string now = dump_json(*body);
        expect_prompt_or_error(read_messages_input(*body), now);
        expect_prompt_or_error(read_responses_input(*body), now);
      });
      EXPECT_GT(count, 80);
    }
  }
}

}  // namespace
}  // namespace onelane
