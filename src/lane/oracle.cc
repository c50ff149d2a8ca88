#include "lane/oracle.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "lane/sandbox.h"
#include "text/utf8.h"

namespace onelane {
namespace {

using Json = nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;
using Kind = Oracle::Kind;

constexpr double kRunSeconds = 10;
constexpr std::array<std::pair<std::string_view, Kind>, 8> kKinds = {{{"none", Kind::kNone},
                                                                      {"contains", Kind::kContains},
                                                                      {"number", Kind::kNumber},
                                                                      {"json", Kind::kJson},
                                                                      {"rows", Kind::kRows},
                                                                      {"tool_calls", Kind::kToolCalls},
                                                                      {"program", Kind::kProgram},
                                                                      {"shell", Kind::kShell}}};

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (const auto line = trim(text.substr(0, end)); !line.empty()) lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

Graded wrong(std::string why) { return {Grade::kWrong, std::move(why)}; }

// Of a text, cut for a message.
std::string excerpt(std::string_view text) {
  constexpr size_t kMost = 80;
  text = trim(text);
  size_t length = std::min(text.size(), kMost);
  while (length < text.size() && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  return fmt::format("\"{}{}\"", text.substr(0, length), length < text.size() ? "..." : "");
}

bool in_script(char32_t c, std::string_view script) {
  const bool kana = c >= 0x3040 && c <= 0x30ff, han = c >= 0x4e00 && c <= 0x9fff;
  if (script == "kana") return kana || han;
  if (script == "han") return han;
  return c < 0x250;
}

Graded grade_contains(const Oracle& oracle, std::string_view content) {
  for (const std::string& part : oracle.all) {
    if (content.find(part) == std::string_view::npos) return wrong(fmt::format("does not say {}", excerpt(part)));
  }
  if (oracle.script.empty()) return {};
  size_t letters = 0, fitting = 0;
  bool kana = false;
  for (size_t at = 0; at < content.size();) {
    size_t length = 1;
    const char32_t c = first_code_point(content.substr(at), length);
    at += length;
    if (c < 0x80 && !std::isalpha(static_cast<int>(c))) continue;
    // Punctuation, wide forms and symbols belong to no script.
    if ((c >= 0x80 && c < 0xc0) || (c >= 0x2000 && c < 0x3040) || c >= 0xff00) continue;
    ++letters;
    fitting += in_script(c, oracle.script);
    kana = kana || (c >= 0x3040 && c <= 0x30ff);
  }
  // Chinese has no kana, and a Japanese sentence has some; a name may stand in Latin letters.
  const bool mixed = (oracle.script == "han" && kana) || (oracle.script == "kana" && !kana);
  if (mixed || fitting * 2 < letters) return wrong(fmt::format("is not written in the script {}", oracle.script));
  return {};
}

Graded grade_number(int64_t expected, std::string_view content) {
  size_t end = content.find_last_of("0123456789");
  if (end == std::string_view::npos) return wrong("has no number in it");
  // Commas group thousands; a decimal point ends up in the digits and makes the number another one, as it should.
  std::string digits;
  size_t at = end + 1;
  while (at > 0 && (std::isdigit(static_cast<unsigned char>(content[at - 1])) || content[at - 1] == ',' ||
                    (content[at - 1] == '.' && at <= end))) {
    if (content[--at] != ',') digits.insert(digits.begin(), content[at]);
  }
  if (at > 0 && content[at - 1] == '-' && (at < 2 || content[at - 2] == ' ' || content[at - 2] == '\n')) {
    digits.insert(digits.begin(), '-');
  }
  if (digits == fmt::format("{}", expected)) return {};
  return wrong(fmt::format("ends with the number {}, not {}", digits, expected));
}

Graded grade_json(const Oracle& oracle, std::string_view content) {
  const Json answer = Json::parse(code_block(content), nullptr, false);
  if (answer.is_discarded()) return wrong(fmt::format("is not JSON: {}", excerpt(content)));
  if (answer == Json::parse(oracle.value)) return {};
  return wrong(fmt::format("is JSON with other values: {}", excerpt(answer.dump())));
}

std::optional<Rows> read_rows(std::string_view format, std::string_view text) {
  Rows rows;
  for (std::string_view line : lines_of(text)) {
    std::vector<std::string> cells;
    if (format == "yaml") {
      const size_t colon = line.find(": ");
      if (colon == std::string_view::npos) return std::nullopt;
      cells = {std::string(trim(line.substr(0, colon))), std::string(trim(line.substr(colon + 2)))};
    } else {
      const char mark = format == "csv" ? ',' : '|';
      if (mark == '|') {
        if (line.size() < 2 || line.front() != '|' || line.back() != '|') return std::nullopt;
        line = line.substr(1, line.size() - 2);
      }
      while (true) {
        const size_t end = line.find(mark);
        cells.emplace_back(trim(line.substr(0, end)));
        if (end == std::string_view::npos) break;
        line.remove_prefix(end + 1);
      }
      const bool rule = mark == '|' && std::all_of(cells.begin(), cells.end(), [](const std::string& cell) {
                          return cell.find_first_not_of("-:") == std::string::npos && cell.size() >= 3;
                        });
      if (rule) continue;
    }
    rows.push_back(std::move(cells));
  }
  return rows;
}

Graded grade_rows(const Oracle& oracle, std::string_view content) {
  const auto rows = read_rows(oracle.format, code_block(content));
  if (!rows) return wrong(fmt::format("is not {}: {}", oracle.format, excerpt(content)));
  if (*rows == oracle.rows) return {};
  return wrong(fmt::format("is {} with other cells: {}", oracle.format, excerpt(content)));
}

Graded grade_calls(const Oracle& oracle, const ChatResult& answer) {
  Json calls = Json::array();
  for (const ChatToolCall& call : answer.tool_calls) {
    Json arguments = Json::parse(call.arguments, nullptr, false);
    if (arguments.is_discarded()) {
      return wrong(fmt::format("the arguments of {} are not JSON: {}", call.name, excerpt(call.arguments)));
    }
    calls.push_back({{"name", call.name}, {"arguments", std::move(arguments)}});
  }
  if (calls == Json::parse(oracle.value)) return {};
  return wrong(calls.empty() ? fmt::format("calls no tool: {}", excerpt(answer.content))
                             : fmt::format("makes other calls: {}", excerpt(calls.dump())));
}

Graded grade_run(const Oracle& oracle, std::string_view content) {
  std::map<std::string, std::string> files = oracle.files;
  std::string command(code_block(content));
  if (oracle.kind == Kind::kProgram) {
    const bool python = oracle.language == "python";
    files[python ? "answer.py" : "answer.cc"] = command + "\n\n" + oracle.tests + "\n";
    command = python ? "python3 answer.py" : "g++ -std=c++20 -O0 -o answer answer.cc && ./answer";
  }
  const auto run = run_in_sandbox(files, command, kRunSeconds);
  if (!run) return {Grade::kNotGraded, run.error().message};
  if (run->timed_out) return wrong(fmt::format("runs for more than {} s", kRunSeconds));
  if (oracle.kind == Kind::kProgram) {
    if (run->exit_code == 0) return {};
    return wrong(fmt::format("ends with code {}: {}", run->exit_code, excerpt(run->errors)));
  }
  if (run->output == oracle.expected) return {};
  return wrong(fmt::format("prints {}, not {}", excerpt(run->output), excerpt(oracle.expected)));
}

}  // namespace

std::string_view code_block(std::string_view text) {
  const size_t fence = text.find("```");
  const size_t begin = fence == std::string_view::npos ? fence : text.find('\n', fence);
  if (begin == std::string_view::npos) return trim(text);
  const size_t end = text.find("\n```", begin);
  // An empty block closes with the very line feed that opens it.
  if (end == begin) return {};
  return text.substr(begin + 1, end == std::string_view::npos ? end : end - begin - 1);
}

Result<Oracle> read_oracle(const nlohmann::ordered_json& json) {
  Oracle oracle;
  try {
    const std::string name = json.at("kind");
    const auto known = std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& k) { return k.first == name; });
    if (known == kKinds.end()) return Error{ErrorCode::kCorrupt, fmt::format("oracle.kind: no kind \"{}\"", name)};
    oracle.kind = known->second;
    switch (oracle.kind) {
      case Kind::kNone:
        break;
      case Kind::kContains:
        json.at("all").get_to(oracle.all);
        oracle.script = json.value("script", "");
        break;
      case Kind::kNumber:
        json.at("value").get_to(oracle.number);
        break;
      case Kind::kJson:
        oracle.value = json.at("value").dump();
        break;
      case Kind::kToolCalls:
        oracle.value = json.at("calls").dump();
        break;
      case Kind::kRows:
        json.at("format").get_to(oracle.format);
        json.at("rows").get_to(oracle.rows);
        break;
      case Kind::kProgram:
        json.at("language").get_to(oracle.language);
        json.at("tests").get_to(oracle.tests);
        break;
      case Kind::kShell:
        for (const auto& [path, text] : json.at("files").items()) oracle.files[path] = text.get<std::string>();
        json.at("stdout").get_to(oracle.expected);
        break;
    }
  } catch (const nlohmann::json::exception& error) {
    return Error{ErrorCode::kCorrupt, fmt::format("oracle: {}", error.what())};
  }
  return oracle;
}

Graded grade_answer(const Oracle& oracle, const ChatResult& answer) {
  if (oracle.kind == Kind::kToolCalls) return grade_calls(oracle, answer);
  if (!answer.tool_calls.empty()) return wrong(fmt::format("calls the tool {}", answer.tool_calls[0].name));
  if (trim(answer.content).empty()) return wrong("is empty");
  switch (oracle.kind) {
    case Kind::kContains:
      return grade_contains(oracle, answer.content);
    case Kind::kNumber:
      return grade_number(oracle.number, answer.content);
    case Kind::kJson:
      return grade_json(oracle, answer.content);
    case Kind::kRows:
      return grade_rows(oracle, answer.content);
    case Kind::kProgram:
    case Kind::kShell:
      return grade_run(oracle, answer.content);
    default:
      return {};
  }
}

}  // namespace onelane
