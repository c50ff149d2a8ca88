// The tasks of the gauntlet.
#include <algorithm>
#include <array>
#include <utility>

#include "base/format.h"
#include "lane/gauntlet.h"
#include "lane/hay.h"
#include "lane/workload.h"

namespace onelane {
namespace {

using Kind = Oracle::Kind;

GateJson message(const char* role, std::string content) { return {{"role", role}, {"content", std::move(content)}}; }

GateJson tool(const char* name, const char* description, GateJson properties) {
  GateJson required = GateJson::array();
  for (const auto& [key, schema] : properties.items()) required.push_back(key);
  return {{"type", "function"},
          {"function",
           {{"name", name},
            {"description", description},
            {"parameters", {{"type", "object"}, {"properties", std::move(properties)}, {"required", required}}}}}};
}

GateJson type(const char* name) { return {{"type", name}}; }

// ---- full ----------------------------------------------------------------------------------------------------------

// Notes that name each other; the last has a code. Five reads, then an answer in strict JSON.
GauntletTask file_chain(int index, bool thinking) {
  constexpr std::array<const char*, 10> kNames = {"harbour", "quarry",  "ledger",  "beacon",  "orchard",
                                                  "granary", "trestle", "furnace", "lantern", "viaduct"};
  constexpr size_t kFiles = 5;
  SeededIntegers numbers(static_cast<uint64_t>(9000 + index));
  std::vector<std::string> names(kNames.begin(), kNames.end());
  for (size_t i = names.size() - 1; i > 0; --i) std::swap(names[i], names[numbers.below(i + 1)]);
  const std::string code = format("{}", 10000000 + numbers.below(90000000));
  GauntletTask task{.id = format("chain/{}{}", index, thinking ? "/thinking" : "")};
  for (size_t i = 0; i < kFiles; ++i) {
    const std::string path = format("notes/{}/{}.txt", index, names[i]);
    const std::string key = format("read_file {{\"path\":\"{}\"}}", path);
    task.calls.push_back(key);
    task.results[key] = i + 1 < kFiles ? format("Nothing here. The next note is notes/{}/{}.txt.", index, names[i + 1])
                                       : format("This is the last note. The code is {}.", code);
  }
  task.request["messages"] = GateJson::array(
      {message("system",
               "You read files through the tool, one at a time, and answer with JSON alone when you are done."),
       message(
           "user",
           format("Start with notes/{}/{}.txt. Every note names the next one, the last one holds a code. Answer with "
                  "{{\"code\": the code as a string, \"last\": the path of the last note}}.",
                  index, names[0]))});
  const GateJson path = GateJson::object({{"path", type("string")}});
  const GateJson path_and_text = GateJson::object({{"path", type("string")}, {"text", type("string")}});
  task.request["tools"] = GateJson::array(
      {tool("read_file", "Read a text file.", path), tool("write_file", "Write a text file.", path_and_text)});
  task.oracle = {
      .kind = Kind::kJson,
      .value =
          GateJson::object({{"code", code}, {"last", format("notes/{}/{}.txt", index, names[kFiles - 1])}}).dump()};
  return task;
}

// Prompts of a workload class, from its first sixteen or from those that are held out.
void add_workload(std::vector<GauntletTask>& tasks, std::string_view name, bool held_out, bool thinking,
                  bool (*wanted)(const WorkloadPrompt&)) {
  int left = 4;
  for (const WorkloadPrompt& prompt : builtin_workloads().find(name)->prompts) {
    if (prompt.held_out != held_out || left == 0 || !wanted(prompt)) continue;
    GauntletTask task{.id = prompt.id + (thinking ? "/thinking" : ""), .oracle = prompt.oracle};
    task.request["messages"] = GateJson::parse(prompt.messages_json());
    tasks.push_back(std::move(task));
    --left;
  }
}

std::vector<GauntletTask> full_tasks(bool held_out, bool thinking) {
  std::vector<GauntletTask> tasks;
  for (int i = 0; i < 4; ++i) tasks.push_back(file_chain(i + (held_out ? 4 : 0), thinking));
  add_workload(tasks, "code", held_out, thinking, [](const WorkloadPrompt& p) {
    return p.oracle.kind == Kind::kProgram && p.messages.find("This function is wrong") != std::string::npos;
  });
  add_workload(tasks, "structured", held_out, thinking, [](const WorkloadPrompt&) { return true; });
  return tasks;
}

// ---- mini ----------------------------------------------------------------------------------------------------------

struct MiniChain {
  const char* ask;
  const char* call;
  const char* result;
  const char* answer;
};
// Requests, calls and answers of the forms that the minis were trained on; set A, then B.
constexpr std::array<MiniChain, 8> kMiniChains = {{
    {"Book the room with city Lisbon and days 4.", R"(book_room {"city":"Lisbon","days":4})",
     R"({"status": "ok", "id": 4711})", "Done. The room has id 4711."},
    {"Send the email with recipient Vera and title silver garden.",
     R"(send_email {"recipient":"Vera","title":"silver garden"})", R"({"status": "ok", "id": 2093})",
     "Done. The email has id 2093."},
    {"Please book the room with city Oslo and days 9.", R"(book_room {"city":"Oslo","days":9})", R"({"found": 7})",
     "I found 7 results for the room."},
    {"Send a email: recipient Paul, title lemon mirror.", R"(send_email {"recipient":"Paul","title":"lemon mirror"})",
     R"({"error": "timeout"})", "The email failed: timeout."},
    {"I want to book a room with city Vienna and days 2.", R"(book_room {"city":"Vienna","days":2})",
     R"({"status": "ok", "id": 8056})", "Done. The room has id 8056."},
    {"Please send the email with recipient Clara and title winter needle.",
     R"(send_email {"recipient":"Clara","title":"winter needle"})", R"({"status": "ok", "id": 6402})",
     "Done. The email has id 6402."},
    {"Book the room. city: Prague, days: 6.", R"(book_room {"city":"Prague","days":6})", R"({"found": 12})",
     "I found 12 results for the room."},
    {"Send the email with recipient Tom and title copper turtle.",
     R"(send_email {"recipient":"Tom","title":"copper turtle"})", R"({"error": "not found"})",
     "The email failed: not found."},
}};
constexpr std::array<std::pair<int, int>, 8> kMiniSums = {
    {{345, 678}, {907, 95}, {561, 239}, {128, 774}, {499, 501}, {236, 817}, {350, 650}, {742, 189}}};
constexpr std::array<std::pair<const char*, const char*>, 8> kMiniRows = {
    {{"Count from 3 to 9.", "3,4,5,6,7,8,9"},
     {"Put a comma between the words: brave river stone", "brave,river,stone"},
     {"Name four metals.", "iron,copper,gold,silver"},
     {"Write in capital letters: silver lemon garden", "SILVER LEMON GARDEN"},
     {"Count from 11 to 15.", "11,12,13,14,15"},
     {"Put a comma between the words: quiet fox hill jade", "quiet,fox,hill,jade"},
     {"Write in capital letters: honey whistle", "HONEY WHISTLE"},
     {"Repeat: copper kettle winter", "copper kettle winter"}}};

GauntletTask mini_chain(size_t index, bool thinking) {
  const MiniChain& chain = kMiniChains[index];
  GauntletTask task{.id = format("chain/{}", index)};
  task.request["messages"] =
      GateJson::array({message("system", "You are a helpful assistant with tools."), message("user", chain.ask)});
  const GateJson room = GateJson::object({{"city", type("string")}, {"days", type("integer")}});
  const GateJson email = GateJson::object({{"recipient", type("string")}, {"title", type("string")}});
  task.request["tools"] =
      GateJson::array({tool("book_room", "Book a room.", room), tool("send_email", "Send the email.", email)});
  task.request["chat_template_kwargs"] = {{"thinking", thinking}};
  task.calls = {chain.call};
  task.results[chain.call] = chain.result;
  task.oracle = {.kind = Kind::kContains, .all = {chain.answer}};
  return task;
}

std::vector<GauntletTask> mini_tasks(bool held_out) {
  std::vector<GauntletTask> tasks;
  const size_t from = held_out ? 4 : 0;
  for (size_t i = from; i < from + 4; ++i) tasks.push_back(mini_chain(i, i % 2 == 1));
  for (size_t i = from; i < from + 4; ++i) {
    const auto [a, b] = kMiniSums[i];
    GauntletTask task{.id = format("sum/{}", i), .oracle = {.kind = Kind::kNumber, .number = a + b}};
    task.request["messages"] = GateJson::array({message("user", format("What is {} + {}?", a, b))});
    task.request["chat_template_kwargs"] = {{"thinking", true}};
    tasks.push_back(std::move(task));
  }
  for (size_t i = from; i < from + 4; ++i) {
    const auto& [ask, row] = kMiniRows[i];
    GauntletTask task{.id = format("row/{}", i), .oracle = {.kind = Kind::kRows, .format = "csv", .rows = {{}}}};
    for (std::string_view rest = row; !rest.empty();) {
      const size_t end = std::min(rest.find(','), rest.size());
      task.oracle.rows[0].emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    task.request["messages"] = GateJson::array({message("user", ask)});
    task.request["chat_template_kwargs"] = {{"thinking", false}};
    tasks.push_back(std::move(task));
  }
  return tasks;
}

}  // namespace

std::vector<GauntletTask> gauntlet_tasks(const GateProfile& profile, bool held_out, bool thinking) {
  if (profile.mini_tasks) return mini_tasks(held_out);
  std::vector<GauntletTask> tasks = full_tasks(held_out, thinking);
  for (GauntletTask& task : tasks) {
    task.request["chat_template_kwargs"] = {{"thinking", thinking}};
    if (thinking) task.request["reasoning_effort"] = "low";
  }
  return tasks;
}

GauntletTask tool_turn_task(const GateProfile& profile) {
  GauntletTask task = profile.mini_tasks ? mini_chain(0, false) : file_chain(0, false);
  // The calls are made already; only the last answer is asked for.
  for (const std::string& key : task.calls) {
    const size_t space = key.find(' ');
    const GateJson call = {{"id", "call_0"},
                           {"type", "function"},
                           {"function", {{"name", key.substr(0, space)}, {"arguments", key.substr(space + 1)}}}};
    task.request["messages"].push_back(
        {{"role", "assistant"}, {"content", ""}, {"tool_calls", GateJson::array({call})}});
    task.request["messages"].push_back({{"role", "tool"}, {"tool_call_id", "call_0"}, {"content", task.results[key]}});
  }
  task.calls.clear();
  return task;
}

}  // namespace onelane
