// The house rules that a program can check: includes point upwards on the map only, and each heavy library stays in its
// room.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace onelane {
namespace {

namespace fs = std::filesystem;

// Folder -> folders it may include, besides itself. The order is the map's.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"base", {}},
    {"numerics", {"base"}},
    {"device", {"base"}},
    {"checkpoint", {"base", "numerics"}},
    {"kernels", {"base", "numerics", "device"}},
    {"cuda", {"base", "numerics", "device", "kernels"}},
    {"model", {"base", "numerics", "device", "checkpoint", "kernels"}},
    {"cache", {"base", "numerics", "device", "checkpoint", "kernels", "model"}},
    {"engine", {"base", "numerics", "device", "checkpoint", "kernels", "model", "cache"}},
    {"text", {"base"}},
    {"grammar", {"base", "engine", "text"}},
    {"http", {"base"}},
    {"api",
     {"base", "numerics", "device", "checkpoint", "kernels", "model", "cache", "engine", "text", "grammar", "http"}},
    {"lane", {"base", "numerics", "checkpoint", "text", "http"}},
    {"cli",
     {"base", "numerics", "device", "checkpoint", "kernels", "model", "cache", "engine", "text", "grammar", "http",
      "api", "lane"}},
};

// Library -> the only files that may include it, as a prefix of their path below src/.
const std::map<std::string, std::vector<std::string>> kRooms = {
    {"CLI/", {"cli/subcommands.h"}},
    {"spdlog/", {"base/log.cc"}},
    {"fmt/", {"base/format.h", "base/log.h"}},
    {"hwy/", {"kernels/cpu/"}},
    {"cuda", {"cuda/"}},  // cuda.h, cuda_runtime.h, cuda/ptx, and our own
    {"cub/", {"cuda/"}},
    {"nvtx3/", {"cuda/"}},
    {"onelane/", {"kernels/attention/", "cuda/", "device/plugin"}},
    {"pcre2", {"text/"}},
    {"unicode/", {"text/"}},
    {"nlohmann/", {"checkpoint/", "text/", "api/", "lane/", "cli/"}},
    {"boost/", {"http/", "lane/stats.cc"}},
    {"toml++/", {"cli/", "lane/card.cc"}},
    {"openssl/", {"lane/sha256"}},
    {"sqlite3", {"lane/receipt_store"}},
    {"prometheus/", {"api/"}},
    {"xxhash", {"cache/"}},
    {"xgrammar/", {"grammar/"}},
};

struct Include {
  std::string file;  // below src/
  std::string target;
  bool quoted;
};

std::vector<Include> all_includes() {
  const fs::path root = fs::path(ONELANE_ROOT) / "src";
  std::vector<Include> includes;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cc" && extension != ".cu") continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      constexpr std::string_view kDirective = "#include ";
      if (!line.starts_with(kDirective)) continue;  // clang-format writes them so
      const size_t begin = kDirective.size();
      const size_t end = line.find_first_of(">\"", begin + 1);
      if (end == std::string::npos) continue;
      includes.push_back(
          {fs::relative(entry.path(), root).string(), line.substr(begin + 1, end - begin - 1), line[begin] == '"'});
    }
  }
  return includes;
}

std::string first_folder(const std::string& path) { return path.substr(0, path.find('/')); }

TEST(Includes, PointOnlyUpwardsOnTheMap) {
  for (const Include& include : all_includes()) {
    const std::string from = first_folder(include.file);
    ASSERT_TRUE(kMayInclude.contains(from)) << "src/" << from << " is not on the map";
    const std::string to = first_folder(include.target);
    if (!include.quoted || !kMayInclude.contains(to)) continue;
    EXPECT_TRUE(from == to || kMayInclude.at(from).contains(to)) << include.file << " includes " << include.target;
  }
}

TEST(Includes, HeavyLibrariesStayInTheirRooms) {
  for (const Include& include : all_includes()) {
    for (const auto& [library, rooms] : kRooms) {
      if (!include.target.starts_with(library)) continue;
      const bool allowed = std::any_of(rooms.begin(), rooms.end(),
                                       [&](const std::string& room) { return include.file.starts_with(room); });
      EXPECT_TRUE(allowed) << include.file << " includes " << include.target;
    }
  }
}

// nvcc does not compile Debian 12's fmt and spdlog, and a bare CUDA machine has neither.
TEST(Includes, WhatNvccCompilesKeepsAwayFromFmt) {
  const std::set<std::string> fmt = {"base/format.h", "base/log.h"};
  for (const Include& include : all_includes()) {
    const bool bare = include.file.starts_with("cuda/") || include.file.starts_with("kernels/attention/") ||
                      include.file.starts_with("numerics/") || include.file.starts_with("device/buffer");
    EXPECT_FALSE(bare && fmt.contains(include.target)) << include.file << " includes " << include.target;
  }
}

// The emulator (tests/emulator) has cuda/ptx of its own; anything else it compiles as it is.
TEST(Includes, PtxIsInItsRoom) {
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(ONELANE_ROOT) / "src/cuda")) {
    if (!entry.is_regular_file() || entry.path().parent_path().filename() == "ptx") continue;
    std::ifstream file(entry.path());
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      const std::string_view code = std::string_view(line).substr(0, line.find("//"));
      for (const std::string_view word : {"asm(", "asm volatile", "extern __shared__"}) {
        EXPECT_EQ(code.find(word), std::string_view::npos) << entry.path() << ":" << number;
      }
    }
  }
}

TEST(Includes, HeadersGuardAgainstDoubleInclusion) {
  const fs::path root = fs::path(ONELANE_ROOT) / "src";
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    // Files named -inl.h are included once per instruction set, on purpose.
    if (entry.path().extension() != ".h" || name.ends_with("-inl.h") || name == "targets.h") continue;
    std::ifstream file(entry.path());
    bool guarded = false;
    for (std::string line; std::getline(file, line);) guarded = guarded || line == "#pragma once";
    EXPECT_TRUE(guarded) << entry.path();
  }
}

}  // namespace
}  // namespace onelane
