// The tiny checkpoints of tests/data as loaded models: real format, random weights, every kind of layer.
#pragma once

#include <filesystem>
#include <memory>
#include <numeric>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "data/tiny_checkpoint.h"
#include "model/model.h"
#include "support/data.h"
#include "support/gpu.h"

namespace onelane {

// `generation` is "v4" or "v41"; `kernels`: who runs it. The checkpoint is built once per program.
inline std::unique_ptr<Model> load_tiny_model(const std::string& generation,
                                              Kernels* kernels = testing::model_kernels()) {
  const std::string data = repository_path("tests/data/" + generation);
  const std::string dir = ::testing::TempDir() + "/onelane_tiny_" + generation + "_" + std::to_string(::getpid());
  if (!std::filesystem::exists(dir)) onelane::testing::write_tiny_checkpoint(data, dir);
  std::vector<int32_t> token_map;
  if (generation == "v41") token_map = Vectors(data + "/engram.safetensors").get<int32_t>("token_map");
  auto model = Model::load(dir, std::move(token_map), kernels);
  EXPECT_TRUE(model) << (model ? "" : model.error().message);
  return model ? *std::move(model) : nullptr;
}

}  // namespace onelane
