// What every subcommand that runs a model needs: the model, its tokenizer and prompt format, and kernels to run it on.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/session.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "text/prompt_format.h"
#include "text/tokenizer.h"

namespace onelane {

struct RuntimeOptions {
  std::string dir;              // model directory: config.json, model.safetensors, tokenizer.json
  std::string backend = "cpu";  // "cpu", "cuda", "cuda:N" or "reference"
  int threads = 0;              // of the cpu backend; 0: every processor
};

struct Runtime {
  Tokenizer tokenizer;
  std::unique_ptr<Kernels> kernels;  // outlives the model, whose weights may lie in its memory
  std::unique_ptr<Model> model;
  const PromptFormat* format = nullptr;

  // `text` as token ids; BOS is put in front when the text does not begin with it and `bos` asks for it.
  Result<std::vector<int32_t>> encode(std::string_view text, bool bos) const;
};

// The GPU's number, of "cuda" or "cuda:N".
std::optional<int> cuda_device(std::string_view backend);

// What options.backend names.
Result<std::unique_ptr<Kernels>> make_kernels(const RuntimeOptions& options);

// On `kernels`, or when null on those that the options ask for.
Result<Runtime> load_runtime(const RuntimeOptions& options, std::unique_ptr<Kernels> kernels = nullptr);

// A progress callback that redraws one line on stderr, or an empty one when stderr is no terminal.
Session::Progress progress_line(const std::string& what);

// Prints "onelane: message" to stderr; returns the exit code 1.
int fail(const Error& error);

}  // namespace onelane
