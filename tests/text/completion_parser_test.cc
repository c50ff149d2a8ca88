#include "text/completion_parser.h"

#include <rapidcheck.h>

#include "text/prompt_encoder.h"
#include "text/python_json.h"
#include "text_fixture.h"

namespace onelane {
namespace {

using Calls = std::vector<ToolCall>;
using Kind = CompletionEvent::Kind;

AssistantMessage parse(std::string_view text, bool thinking = false, bool truncated = false,
                       const PromptFormat& format = kPromptFormatV4) {
  CompletionParser parser(format, thinking);
  parser.feed(text);
  parser.finish(truncated);
  return parser.message();
}

const std::string kBlock =
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
    "<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
const Calls kCall = {{"f", R"({"a": "x"})", true}};

TEST(CompletionParser, EventsComeInOrderAndEarly) {
  CompletionParser parser(kPromptFormatV4, true);
  const auto only = [](std::vector<CompletionEvent> events) {
    EXPECT_EQ(events.size(), 1u);
    return events.empty() ? CompletionEvent{} : events[0];
  };
  EXPECT_EQ(only(parser.feed("think")).text, "think");
  EXPECT_TRUE(parser.feed("</thi").empty()) << "may be the end tag";
  EXPECT_TRUE(parser.feed("nk>").empty());
  EXPECT_EQ(only(parser.feed("answer\n\n")).text, "answer");
  EXPECT_TRUE(parser.feed("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f").empty());
  const auto begin = only(parser.feed("\">\n"));
  EXPECT_EQ(begin.kind, Kind::kCallBegin);
  EXPECT_EQ(begin.text, "f");
  EXPECT_EQ(begin.call, 0);
  EXPECT_EQ(only(parser.feed("<｜DSML｜parameter name=\"a\" string=\"true\">one\n")).text, "{\"a\": \"one\\n");
  EXPECT_EQ(only(parser.feed(" < two</｜DSML")).text, " < two");
  EXPECT_EQ(only(parser.feed("｜parameter>\n")).text, "\"");
  const auto end = parser.feed("</｜DSML｜invoke>\n</｜DSML｜tool_calls>");
  ASSERT_EQ(end.size(), 2u);
  EXPECT_EQ(end[0].text, "}");
  EXPECT_EQ(end[1].kind, Kind::kCallEnd);
  EXPECT_TRUE(parser.finish().empty());
  EXPECT_EQ(parser.message(), (AssistantMessage{"think", "answer", {{"f", R"({"a": "one\n < two"})", true}}}));
}

// Complaint 35 (spec/peers.md 4.4): ASCII bars, and mixtures.
TEST(CompletionParser, BothBarsAndLooseSpaces) {
  for (const char* bar : {"｜", "|"}) {
    for (const char* space : {"", " "}) {
      std::string text = kBlock;
      for (size_t at; (at = text.find("｜DSML｜")) != std::string::npos;) {
        text.replace(at, std::string("｜DSML｜").size(), std::string(bar) + "@" + "｜" + space);
      }
      for (size_t at; (at = text.find('@')) != std::string::npos;) text.replace(at, 1, "DSML");
      EXPECT_EQ(parse("hi" + text), (AssistantMessage{"", "hi", kCall})) << text;
      EXPECT_EQ(parse_completion("x", kPromptFormatV4, false)->content, "x");
    }
  }
}

TEST(CompletionParser, V41Tags) {
  const std::string text =
      "ok\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" "
      "string=\"true\">x</｜DSML｜ parameter>\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  EXPECT_EQ(parse(text, false, false, kPromptFormatV41), (AssistantMessage{"", "ok", kCall}));
}

// Complaint 36: a complete block inside reasoning that never ends.
TEST(CompletionParser, BlockInUnclosedReasoningIsRecovered) {
  EXPECT_EQ(parse("I will call" + kBlock, true), (AssistantMessage{"I will call", "", kCall}));
  EXPECT_EQ(parse("I will call" + kBlock + "<｜end▁of▁sentence｜>", true),
            (AssistantMessage{"I will call", "", kCall}));
  // Reasoning about calls is reasoning when it ends properly, or when the block is not complete.
  EXPECT_EQ(parse("maybe" + kBlock + "? no</think>done", true),
            (AssistantMessage{"maybe" + kBlock + "? no", "done", {}}));
  const std::string part = kBlock.substr(0, kBlock.size() / 2);
  EXPECT_EQ(parse("maybe" + part, true, true), (AssistantMessage{"maybe" + part, "", {}}));
}

TEST(CompletionParser, CallsWithoutTheBlock) {
  EXPECT_EQ(parse("go <｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
                  "string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n"),
            (AssistantMessage{"", "go ", kCall}));
}

TEST(CompletionParser, RepairsParameters) {
  const auto arguments = [](const std::string& parameters) {
    const auto message = parse("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n" + parameters +
                               "</｜DSML｜invoke>\n</｜DSML｜tool_calls>");
    EXPECT_EQ(message.content, "");
    EXPECT_EQ(message.tool_calls.size(), 1u);
    return message.tool_calls.empty() ? "" : message.tool_calls[0].arguments;
  };
  const auto parameter = [](const char* name, const char* flag, const char* value) {
    return "<｜DSML｜parameter name=\"" + std::string(name) + "\"" + flag + ">" + value + "</｜DSML｜parameter>\n";
  };
  EXPECT_EQ(arguments(parameter("a", " string=\"false\"", "{\"k\": 1}")), R"({"a": {"k": 1}})");
  EXPECT_EQ(arguments(parameter("a", " string=\"false\"", "not json")), R"({"a": "not json"})");
  EXPECT_EQ(arguments(parameter("a", " string=\"false\"", "")), R"({"a": ""})");
  EXPECT_EQ(arguments(parameter("a", "", "x")), R"({"a": "x"})") << "no string attribute";
  EXPECT_EQ(arguments(parameter("a", " string=\"true\"", "1") + parameter("a", " string=\"true\"", "2")),
            R"({"a": "1"})");
  EXPECT_EQ(arguments(parameter("a>b", " string=\"true\"", "1")), R"({"a>b": "1"})");
  EXPECT_EQ(arguments(parameter(">b", " string=\"true\"", "1")), R"({">b": "1"})");
  EXPECT_EQ(arguments(""), "{}");
}

TEST(CompletionParser, OpenCallsAtTheEnd) {
  const std::string open = kBlock.substr(0, kBlock.find("</｜DSML｜parameter"));
  EXPECT_EQ(parse(open).tool_calls, kCall) << "closed";
  EXPECT_EQ(parse(open, false, true).tool_calls, (Calls{{"f", R"({"a": "x)", false}})) << "cut off";
  EXPECT_EQ(parse(kBlock.substr(0, kBlock.find("</｜DSML｜invoke"))).tool_calls, kCall);
  EXPECT_EQ(parse(kBlock.substr(0, kBlock.find("name=\"f"))).tool_calls, Calls{}) << "no name yet";
}

TEST(CompletionParser, SeveralBlocksAndTextBehind) {
  EXPECT_EQ(parse("a" + kBlock + "\n" + kBlock + "\n\nbye"), (AssistantMessage{"", "abye", {kCall[0], kCall[0]}}));
}

TEST(CompletionParser, TextThatOnlyLooksLikeATagSurvives) {
  for (const char* text : {"a < b", "<", "x\n\n", "\n\n\n", "a | b || c", "<|im_start|>", "｜", "f <| x", "</div>",
                           "</thin", "\n\n<", "<｜User｜>", "é\xEF\xBC"}) {
    EXPECT_EQ(parse(text).content, text);
  }
  EXPECT_EQ(parse("<think>again</think>x", true), (AssistantMessage{"again", "x", {}}));
  EXPECT_EQ(parse("x<｜end▁of▁sentence｜>y"), (AssistantMessage{"", "x", {}}));
}

// Complaint 34: whatever the model does, the marker does not reach the content.
TEST(CompletionParser, NoMarkerInContent) {
  for (const char* text :
       {"a ｜DSML｜ b", "</｜DSML｜tool_calls>", "<｜DSML｜nonsense>", "<|DSML|", "x\n\n<｜DSML", "x\n\n<｜DSML｜tool_",
        "<｜DSML｜parameter name=\"a\">v</｜DSML｜parameter>", "<<｜DSML｜<｜DSML｜invoke"}) {
    for (const bool truncated : {false, true}) {
      EXPECT_EQ(parse(text, false, truncated).content.find("DSML"), std::string::npos) << text;
    }
  }
}

// Pieces from which hostile completions are made.
std::string random_completion() {
  static const std::vector<std::string> kPieces = {"</think>",
                                                   "<think>",
                                                   "\n",
                                                   "\n\n",
                                                   "<",
                                                   ">",
                                                   "/",
                                                   "｜",
                                                   "|",
                                                   "DSML",
                                                   "｜DSML｜",
                                                   "|DSML|",
                                                   "<｜DSML｜",
                                                   "</｜DSML｜",
                                                   "tool_calls",
                                                   " calls",
                                                   "invoke",
                                                   "parameter",
                                                   " name=\"f\"",
                                                   " string=\"true\">",
                                                   " string=\"false\">",
                                                   ">\n",
                                                   "\"",
                                                   "1",
                                                   "text",
                                                   "é你👍",
                                                   "{}",
                                                   "<｜end▁of▁sentence｜>",
                                                   kBlock,
                                                   "<｜DSML｜tool_calls>\n",
                                                   "<｜DSML｜invoke name=\"g\">\n",
                                                   "</｜DSML｜invoke>\n",
                                                   "</｜DSML｜tool_calls>",
                                                   "<｜DSML｜parameter name=\"k\" string=\"true\">",
                                                   "<｜DSML｜parameter name=\"j\" string=\"false\">",
                                                   "</｜DSML｜parameter>\n"};
  std::string text;
  for (const size_t i : *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, kPieces.size())))
    text += kPieces[i];
  return text;
}

AssistantMessage assemble(const std::vector<CompletionEvent>& events) {
  AssistantMessage message;
  for (const auto& event : events) {
    if (event.kind == Kind::kReasoning) message.reasoning += event.text;
    if (event.kind == Kind::kContent) message.content += event.text;
    if (event.kind == Kind::kCallBegin) {
      RC_ASSERT(event.call == static_cast<int>(message.tool_calls.size()));
      message.tool_calls.push_back({event.text, "", false});
    }
    if (event.kind == Kind::kCallArguments)
      message.tool_calls.at(static_cast<size_t>(event.call)).arguments += event.text;
    if (event.kind == Kind::kCallEnd) message.tool_calls.at(static_cast<size_t>(event.call)).complete = true;
  }
  return message;
}

TEST(CompletionParser, AnyCutGivesTheSameMessage) {
  EXPECT_TRUE(rc::check("pieces do not matter", [](bool thinking, bool truncated, bool newer) {
    const PromptFormat& format = newer ? kPromptFormatV41 : kPromptFormatV4;
    const std::string text = random_completion();
    const AssistantMessage whole = parse(text, thinking, truncated, format);
    RC_ASSERT(whole.content.find("｜DSML｜") == std::string::npos);
    RC_ASSERT(whole.content.find("|DSML|") == std::string::npos);
    for (const ToolCall& call : whole.tool_calls) RC_ASSERT(!call.complete || is_json(call.arguments));
    CompletionParser parser(format, thinking);
    std::vector<CompletionEvent> events;
    std::string_view rest = text;
    while (!rest.empty()) {
      const size_t length = std::min<size_t>(rest.size(), *rc::gen::inRange<size_t>(1, 12));
      for (auto& event : parser.feed(rest.substr(0, length))) events.push_back(event);
      rest.remove_prefix(length);
    }
    for (auto& event : parser.finish(truncated)) events.push_back(event);
    RC_ASSERT(parser.message() == whole);
    RC_ASSERT(assemble(events) == whole);
  }));
}

TEST(CompletionParser, AgreesWithTheStrictParser) {
  EXPECT_TRUE(rc::check("what is strictly right means the same", [](bool thinking, bool newer) {
    const PromptFormat& format = newer ? kPromptFormatV41 : kPromptFormatV4;
    // ASCII markers are plain text to the strict parser only.
    const std::string text = random_completion();
    RC_PRE(text.find('|') == std::string::npos && !text.ends_with("｜DSML"));
    if (const auto strict = parse_completion(text, format, thinking))
      RC_ASSERT(parse(text, thinking, false, format) == *strict);
  }));
}

TEST(CompletionParser, ReadsBackWhatTheEncoderWrites) {
  EXPECT_TRUE(rc::check("encode, then parse", [](bool newer, const std::string& reasoning,
                                                 const std::vector<std::pair<uint8_t, std::string>>& values) {
    const PromptFormat& format = newer ? kPromptFormatV41 : kPromptFormatV4;
    const auto clean = [](std::string text) {
      std::erase_if(text, [](char c) { return c == '<' || c == '|' || static_cast<unsigned char>(c) >= 0x80; });
      return text;
    };
    Conversation conversation;
    conversation.messages.resize(2);
    conversation.messages[0].parts.push_back({"q", false, {}});
    Message& answer = conversation.messages[1];
    answer.role = Role::kAssistant;
    answer.reasoning = clean(reasoning);
    answer.parts.push_back({"done", false, {}});
    CallRecord call{"id", "f", {}};
    std::string arguments = "{";
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string name = "p" + std::to_string(i) + "_" + std::to_string(values[i].first);
      call.arguments.push_back({name, clean(values[i].second), true});
      arguments += (i ? ", " : "") + dump_json_string(name) + ": " + dump_json_string(clean(values[i].second));
    }
    answer.calls.push_back(call);
    const auto prompt = encode_prompt(conversation, format);
    RC_ASSERT(prompt.has_value());
    const std::string header = "<｜Assistant｜><think>";
    const std::string text = prompt->text.substr(prompt->text.find(header) + header.size());
    const AssistantMessage expected{answer.reasoning, "done", {{"f", arguments + "}", true}}};
    RC_ASSERT(parse(text, true, false, format) == expected);
    RC_ASSERT(parse_completion(text, format, true).value() == expected);
  }));
}

TEST(CompletionParser, LongValuesInSmallPiecesStayLinear) {
  CompletionParser parser(kPromptFormatV4, false);
  parser.feed("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"false\">\"");
  for (int i = 0; i < 500'000; ++i) parser.feed("ab<");
  parser.feed("\"</｜DSML｜parameter>\n");
  parser.finish();
  EXPECT_EQ(parser.message().tool_calls[0].arguments.size(), 1'500'000u + 9);
}

}  // namespace
}  // namespace onelane
