// Builds the tiny test checkpoints from their recipes (recipe.json beside this file; the rules are documented in
// tools/oracle/tiny.py, which wrote it). Seven megabytes of weights per generation come from 50 KB of text, and the
// golden vectors in the same folder were computed with exactly these bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace onelane::testing {

inline uint64_t fnv1a64(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return h;
}

// Word `i` of the stream that belongs to a tensor name (splitmix64 over a counter).
inline uint64_t recipe_word(uint64_t name_hash, uint64_t i) {
  uint64_t z = name_hash + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The raw bytes of one tensor of a recipe.
inline std::string recipe_bytes(const std::string& name, const nlohmann::json& tensor) {
  const uint64_t hash = fnv1a64(name);
  const std::string rule = tensor.at("rule");
  const auto shape = tensor.at("shape").get<std::vector<uint64_t>>();
  uint64_t count = 1;
  for (const uint64_t n : shape) count *= n;
  const uint64_t row = count / shape.front();
  std::string out;
  const auto put = [&out](auto value) { out.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  const auto number = [&tensor](const char* key) { return tensor.at(key).get<int64_t>(); };
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t u = recipe_word(hash, i);
    if (rule == "code8") {
      put(static_cast<uint8_t>((u >> 63 << 7) + number("low") + u % number("span")));
    } else if (rule == "nibbles") {
      put(static_cast<uint8_t>(u));
    } else if (rule == "exponent") {
      const int64_t every = number("boost_every");
      const int64_t boost = every > 0 && static_cast<int64_t>(i / row) % every == 5 ? number("boost") : 0;
      put(static_cast<uint8_t>(number("base") + static_cast<int64_t>(u % 3) - 1 + boost));
    } else if (rule == "hash") {
      put(static_cast<int64_t>((recipe_word(hash, i / row) + i % row) % number("experts")));
    } else if (rule == "fraction") {
      const int64_t m = number("m");
      const int64_t steps = static_cast<int64_t>(u % static_cast<uint64_t>(2 * m + 1)) - m;
      const auto value = static_cast<float>(tensor.at("offset").get<double>() +
                                            static_cast<double>(steps) * tensor.at("step").get<double>());
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      if (tensor.at("dtype") == "BF16") {
        put(static_cast<uint16_t>(bits >> 16));  // exact: the low half is zero
      } else {
        put(bits);
      }
    } else {
      throw std::runtime_error("recipe.json: unknown rule " + rule + " for " + name);
    }
  }
  return out;
}

// Writes OUT/config.json and OUT/model.safetensors from DATA/{config,recipe}.json, DATA being tests/data/v41 or
// tests/data/v4. Throws std::runtime_error when a file cannot be read or written or the checksum is wrong.
inline void write_tiny_checkpoint(const std::filesystem::path& data, const std::filesystem::path& out) {
  std::ifstream file(data / "recipe.json");
  if (!file) throw std::runtime_error("cannot read " + (data / "recipe.json").string());
  const nlohmann::json recipe = nlohmann::json::parse(file);
  std::string body;
  nlohmann::json header;
  uint64_t checksum = 0;
  // Wide elements first, so that every tensor is aligned to its element.
  for (const std::vector<std::string>& dtypes :
       {std::vector<std::string>{"I64"}, {"F32"}, {"BF16"}, {"F8_E4M3", "F8_E8M0", "I8"}}) {
    for (const auto& [name, tensor] : recipe.at("tensors").items()) {
      bool now = false;
      for (const std::string& dtype : dtypes) now = now || tensor.at("dtype") == dtype;
      if (!now) continue;
      const std::string bytes = recipe_bytes(name, tensor);
      uint64_t sum = 0;
      for (size_t i = 0; i < bytes.size(); ++i) sum += static_cast<uint8_t>(bytes[i]) * static_cast<uint64_t>(i + 1);
      checksum += fnv1a64(name) * sum;
      header[name] = {{"dtype", tensor.at("dtype")},
                      {"shape", tensor.at("shape")},
                      {"data_offsets", {body.size(), body.size() + bytes.size()}}};
      body += bytes;
    }
  }
  if (checksum != std::stoull(recipe.at("checksum").get<std::string>(), nullptr, 16)) {
    throw std::runtime_error("recipe.json: the generated weights do not match the checksum");
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::filesystem::create_directories(out);
  std::filesystem::copy_file(data / "config.json", out / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  std::ofstream model(out / "model.safetensors", std::ios::binary);
  model.write(reinterpret_cast<const char*>(&length), sizeof(length));
  model << text << body;
  if (!model.flush()) throw std::runtime_error("cannot write " + (out / "model.safetensors").string());
}

}  // namespace onelane::testing
