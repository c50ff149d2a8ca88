// `onelane`: the command line. Every subcommand has a file of its own; those that measure are added by measuring.cc.
//
// Exit codes: 0 done, 1 failed, 2 used wrongly. Results go to stdout, everything else to stderr.
#include <cstdio>
#include <iostream>

#include "cli/chat.h"
#include "cli/doctor.h"
#include "cli/encode.h"
#include "cli/generate.h"
#include "cli/inspect.h"
#include "cli/measuring.h"
#include "cli/parse.h"
#include "cli/score.h"
#include "cli/serve.h"
#include "cli/tokenize.h"
#include "device/plugin.h"

namespace onelane {
namespace {

void add_runtime(CLI::App& app, RuntimeOptions& options) {
  app.add_option("-m,--model", options.dir, "model directory: config.json, model.safetensors, tokenizer.json")
      ->required()
      ->type_name("DIR");
  app.add_option("--backend", options.backend,
                 "kernels to run on: cpu, cuda or cuda:N (a GPU), or reference (slow, the oracle)")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "threads of the cpu backend; 0: every processor")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void add_generation(CLI::App& app, GenerateOptions& options) {
  app.add_option("--max-tokens", options.max_tokens, "most tokens to generate")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--temperature", options.sampling.temperature, "0 always takes the best token")->capture_default_str();
  app.add_option("--top-p", options.sampling.top_p, "sample from the smallest set with this probability")
      ->capture_default_str();
  app.add_option("--seed", options.sampling.seed, "same seed, same text")->capture_default_str();
  app.add_flag("--ignore-eos", options.ignore_eos, "go on past the end token");
  app.add_option("--draft", options.draft_depth, "drafts verified per step when temperature is 0 (0: none)")
      ->check(CLI::Range(0, kMaxDraftDepth))
      ->capture_default_str();
}

void add_generate(Subcommands& commands, GenerateCommand& command) {
  CLI::App& app = commands.add("generate", "continue a text", [&command] { return run_generate(command); });
  add_runtime(app, command.runtime);
  auto* source = app.add_option_group("prompt");
  source->add_option("-p,--prompt", command.prompt, "the text to continue")->type_name("TEXT");
  source->add_option("--file", command.file, "read it from a file, - for stdin")->type_name("F");
  source
      ->add_option("--jsonl", command.jsonl, "many prompts: one {\"prompt\", \"max_tokens\"} a line, one result a line")
      ->type_name("F");
  source->require_option(1);
  app.add_flag("--raw", command.raw, "take the prompt as it is: no BOS in front");
  app.add_flag("--json", command.json, "print one JSON object: text, tokens, finish_reason, usage, timings, draft");
  add_generation(app, command.options);
}

void add_chat(Subcommands& commands, ChatCommand& command) {
  CLI::App& app = commands.add("chat", "talk to a model in the terminal", [&command] { return run_chat(command); });
  add_runtime(app, command.runtime);
  app.add_option("--system", command.system, "system message")->type_name("TEXT");
  app.add_flag("!--no-thinking", command.thinking, "answer without reasoning first");
  app.add_option("--effort", command.effort, "reasoning effort: low, high, max, or (V4.1) 1-100")->type_name("LEVEL");
  add_generation(app, command.options);
}

void add_score(Subcommands& commands, ScoreCommand& command) {
  CLI::App& app =
      commands.add("score", "log-probabilities and bits per byte of a text", [&command] { return run_score(command); });
  add_runtime(app, command.runtime);
  app.add_option("--file", command.file, "the text")->required()->type_name("F");
  app.add_option("--window", command.window, "tokens per independent window, BOS included; 0: the model's limit")
      ->capture_default_str();
  app.add_flag("--json", command.json, "print one JSON object with every token's log-probability");
  app.add_option("--routing-out", command.routing_out, "write how often each expert was picked, for --routing trace:F")
      ->type_name("F");
}

// Flags come from the table; the values are read later, when the file and the environment have had their say.
void add_serve(Subcommands& commands, ServeCommand& command) {
  CLI::App& app = commands.add("serve", "an HTTP server with OpenAI's and Anthropic's routes",
                               [&command] { return run_serve(command); });
  app.add_option("--config", command.config, "TOML file with any of the options below (max_model_len = 8192)")
      ->type_name("F");
  app.add_flag("--check", command.check, "read and check everything, load the model, then exit with 0 or 1");
  const ServeOptions defaults;
  for (const ServeOption& option : serve_option_table()) {
    std::vector<std::string>& values = command.flags[option.name];
    const std::string standard = option.get(defaults);
    const std::string help = option.help + (standard.empty() || standard == "0" ? "" : " [" + standard + "]");
    if (option.kind == ServeOption::Kind::kBool) {
      const std::string flags = "--" + option.name + "{true},--no-" + option.name + "{false}";
      app.add_flag(flags, values, help);
      continue;
    }
    const std::string name = option.name == "model" ? "-m,--model" : "--" + option.name;
    app.add_option(name, values, help)->expected(1)->take_all()->type_name("");
  }
}

void add_inspect(Subcommands& commands, InspectOptions& options) {
  CLI::App& app = commands.add("inspect", "what a model is, what it costs to hold and to run",
                               [&options] { return run_inspect(options); });
  app.add_option("dir", options.dir, "model directory")->required()->type_name("DIR");
  app.add_flag("--config-only", options.config_only, "read config.json alone");
  app.add_flag("--json", options.json, "print one JSON object");
  app.add_option("--rows", options.rows, "rows of the decode step")->capture_default_str();
  app.add_option("--tokens", options.tokens, "positions the sequence holds")->capture_default_str();
  app.add_option("--bandwidth", options.bandwidth_gb_s, "memory bandwidth in GB/s")->capture_default_str();
}

void add_tokenize(Subcommands& commands, TokenizeCommand& command) {
  CLI::App& app =
      commands.add("tokenize", "token ids of a text (stdin without -p, --file or --jsonl)", [&command, &commands] {
        command.has_prompt = commands.app.get_subcommand("tokenize")->count("--prompt") > 0;
        return run_tokenize(command);
      });
  auto* tokenizer = app.add_option_group("tokenizer");
  tokenizer->add_option("-m,--model", command.dir, "model directory: its tokenizer.json is used")->type_name("DIR");
  tokenizer->add_option("--tokenizer", command.tokenizer, "a tokenizer.json")->type_name("F");
  tokenizer->require_option(1);
  auto* source = app.add_option_group("text");
  source->add_option("-p,--prompt", command.prompt, "the text")->type_name("TEXT");
  source->add_option("--file", command.file, "read it from a file, - for stdin")->type_name("F");
  source->add_option("--jsonl", command.jsonl, "one JSON string a line, one array of ids a line; - for stdin")
      ->type_name("F");
  source->require_option(0, 1);
  auto* output = app.add_option_group("output");
  output->add_flag("--ids", command.ids, "print the ids alone, on one line");
  output->add_flag("--json", command.json, "print one array of id, token, text and special");
  output->require_option(0, 1);
}

// -m or --format: which generation's prompt grammar applies.
void add_format(CLI::App& app, std::string& dir, std::string& name) {
  auto* source = app.add_option_group("generation");
  source->add_option("-m,--model", dir, "model directory: config.json names the generation")->type_name("DIR");
  source->add_option("--format", name, "the generation, without a model directory")
      ->check(CLI::IsMember({"v4", "v41"}));
  source->require_option(1);
}

void add_encode(Subcommands& commands, EncodeCommand& command) {
  CLI::App& app =
      commands.add("encode", "a chat request (JSON) to its prompt text", [&command] { return run_encode(command); });
  add_format(app, command.dir, command.format);
  app.add_option("--file", command.file, "the request: messages, tools, thinking_mode, ...; stdin without it")
      ->type_name("F");
  auto* mode = app.add_option_group("mode");
  mode->add_flag("--thinking", command.thinking, "thinking mode, whatever the request says");
  mode->add_flag("--chat", command.chat, "chat mode, whatever the request says");
  mode->require_option(0, 1);
}

void add_parse(Subcommands& commands, ParseCommand& command) {
  CLI::App& app =
      commands.add("parse", "completion text to a message (JSON)", [&command] { return run_parse(command); });
  add_format(app, command.dir, command.format);
  app.add_option("--file", command.file, "the completion; stdin without it")->type_name("F");
  app.add_flag("--chat,!--thinking", command.chat, "the completion starts as content, not inside <think>");
  app.add_flag("--strict", command.strict, "refuse malformed text instead of repairing it");
}

void add_doctor(Subcommands& commands, DoctorOptions& options) {
  options = {.version = ONELANE_VERSION, .plugin_folders = plugin_folders()};
  commands.add("doctor", "what this machine offers: processor, memory, CUDA plugin, GPUs",
               [&options] { return run_doctor(options); });
}

int run(int argc, char** argv) {
  CLI::App app("onelane: DeepSeek-V4.1-Flash and V4-Flash for one impatient user");
  app.require_subcommand(1);
  app.set_version_flag("--version", ONELANE_VERSION);
  app.get_formatter()->column_width(34);

  int exit_code = 0;
  Subcommands commands{app, exit_code};
  GenerateCommand generate;
  ChatCommand chat;
  ScoreCommand score;
  ServeCommand serve;
  InspectOptions inspect;
  TokenizeCommand tokenize;
  EncodeCommand encode;
  ParseCommand parse;
  DoctorOptions doctor;
  chat.options.max_tokens = 1024;
  chat.options.sampling = {.temperature = 0.6f, .top_p = 0.95f, .seed = 0};
  add_generate(commands, generate);
  add_chat(commands, chat);
  add_score(commands, score);
  serve.version = ONELANE_VERSION;
  add_serve(commands, serve);
  add_inspect(commands, inspect);
  add_tokenize(commands, tokenize);
  add_encode(commands, encode);
  add_parse(commands, parse);
  add_doctor(commands, doctor);
  const auto measuring = add_measuring(commands);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version end here too, with code 0 and on stdout.
    return app.exit(error, std::cout, std::cerr) == 0 ? 0 : 2;
  }
  return exit_code;
}

}  // namespace
}  // namespace onelane

int main(int argc, char** argv) { return onelane::run(argc, argv); }
