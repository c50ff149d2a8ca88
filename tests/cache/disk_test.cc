// The disk tier: what survives a restart, and that nothing damaged, foreign or half-written is ever used.
#include <csignal>
#include <fstream>
#include <functional>

#include <sys/wait.h>
#include <unistd.h>

#include "cache/disk_tier.h"
#include "simulation.h"

namespace onelane {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPlenty = int64_t{1} << 30;

PrefixCacheOptions on_disk(const std::string& dir) {
  return {.checkpoint_bytes = kPlenty, .disk_dir = dir, .disk_bytes = kPlenty, .checkpoint_every = 2};
}

std::vector<fs::path> files_in(const std::string& dir, const std::string& extension) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().extension() == extension) files.push_back(entry.path());
  }
  return files;
}

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_all(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class DiskTest : public ::testing::Test {
 protected:
  DiskTest() : dir_("disk_test"), simulation_(simulated_spec(), 40), prompt_(random_tokens(6 * 128 + 5, 1)) {}

  // Runs the prompt and ends the cache, leaving 6 pages and 3 checkpoints in the directory.
  void leave_on_disk() {
    ASSERT_TRUE(simulation_.open(on_disk(dir_.path())));
    ASSERT_EQ(simulation_.run_and_release(prompt_), 0);
    simulation_.close();
    ASSERT_EQ(files_in(dir_.path(), ".page").size(), 6u);
    ASSERT_EQ(files_in(dir_.path(), ".checkpoint").size(), 3u);
  }
  fs::path file_of(int page, const std::string& extension) const {
    PageKey key = root_key("simulated");
    for (int i = 0; i <= page; ++i) key = page_key(key, std::span(prompt_).subspan(static_cast<size_t>(i) * 128, 128));
    return dir_.path() + "/" + to_hex(key) + extension;
  }
  // What a new cache makes of the directory: tokens it can attach, and files it refused.
  void expect_after_restart(int cached, uint64_t dropped) {
    ASSERT_TRUE(simulation_.open(on_disk(dir_.path())));
    Held held = simulation_.attach(prompt_, 1);
    EXPECT_EQ(held.cached, cached);
    EXPECT_EQ(simulation_.cache().stats().dropped_blobs, dropped);
    simulation_.release(held);
    simulation_.close();
    EXPECT_EQ(simulation_.pool().free(), 40);
  }

  TempDir dir_;
  Simulation simulation_;
  std::vector<int32_t> prompt_;
};

TEST_F(DiskTest, ChainsAreAttachableAfterARestart) {
  leave_on_disk();
  expect_after_restart(6 * 128, 0);
  // Another prompt goes on from a boundary in the middle, and a third restart knows both.
  const auto other = std::span(prompt_).first(4 * 128) + random_tokens(300, 2);
  ASSERT_TRUE(simulation_.open(on_disk(dir_.path())));
  EXPECT_EQ(simulation_.run_and_release(other), 4 * 128);
  ASSERT_TRUE(simulation_.open(on_disk(dir_.path())));
  EXPECT_EQ(simulation_.run_and_release(other), 6 * 128);
  EXPECT_EQ(simulation_.run_and_release(prompt_), 6 * 128);
  EXPECT_EQ(simulation_.cache().stats().restored_pages, 8u);
  simulation_.cache().clear();
  simulation_.close();
  EXPECT_TRUE(files_in(dir_.path(), ".page").empty());
  EXPECT_TRUE(files_in(dir_.path(), ".checkpoint").empty());
}

TEST_F(DiskTest, AnotherModelsFilesAreRefused) {
  leave_on_disk();
  PrefixCacheOptions options = on_disk(dir_.path());
  options.model_id = "another";
  ASSERT_TRUE(simulation_.open(options));
  EXPECT_EQ(simulation_.attach(prompt_, 0).cached, 0);
  EXPECT_EQ(simulation_.cache().stats().dropped_blobs, 9u);
  EXPECT_EQ(simulation_.cache().stats().disk_bytes, 0);
}

TEST_F(DiskTest, DamageCostsHitsAndNothingElse) {
  struct Case {
    std::string name;
    std::function<void(std::string&)> damage;
  };
  const auto flip = [](size_t at) {
    return [at](std::string& bytes) { bytes[at] = static_cast<char>(bytes[at] ^ 4); };
  };
  const std::vector<Case> cases = {
      {"magic", flip(0)},
      {"version", flip(8)},
      {"kind", flip(12)},
      {"model", flip(20)},
      {"parent", flip(40)},
      {"token", flip(100)},
      {"length", flip(560)},
      {"huge length", [](std::string& bytes) { bytes.replace(560, 8, 8, '\xff'); }},
      {"checksum", flip(570)},
      {"first byte of the payload", flip(kBlobHeaderBytes)},
      {"last byte", [](std::string& bytes) { bytes.back() = static_cast<char>(bytes.back() ^ 1); }},
      {"one byte short", [](std::string& bytes) { bytes.pop_back(); }},
      {"one byte more", [](std::string& bytes) { bytes.push_back('x'); }},
      {"half", [](std::string& bytes) { bytes.resize(bytes.size() / 2); }},
      {"half a header", [](std::string& bytes) { bytes.resize(kBlobHeaderBytes / 2); }},
      {"empty", [](std::string& bytes) { bytes.clear(); }},
      {"garbage", [](std::string& bytes) { bytes.assign(bytes.size(), 'g'); }},
  };
  leave_on_disk();
  for (const bool page : {true, false}) {
    const fs::path path = page ? file_of(4, ".page") : file_of(5, ".checkpoint");
    const std::string whole = read_all(path);
    ASSERT_FALSE(whole.empty());
    for (const Case& damaged : cases) {
      SCOPED_TRACE(damaged.name + (page ? ", page" : ", checkpoint"));
      std::string bytes = whole;
      damaged.damage(bytes);
      write_all(path, bytes);
      // A header is read at the start, and orphans go with it; a payload when somebody wants it.
      expect_after_restart(4 * 128, 1);
      EXPECT_FALSE(fs::exists(path));
      // Computed again, it is written again.
      ASSERT_TRUE(simulation_.open(on_disk(dir_.path())));
      EXPECT_EQ(simulation_.run_and_release(prompt_), 4 * 128);
      simulation_.close();
      ASSERT_TRUE(fs::exists(path));
      EXPECT_EQ(read_all(path), whole);
    }
  }
}

TEST_F(DiskTest, AFileUnderAnotherPagesNameIsRefused) {
  leave_on_disk();
  fs::copy_file(file_of(2, ".page"), file_of(4, ".page"), fs::copy_options::overwrite_existing);
  expect_after_restart(4 * 128, 1);
  // Even when it is swapped behind the cache's back.
  ASSERT_TRUE(simulation_.open(on_disk(dir_.path())));
  fs::copy_file(file_of(0, ".page"), file_of(1, ".page"), fs::copy_options::overwrite_existing);
  EXPECT_EQ(simulation_.attach(prompt_, 0).cached, 0);
  EXPECT_EQ(simulation_.cache().stats().dropped_blobs, 1u);
}

TEST_F(DiskTest, FilesThatVanishCostHits) {
  leave_on_disk();
  ASSERT_TRUE(simulation_.open(on_disk(dir_.path())));
  fs::remove(file_of(3, ".page"));
  Held held = simulation_.attach(prompt_, 0);
  EXPECT_EQ(held.cached, 2 * 128);
  simulation_.release(held);
  // A hole is filled by whoever computes it; what lies behind is whole again.
  EXPECT_EQ(simulation_.run_and_release(std::span(prompt_).first(4 * 128 + 1)), 2 * 128);
  EXPECT_EQ(simulation_.run_and_release(prompt_), 6 * 128);
}

TEST_F(DiskTest, LeftoversGoAndStrangersStay) {
  leave_on_disk();
  const std::string leftover = file_of(0, ".page").string() + ".tmp";
  const std::vector<std::string> strangers = {dir_.path() + "/notes.txt", dir_.path() + "/notes.tmp",
                                              dir_.path() + "/0123.page"};
  write_all(leftover, "half");
  for (const auto& path : strangers) write_all(path, "mine");
  expect_after_restart(6 * 128, 0);
  EXPECT_FALSE(fs::exists(leftover));
  for (const auto& path : strangers) EXPECT_TRUE(fs::exists(path)) << path;
}

TEST_F(DiskTest, ErrorsNameTheDirectory) {
  ASSERT_TRUE(simulation_.open(on_disk(dir_.path())));
  Simulation other(simulated_spec(), 4);
  const auto second = other.open(on_disk(dir_.path()));
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message.find(dir_.path()), std::string::npos) << second.error().message;
  EXPECT_NE(second.error().message.find("in use"), std::string::npos) << second.error().message;
  write_all(dir_.path() + "/file", "");
  const auto below = other.open(on_disk(dir_.path() + "/file/cache"));
  ASSERT_FALSE(below);
  EXPECT_NE(below.error().message.find("file/cache"), std::string::npos) << below.error().message;
  auto no_budget = on_disk(dir_.path() + "/fresh");
  no_budget.disk_bytes = 0;
  const auto refused = other.open(no_budget);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("disk_bytes"), std::string::npos) << refused.error().message;
}

TEST_F(DiskTest, ADirectoryThatGoesAwayIsCountedAndSurvived) {
  ASSERT_TRUE(simulation_.open(on_disk(dir_.path())));
  fs::remove_all(dir_.path());
  EXPECT_EQ(simulation_.run_and_release(prompt_), 0);
  simulation_.cache().flush();
  EXPECT_GE(simulation_.cache().stats().dropped_writes, 9u);  // the next checkpoint may have tried again
  EXPECT_EQ(simulation_.run_and_release(prompt_), 6 * 128);
  simulation_.cache().reclaim(40);
  EXPECT_EQ(simulation_.run_and_release(prompt_), 0);
}

TEST_F(DiskTest, TheLeastRecentlyUsedGoBeyondTheBudget) {
  auto options = on_disk(dir_.path());
  options.checkpoint_every = 0;
  const auto files = static_cast<int64_t>(kBlobHeaderBytes);
  const int64_t one_prompt = 6 * (simulation_.page_bytes() + files) + simulation_.state_bytes() + files;
  options.disk_bytes = 2 * one_prompt;
  ASSERT_TRUE(simulation_.open(options));
  const auto second = random_tokens(6 * 128 + 5, 2);
  const auto third = random_tokens(6 * 128 + 5, 3);
  simulation_.run_and_release(prompt_);
  simulation_.run_and_release(second);
  simulation_.cache().flush();
  EXPECT_EQ(simulation_.run_and_release(prompt_), 6 * 128);
  simulation_.run_and_release(third);
  simulation_.cache().flush();
  EXPECT_LE(simulation_.cache().stats().disk_bytes, options.disk_bytes);
  ASSERT_TRUE(simulation_.open(options));
  EXPECT_EQ(simulation_.run_and_release(prompt_), 6 * 128);
  EXPECT_EQ(simulation_.run_and_release(third), 6 * 128);
  EXPECT_EQ(simulation_.attach(second, 0).cached, 0);
  // A smaller budget takes effect at the start.
  simulation_.close();
  options.disk_bytes = one_prompt;
  ASSERT_TRUE(simulation_.open(options));
  EXPECT_LE(simulation_.cache().stats().disk_bytes, one_prompt);
  simulation_.cache().flush();
  int64_t on_disk_now = 0;
  for (const auto& entry : fs::directory_iterator(dir_.path())) on_disk_now += static_cast<int64_t>(entry.file_size());
  EXPECT_EQ(on_disk_now, simulation_.cache().stats().disk_bytes);
}

TEST_F(DiskTest, AFullQueueDropsAndCounts) {
  auto options = on_disk(dir_.path());
  options.disk_queue_bytes = 1;  // one blob at a time
  Simulation large(simulated_spec(), 300);
  ASSERT_TRUE(large.open(options));
  const auto prompt = random_tokens(256 * 128 + 1, 4);
  large.run_and_release(prompt);
  large.cache().flush();
  EXPECT_GT(large.cache().stats().dropped_writes, 0u);
  ASSERT_TRUE(large.open(options));
  EXPECT_EQ(large.cache().stats().dropped_blobs, 0u);
  large.attach(prompt, 0);  // checks the bytes of whatever is there
}

TEST_F(DiskTest, WhatIsQueuedCanBeReadBeforeItIsWritten) {
  DiskTier::Files found;
  const PageKey model = root_key("m");
  auto tier = DiskTier::open({dir_.path(), kPlenty, kPlenty, model, 1000, 1000}, found);
  ASSERT_TRUE(tier);
  for (int i = 0; i < 200; ++i) {
    BlobHeader header{BlobKind::kPage, model, model, {i}, 1000};
    Blob payload(1000);
    std::ranges::fill(payload.bytes(), static_cast<std::byte>(i));
    ASSERT_TRUE((*tier)->put(header, std::move(payload)));
    const auto back = (*tier)->read(header);
    ASSERT_TRUE(back);
    EXPECT_EQ(back->bytes().back(), static_cast<std::byte>(i));
  }
  (*tier)->clear();  // some of them half-way
  (*tier)->flush();
  EXPECT_TRUE(files_in(dir_.path(), ".page").empty());
  EXPECT_EQ((*tier)->stats().bytes, 0);
}

TEST_F(DiskTest, KillNineLeavesNothingWrongBehind) {
  const auto prompt_of = [](int i) { return random_tokens(128 * (1 + i % 5) + 1, static_cast<unsigned>(100 + i)); };
  constexpr int kPrompts = 40;
  int attached = 0;
  for (int round = 0; round < 6; ++round) {
    std::array<int, 2> progress{};
    ASSERT_EQ(::pipe(progress.data()), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // Writes, clears and writes again until it is killed.
      Simulation writer(simulated_spec(), 40);
      if (!writer.open(on_disk(dir_.path()))) ::_exit(1);
      for (int i = 0;; ++i) {
        writer.run_and_release(prompt_of((7 * round + i) % kPrompts));
        if (i % 25 == 24) writer.cache().clear();
        if (::write(progress[1], "p", 1) != 1) ::_exit(1);
      }
    }
    ::close(progress[1]);
    // Killed in the middle of whatever it does after so many prompts.
    char byte = 0;
    for (int prompt = 0; prompt < 3 + 11 * round; ++prompt) ASSERT_EQ(::read(progress[0], &byte, 1), 1);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    ::close(progress[0]);

    ASSERT_TRUE(simulation_.open(on_disk(dir_.path())));
    EXPECT_TRUE(files_in(dir_.path(), ".tmp").empty());
    EXPECT_EQ(simulation_.cache().stats().dropped_blobs, 0u);
    for (int i = 0; i < kPrompts; ++i) {
      Held held = simulation_.attach(prompt_of(i), i % 3);  // checks every byte
      attached += held.cached;
      simulation_.release(held);
    }
    EXPECT_EQ(simulation_.cache().stats().dropped_blobs, 0u);
    simulation_.close();
  }
  EXPECT_GT(attached, 0);
}

}  // namespace
}  // namespace onelane
