#include "lane/workload.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "lane/sha256.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kProtocolFile = "protocol.json";
constexpr std::string_view kHayMark = "{hay}";

HaySpec read_hay(const Json& json) {
  HaySpec hay;
  json.at("seed").get_to(hay.seed);
  json.at("characters").get_to(hay.characters);
  for (const Json& fact : json.at("facts")) {
    hay.facts.push_back({fact.at("at_permille").get<int>(), fact.at("text").get<std::string>()});
  }
  return hay;
}

Result<WorkloadPrompt> read_prompt(const Json& json) {
  WorkloadPrompt prompt;
  json.at("id").get_to(prompt.id);
  json.at("held_out").get_to(prompt.held_out);
  const Json& messages = json.at("messages");
  prompt.messages = messages.dump();
  if (json.contains("tools")) prompt.tools = json.at("tools").dump();
  if (json.contains("hay")) prompt.hay = read_hay(json.at("hay"));
  prompt.turns = static_cast<int>(
      std::count_if(messages.begin(), messages.end(), [](const Json& m) { return m.at("role") == "user"; }));
  prompt.reference = json.value("reference", "");
  auto oracle = read_oracle(json.at("oracle"));
  if (!oracle) return std::move(oracle).error().in(prompt.id);
  prompt.oracle = *std::move(oracle);
  return prompt;
}

Result<WorkloadClass> read_class(const EmbeddedFile& file) {
  WorkloadClass out;
  std::string at = std::string(file.path);
  try {
    const Json json = Json::parse(file.bytes);
    json.at("class").get_to(out.name);
    json.at("about").get_to(out.about);
    json.at("share").get_to(out.share);
    json.at("thinking").get_to(out.thinking);
    json.at("max_tokens").get_to(out.max_tokens);
    for (const Json& prompt : json.at("prompts")) {
      at = fmt::format("{}: prompt {}", file.path, out.prompts.size());
      auto read = read_prompt(prompt);
      if (!read) return std::move(read).error().in(std::string(file.path));
      out.prompts.push_back(*std::move(read));
    }
  } catch (const nlohmann::json::exception& error) {
    return Error{ErrorCode::kCorrupt, fmt::format("{}: {}", at, error.what())};
  }
  return out;
}

}  // namespace

std::string WorkloadPrompt::messages_json(int turn) const {
  Json json = Json::parse(messages);
  Json out = Json::array();
  int seen = 0;
  for (Json& message : json) {
    if (hay) {
      auto& content = message.at("content").get_ref<std::string&>();
      if (const size_t mark = content.find(kHayMark); mark != std::string::npos) {
        content.replace(mark, kHayMark.size(), make_hay(*hay));
      }
    }
    seen += message.at("role") == "user";
    out.push_back(std::move(message));
    if (turn > 0 && seen == turn) break;
  }
  return out.dump();
}

const WorkloadClass* Workloads::find(std::string_view name) const {
  const auto found = std::find_if(classes.begin(), classes.end(), [&](const auto& c) { return c.name == name; });
  return found == classes.end() ? nullptr : &*found;
}

const WorkloadPrompt* Workloads::find_prompt(std::string_view id) const {
  for (const WorkloadClass& of : classes) {
    for (const WorkloadPrompt& prompt : of.prompts) {
      if (prompt.id == id) return &prompt;
    }
  }
  return nullptr;
}

Result<Workloads> read_workloads(std::span<const EmbeddedFile> files) {
  const auto named = [&](std::string_view name) {
    return std::find_if(files.begin(), files.end(), [&](const EmbeddedFile& file) { return file.path == name; });
  };
  const auto protocol = named(kProtocolFile);
  if (protocol == files.end()) {
    return Error{ErrorCode::kNotFound, fmt::format("workloads: {} is missing", kProtocolFile)};
  }
  const Json json = Json::parse(protocol->bytes, nullptr, false);
  const bool usable = json.is_object() && json.contains("protocol") && json["protocol"].is_string() &&
                      json.contains("files") && json["files"].is_object();
  if (!usable) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{}: must be an object with \"protocol\" and \"files\"", kProtocolFile)};
  }

  Workloads out{.protocol = json["protocol"], .protocol_sha256 = sha256(protocol->bytes), .classes = {}};
  for (const auto& [name, hash] : json["files"].items()) {
    const auto file = named(name);
    if (file == files.end()) return Error{ErrorCode::kNotFound, fmt::format("workloads: {} is missing", name)};
    if (const std::string found = sha256(file->bytes); hash != found) {
      return Error{ErrorCode::kCorrupt,
                   fmt::format("{}: its SHA-256 is {}, {} says {}", name, found, kProtocolFile, hash.dump())};
    }
    ONELANE_ASSIGN(WorkloadClass read, read_class(*file));
    out.classes.push_back(std::move(read));
  }
  return out;
}

const Workloads& builtin_workloads() {
  static const Workloads workloads = [] {
    auto read = read_workloads(workload_files());
    return *std::move(read);  // ours, and tested: an error here is a broken build
  }();
  return workloads;
}

std::string workload_request(const WorkloadClass& of, const WorkloadPrompt& prompt, int turn) {
  Json json;
  json["messages"] = Json::parse(prompt.messages_json(turn));
  if (!prompt.tools.empty()) json["tools"] = Json::parse(prompt.tools);
  json["max_tokens"] = of.max_tokens;
  json["chat_template_kwargs"]["thinking"] = of.thinking;
  return json.dump();
}

}  // namespace onelane
