// The tiny V4.1 model, loaded once per program.
#pragma once

#include "engine_support.h"
#include "support/gpu.h"

namespace onelane {

class TinyEngineTest : public ::testing::Test {
 protected:
  static Model& model() {
    static const std::unique_ptr<Model> model = load_tiny_model("v41");
    return *model;
  }
  static Kernels& kernels() {
    static const std::unique_ptr<Kernels> kernels = testing::make_test_kernels(1);
    return *kernels;
  }
  static std::vector<int32_t> prompt() { return random_prompt(60, 1); }
  // What plain decoding gives for prompt(), at most 60 tokens.
  static std::vector<int32_t> plain(size_t count) {
    static const std::vector<int32_t> tokens = session_tokens(model(), prompt(), 60);
    return {tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count)};
  }
};

}  // namespace onelane
