#include "cli/runtime.h"

#include <charconv>
#include <cstdio>

#include <unistd.h>

#include "base/format.h"
#include "device/plugin.h"
#include "text/compressed_token_map.h"

namespace onelane {

std::optional<int> cuda_device(std::string_view backend) {
  constexpr std::string_view kCuda = "cuda";
  if (backend == kCuda) return 0;
  if (!backend.starts_with("cuda:")) return {};
  int device = 0;
  const char* end = backend.data() + backend.size();
  const auto [stop, failed] = std::from_chars(backend.data() + kCuda.size() + 1, end, device);
  if (failed != std::errc() || stop != end || device < 0) return {};
  return device;
}

Result<std::unique_ptr<Kernels>> make_kernels(const RuntimeOptions& options) {
  const std::string& backend = options.backend;
  if (backend == "cpu") return make_cpu_kernels(options.threads);
  if (backend == "reference") return make_reference_kernels();
  const std::optional<int> device = cuda_device(backend);
  if (!device) {
    return Error{ErrorCode::kInvalidArgument,
                 format("--backend must be cpu, cuda, cuda:N (GPU number N) or reference, not '{}'", backend)};
  }
  const auto plugin = load_plugin(plugin_folders());
  if (!plugin) return Error{plugin.error().code, format("--backend {}: {}", backend, plugin.error().message)};
  auto kernels = make_cuda_kernels(*plugin, *device);
  if (!kernels) return std::move(kernels).error().in("--backend " + backend);
  return kernels;
}

Result<std::vector<int32_t>> Runtime::encode(std::string_view text, bool bos) const {
  ONELANE_ASSIGN(std::vector<int32_t> ids, tokenizer.encode(text));
  const int32_t bos_id = model->spec.tokens.bos;
  if (bos && (ids.empty() || ids.front() != bos_id)) ids.insert(ids.begin(), bos_id);
  return ids;
}

Result<Runtime> load_runtime(const RuntimeOptions& options, std::unique_ptr<Kernels> kernels) {
  if (kernels == nullptr) {
    ONELANE_ASSIGN(kernels, make_kernels(options));
  }
  ONELANE_ASSIGN(Tokenizer tokenizer, Tokenizer::load(options.dir + "/tokenizer.json"));
  ONELANE_ASSIGN(CompressedTokenMap map, compressed_token_map(tokenizer));
  ONELANE_ASSIGN(std::unique_ptr<Model> model, Model::load(options.dir, std::move(map.number), kernels.get()));
  if (tokenizer.size() > model->spec.vocab) {
    return Error{ErrorCode::kCorrupt, format("{}: tokenizer.json has {} tokens, config.json a vocab_size of {}",
                                             options.dir, tokenizer.size(), model->spec.vocab)};
  }
  const PromptFormat& prompt_format = model->spec.generation == Generation::kV4 ? kPromptFormatV4 : kPromptFormatV41;
  return Runtime{std::move(tokenizer), std::move(kernels), std::move(model), &prompt_format};
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
