#include "cli/generate.h"

#include <cstdio>
#include <iostream>
#include <iterator>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "text/detokenizer.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

Json result_json(const Runtime& runtime, const GenerateResult& result) {
  const GenerateStats& stats = result.stats;
  Json json;
  json["text"] = runtime.tokenizer.decode(result.tokens);
  json["tokens"] = result.tokens;
  json["finish_reason"] = finish_reason_name(result.reason);
  json["usage"] = {{"prompt_tokens", stats.prompt_tokens}, {"completion_tokens", stats.tokens}};
  json["timings"] = {
      {"prefill_seconds", stats.prefill_seconds},
      {"decode_seconds", stats.decode_seconds},
      {"decode_tokens_per_second", stats.decode_seconds > 0 ? stats.tokens / stats.decode_seconds : 0.0}};
  json["draft"] = {{"steps", stats.steps}, {"blocks", stats.draft_blocks}, {"mean_accepted", stats.mean_accepted()}};
  for (const int count : stats.accepted) {
    if (count > 0) json["draft"]["accepted_by_position"].push_back(count);
  }
  return json;
}

Result<GenerateResult> generate_one(Runtime& runtime, const GenerateCommand& command, std::string_view prompt,
                                    const GenerateOptions& options, const TokenSink& sink) {
  ONELANE_ASSIGN(const std::vector<int32_t> ids, runtime.encode(prompt, !command.raw));
  if (ids.empty()) return Error{ErrorCode::kInvalidArgument, "the prompt is empty"};
  const int limit = runtime.model->spec.max_positions;
  if (static_cast<int>(ids.size()) > limit) {
    return Error{ErrorCode::kInvalidArgument,
                 format("the prompt has {} tokens, the model's limit is {}", ids.size(), limit)};
  }
  const int capacity = std::min(limit, static_cast<int>(ids.size()) + options.max_tokens);
  ONELANE_ASSIGN(const auto session, Session::create(*runtime.model, *runtime.kernels,
                                                     {.max_tokens = capacity, .draft = options.draft_depth > 0}));
  return generate(*session, ids, options, runtime.model->spec.tokens.eos, sink, progress_line("reading prompt:"));
}

Result<void> run_jsonl(Runtime& runtime, const GenerateCommand& command) {
  ONELANE_ASSIGN(const std::string text, read_file(command.jsonl));
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = format("{}:{}", command.jsonl, number);
    const Json task = Json::parse(line, nullptr, false);
    if (!task.is_object() || !task.contains("prompt") || !task["prompt"].is_string()) {
      return Error{ErrorCode::kInvalidArgument, where + ": expected an object with a string \"prompt\""};
    }
    GenerateOptions options = command.options;
    if (task.contains("max_tokens")) {
      if (!task["max_tokens"].is_number_integer()) {
        return Error{ErrorCode::kInvalidArgument, where + ": \"max_tokens\" must be an integer"};
      }
      options.max_tokens = task["max_tokens"].get<int>();
    }
    auto result = generate_one(runtime, command, task["prompt"].get_ref<const std::string&>(), options, {});
    if (!result) return std::move(result).error().in(where);
    std::cout << result_json(runtime, *result).dump() << std::endl;
  }
  return {};
}

Result<void> run_single(Runtime& runtime, const GenerateCommand& command) {
  std::string prompt = command.prompt;
  if (command.file == "-") {
    prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else if (!command.file.empty()) {
    ONELANE_ASSIGN(prompt, read_file(command.file));
  }
  Detokenizer detokenizer(runtime.tokenizer);
  const TokenSink stream = [&](int32_t token) {
    std::cout << detokenizer.push(token) << std::flush;
    return static_cast<bool>(std::cout);
  };
  ONELANE_ASSIGN(const GenerateResult result,
                 generate_one(runtime, command, prompt, command.options, command.json ? TokenSink{} : stream));
  if (command.json) {
    std::cout << result_json(runtime, result).dump() << std::endl;
  } else {
    std::cout << detokenizer.flush() << std::endl;
  }
  return {};
}

}  // namespace

int run_generate(const GenerateCommand& command) {
  if (auto valid = check_sampling(command.options.sampling); !valid) return fail(valid.error());
  auto runtime = load_runtime(command.runtime);
  if (!runtime) return fail(runtime.error());
  const auto done = command.jsonl.empty() ? run_single(*runtime, command) : run_jsonl(*runtime, command);
  return done ? 0 : fail(done.error());
}

}  // namespace onelane
