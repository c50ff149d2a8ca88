#include "cli/runtime.h"

#include <cstdio>

#include <unistd.h>

#include "base/format.h"
#include "text/compressed_token_map.h"

namespace onelane {

Result<std::vector<int32_t>> Runtime::encode(std::string_view text, bool bos) const {
  ONELANE_ASSIGN(std::vector<int32_t> ids, tokenizer.encode(text));
  const int32_t bos_id = model->spec.tokens.bos;
  if (bos && (ids.empty() || ids.front() != bos_id)) ids.insert(ids.begin(), bos_id);
  return ids;
}

Result<Runtime> load_runtime(const RuntimeOptions& options) {
  if (options.backend != "cpu" && options.backend != "reference") {
    return Error{ErrorCode::kInvalidArgument, format("--backend must be cpu or reference, not '{}'", options.backend)};
  }
  ONELANE_ASSIGN(Tokenizer tokenizer, Tokenizer::load(options.dir + "/tokenizer.json"));
  ONELANE_ASSIGN(CompressedTokenMap map, compressed_token_map(tokenizer));
  ONELANE_ASSIGN(std::unique_ptr<Model> model, Model::load(options.dir, std::move(map.number)));
  if (tokenizer.size() > model->spec.vocab) {
    return Error{ErrorCode::kCorrupt, format("{}: tokenizer.json has {} tokens, config.json a vocab_size of {}",
                                             options.dir, tokenizer.size(), model->spec.vocab)};
  }
  const PromptFormat& prompt_format = model->spec.generation == Generation::kV4 ? kPromptFormatV4 : kPromptFormatV41;
  return Runtime{std::move(tokenizer), std::move(model),
                 options.backend == "cpu" ? make_cpu_kernels(options.threads) : make_reference_kernels(),
                 &prompt_format};
}

Session::Progress progress_line(const std::string& what) {
  if (::isatty(STDERR_FILENO) == 0) return {};
  return [what](int done, int total) {
    if (total < 512) return;  // gone before anyone could read it
    std::fprintf(stderr, "\r%s %d of %d tokens", what.c_str(), done, total);
    if (done == total) std::fprintf(stderr, "\r\033[K");
  };
}

int fail(const Error& error) {
  std::fprintf(stderr, "onelane: %s\n", error.message.c_str());
  return 1;
}

}  // namespace onelane
