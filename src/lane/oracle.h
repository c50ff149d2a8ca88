// Oracles: what makes an answer right, for the prompts that have such a thing, and whether a given answer is.
//
// Numbers, JSON, tables, strings and tool calls are compared here; programs and shell commands are run in a sandbox
// (sandbox.h), and where there is none their answers are not graded, which is not the same as wrong.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "lane/chat_stream.h"

namespace onelane {

struct Oracle {
  enum class Kind {
    kNone,       // any text that has no flaws (text_flaws.h)
    kContains,   // every string of `all` occurs; the letters are of `script` where one is given
    kNumber,     // the last number of the content is `number`
    kJson,       // the content, or its first code block, is JSON equal to `value`
    kRows,       // CSV, a Markdown table or flat YAML with these cells
    kToolCalls,  // the calls of `value`, in order: equal names, equal arguments
    kProgram,    // the code block, with `tests` behind it, runs to exit code 0
    kShell       // the command in the code block, run over `files`, prints `expected`
  };
  Kind kind = Kind::kNone;
  std::vector<std::string> all;
  std::string script;  // "latin", "kana" (with kanji), "han"; empty: any
  int64_t number = 0;
  std::string value;     // JSON; of kToolCalls an array of {"name", "arguments": {...}}
  std::string format;    // of kRows: "csv", "markdown", "yaml"
  std::string language;  // of kProgram: "python", "cpp"
  std::string tests;
  std::vector<std::vector<std::string>> rows;
  std::map<std::string, std::string> files;  // path to text
  std::string expected;
};

enum class Grade { kRight, kWrong, kNotGraded };

struct Graded {
  Grade grade = Grade::kRight;
  std::string why;  // a sentence, unless right
};

// Reads {"kind": "number", "value": 7} and its like. Errors name the field.
Result<Oracle> read_oracle(const nlohmann::ordered_json& json);

// Grades content and calls; reasoning does not count. Runs programs and commands for at most ten seconds each.
Graded grade_answer(const Oracle& oracle, const ChatResult& answer);

// The text of the first fenced code block, without its fences; the whole text, trimmed, where there is none.
std::string_view code_block(std::string_view text);

}  // namespace onelane
