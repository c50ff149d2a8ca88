// Services: what every route needs, made once by whoever starts the server.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/model_spec.h"
#include "engine/engine.h"
#include "grammar/compiler.h"
#include "text/prompt_format.h"
#include "text/tokenizer.h"

namespace onelane {

class Metrics;

// What is running, for those who measure it: enough to tell two servers apart, nothing about where they run.
struct ServerIdentity {
  std::string build;                            // the program's build id
  std::string boot_id;                          // another one at every start
  std::string model;                            // hash of the checkpoint's numbers and samples of its weights
  std::map<std::string, std::string> settings;  // effective options that can change speed or answers
};

struct ApiOptions {
  std::vector<std::string> model_names;  // served names; the first is the one that answers carry
  std::vector<std::string> api_keys;     // empty: no key is asked for
  int default_max_tokens = 0;            // of a chat answer that sets no limit; 0: the rest of the context
  int max_choices = 16;                  // largest `n`
  int max_logprobs = 64;                 // largest top_logprobs
  int max_stop_strings = 16;
  double keep_alive_seconds = 5;  // between comments on a stream that has nothing to say
  double health_seconds = 60;     // /health fails when requests run and no step has finished for so long
  double request_seconds = 0;     // deadline of every request; 0: none
  std::string version;            // of this program
  ServerIdentity identity;
  bool log_requests = true;  // one line each, never with text of prompt or answer
  bool log_text = false;     // the text of requests as well; off by default on purpose
};

// What reading a request needs: no engine, no I/O.
struct ApiContext {
  const Tokenizer& tokenizer;
  const PromptFormat& format;
  const ModelSpec& spec;
  ApiOptions options;
  int max_model_len = 0;  // the engine's: tokens of one sequence
};

struct Services : ApiContext {
  Engine& engine;
  Metrics& metrics;
  GrammarCompiler& grammars;
  // Runs a task on the I/O thread, now or after some seconds.
  std::function<void(std::function<void()>)> post;
  std::function<void(double, std::function<void()>)> post_after;
  bool draining = false;  // shutting down: /ready says no
};

}  // namespace onelane
