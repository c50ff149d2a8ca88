#include "lane/workload.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lane/sha256.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;

TEST(Workload, NineClassesOfSixteenAndEight) {
  const Workloads& all = builtin_workloads();
  std::set<std::string> ids, requests;
  double share = 0;
  ASSERT_EQ(all.classes.size(), 9u);
  for (const WorkloadClass& of : all.classes) {
    EXPECT_EQ(of.prompts.size(), 24u) << of.name;
    EXPECT_EQ(std::count_if(of.prompts.begin(), of.prompts.end(), [](const auto& p) { return p.held_out; }), 8)
        << of.name;
    share += of.share;
    for (const WorkloadPrompt& prompt : of.prompts) {
      EXPECT_TRUE(prompt.id.starts_with(of.name + "/")) << prompt.id;
      ids.insert(prompt.id);
      requests.insert(workload_request(of, prompt));
    }
  }
  EXPECT_NEAR(share, 1, 1e-12);
  EXPECT_EQ(ids.size(), 9u * 24u);
  EXPECT_EQ(requests.size(), ids.size()) << "two prompts ask the same";
}

// Every oracle takes the answer that it is made for, and refuses it when it is damaged; those that need a sandbox are
// in oracle_test.cc.
TEST(Workload, OraclesTakeTheirReferencesAndNothingElse) {
  int held = 0;
  for (const WorkloadClass& of : builtin_workloads().classes) {
    for (const WorkloadPrompt& prompt : of.prompts) {
      using Kind = Oracle::Kind;
      const Kind kind = prompt.oracle.kind;
      if (kind == Kind::kNone || kind == Kind::kProgram || kind == Kind::kShell) continue;
      ChatResult answer{.content = prompt.reference};
      if (kind == Kind::kToolCalls) {
        for (const auto& call : nlohmann::json::parse(prompt.oracle.value)) {
          answer.tool_calls.push_back({"id", call["name"], call["arguments"].dump()});
        }
      }
      const Graded right = grade_answer(prompt.oracle, answer);
      EXPECT_EQ(right.grade, Grade::kRight) << prompt.id << " " << right.why;

      std::string& digits = kind == Kind::kToolCalls ? answer.tool_calls.back().arguments : answer.content;
      const size_t at = digits.find_last_of("0123456789abcdefghijklmnopqrstuvwxyz");
      ASSERT_NE(at, std::string::npos) << prompt.id;
      digits[at] = digits[at] == '7' ? '8' : '7';
      // A code block's fence and a sentence's last word carry no fact.
      if (kind != Kind::kContains && digits.find("```") == std::string::npos) {
        EXPECT_EQ(grade_answer(prompt.oracle, answer).grade, Grade::kWrong) << prompt.id << ": " << digits;
      }
      EXPECT_EQ(grade_answer(prompt.oracle, {}).grade, Grade::kWrong) << prompt.id;
      ++held;
    }
  }
  EXPECT_GT(held, 120);
}

TEST(Workload, ALongPromptHasItsCodesInIt) {
  const WorkloadClass& of = *builtin_workloads().find("long");
  for (const WorkloadPrompt& prompt : of.prompts) {
    ASSERT_TRUE(prompt.hay) << prompt.id;
    const std::string messages = prompt.messages_json();
    EXPECT_GT(messages.size(), prompt.hay->characters - 200) << prompt.id;
    EXPECT_THAT(messages, HasSubstr(prompt.oracle.all.front())) << prompt.id;
    EXPECT_EQ(messages.find("{hay}"), std::string::npos) << prompt.id;
  }
}

TEST(Workload, TurnsGrowByAPrefix) {
  const WorkloadPrompt& prompt = *builtin_workloads().find_prompt("chat_multi/05");
  ASSERT_GE(prompt.turns, 4);
  std::string before = "[";
  for (int turn = 1; turn <= prompt.turns; ++turn) {
    const std::string messages = prompt.messages_json(turn);
    EXPECT_TRUE(messages.starts_with(before.substr(0, before.size() - 1)));
    EXPECT_GT(messages.size(), before.size());
    EXPECT_EQ(nlohmann::json::parse(messages).back()["role"], "user");
    before = messages;
  }
  EXPECT_EQ(before, prompt.messages_json());
}

TEST(Workload, ARequestHasWhatTheClassSays) {
  const WorkloadClass& of = *builtin_workloads().find("tool_json");
  const auto request = nlohmann::json::parse(workload_request(of, of.prompts[2]));
  EXPECT_EQ(request["max_tokens"], of.max_tokens);
  EXPECT_EQ(request["chat_template_kwargs"]["thinking"], of.thinking);
  EXPECT_GE(request["tools"].size(), 3u);
}

// A set of one class, with its protocol.
struct SmallSet {
  std::string text, protocol;
  std::array<EmbeddedFile, 2> files;

  explicit SmallSet(std::string body) : text(std::move(body)) {
    protocol = R"({"protocol": "p", "files": {"a.json": ")" + sha256(text) + R"("}})";
    files = {EmbeddedFile{"protocol.json", "", "", protocol}, EmbeddedFile{"a.json", "", "", text}};
  }
};
std::string one_prompt(const std::string& prompt) {
  return R"({"class": "a", "about": "", "share": 1, "thinking": false, "max_tokens": 1, "prompts": [)" + prompt + "]}";
}

TEST(Workload, AChangedFileIsNoticedByItsHash) {
  SmallSet set(one_prompt(R"({"id": "a/1", "held_out": false, "messages": [], "oracle": {"kind": "none"}})"));
  ASSERT_TRUE(read_workloads(set.files));
  std::string changed = set.text;
  changed[changed.size() - 2] = ' ';
  set.files[1].bytes = changed;
  const auto read = read_workloads(set.files);
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr("a.json: its SHA-256 is "));
}

TEST(Workload, ErrorsNameFilePromptAndField) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {one_prompt(R"({"held_out": false})"), "a.json: prompt 0: "},
      {one_prompt(R"({"id": "a/1", "held_out": 1, "messages": [], "oracle": {"kind": "none"}})"), "boolean"},
      {one_prompt(R"({"id": "a/1", "held_out": true, "messages": [], "oracle": {"kind": "guess"}})"),
       "a.json: a/1: oracle.kind: no kind \"guess\""},
      {one_prompt(R"({"id": "a/1", "held_out": true, "messages": [], "oracle": {"kind": "number"}})"), "value"},
      {"[]", "a.json: "},
      {"{", "a.json: "}};
  for (const auto& [text, message] : bad) {
    const auto read = read_workloads(SmallSet(text).files);
    ASSERT_FALSE(read) << text;
    EXPECT_THAT(read.error().message, HasSubstr(message)) << text;
  }
  SmallSet set(one_prompt(""));
  EXPECT_FALSE(read_workloads(std::span(set.files).first(1)));
  EXPECT_FALSE(read_workloads(std::span(set.files).last(1)));
}

}  // namespace
}  // namespace onelane
