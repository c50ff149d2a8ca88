#include "lane/command.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/mapped_file.h"

namespace onelane {
namespace {

using testing::HasSubstr;

std::string log_path() { return testing::TempDir() + "/" + std::to_string(::getpid()) + "_command.log"; }

// A zombie that its new parent has not looked at yet does not.
bool runs(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string stat;
  return std::getline(file, stat) && stat.find(") Z ") == std::string::npos;
}

TEST(Command, ExitCodesAndOutput) {
  const auto end = run_command("echo out; echo err >&2; echo; exit 3", log_path(), 60);
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_EQ(end->exit_code, 3);
  EXPECT_FALSE(end->timed_out);
  EXPECT_EQ(*read_file(log_path()), "out\nerr\n\n");
  EXPECT_EQ(last_line(log_path()), "err");
  EXPECT_EQ(run_command("kill -9 $$", log_path(), 60)->exit_code, 128 + 9);
  EXPECT_EQ(last_line(log_path()), "");
  EXPECT_THAT(run_command("true", "/no/such/folder/log", 60).error().message, HasSubstr("/no/such/folder/log"));
}

TEST(Command, ATimeoutEndsTheChildrenToo) {
  const auto end = run_command("sleep 1000 & echo $!; wait", log_path(), 0.2);
  ASSERT_TRUE(end);
  EXPECT_TRUE(end->timed_out);
  const auto child = static_cast<pid_t>(std::stol(last_line(log_path())));
  // It was told to end with its group; it may take a moment.
  for (int i = 0; i < 500 && runs(child); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(runs(child));
}

TEST(Command, AnInterruptEndsIt) {
  const std::string log = log_path();
  std::filesystem::remove(log);
  // The command's own first act makes the log; by then signals wait to be read.
  std::jthread interrupt([log, self = ::pthread_self()] {
    while (!std::filesystem::exists(log)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::pthread_kill(self, SIGTERM);
  });
  EXPECT_THAT(run_command("sleep 1000", log, 60).error().message, HasSubstr("interrupted"));
}

TEST(Command, ValuesAreOneWordEach) {
  EXPECT_EQ(fill_command("x {a} {b} {c} {", {{"a", "it's"}, {"b", "$(rm)"}}), "x 'it'\\''s' '$(rm)' {c} {");
  const auto end = run_command(fill_command("printf %s {a}", {{"a", "two  words '\" $HOME"}}), log_path(), 60);
  ASSERT_TRUE(end);
  EXPECT_EQ(*read_file(log_path()), "two  words '\" $HOME");
}

}  // namespace
}  // namespace onelane
