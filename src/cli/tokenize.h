// `onelane tokenize`: text to token ids.
#pragma once

#include <string>

namespace onelane {

struct TokenizeCommand {
  std::string dir;          // -m: its tokenizer.json is used
  std::string tokenizer;    // --tokenizer: a tokenizer.json; exactly one of dir and tokenizer
  std::string prompt;       // -p; at most one of prompt, file and jsonl; none: stdin
  bool has_prompt = false;  // -p was given (it may be empty)
  std::string file;         // --file; "-" is stdin
  std::string jsonl;        // --jsonl: one JSON string a line, one array of ids a line comes out; "-" is stdin
  bool ids = false;         // --ids: the ids alone, on one line
  bool json = false;        // --json: one array of {"id", "token", "text", "special"}
};

// Without --ids and --json: one line per token, id, tab, token. Returns the exit code.
int run_tokenize(const TokenizeCommand& command);

}  // namespace onelane
