#include "lane/command.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/format.h"
#include "base/mapped_file.h"

namespace onelane {
namespace {

constexpr double kGraceSeconds = 10;

// SIGINT and SIGTERM as a file descriptor, for as long as this lives.
class Interrupts {
 public:
  Interrupts() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  }
  ~Interrupts() {
    ::close(fd_);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  int fd() const { return fd_; }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_;
  int fd_ = -1;
};

enum class Wait { kEnded, kTimeout, kInterrupted };

Wait wait_for(int process, int interrupts, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(std::min(seconds, 1e8));
  while (true) {
    const double left = std::chrono::duration<double>(end - Clock::now()).count();
    if (left <= 0) return Wait::kTimeout;
    std::array<pollfd, 2> ready = {pollfd{process, POLLIN, 0}, pollfd{interrupts, POLLIN, 0}};
    const int count = ::poll(ready.data(), ready.size(), static_cast<int>(std::min(left * 1000 + 1, 1e6)));
    if (count > 0 && ready[0].revents != 0) return Wait::kEnded;
    if (count > 0) {
      signalfd_siginfo taken;
      if (::read(interrupts, &taken, sizeof(taken)) == sizeof(taken)) return Wait::kInterrupted;
    }
  }
}

}  // namespace

Result<CommandEnd> run_command(const std::string& command, const std::string& log, double timeout_s) {
  const Interrupts interrupts;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  // A group of its own, so that what it starts ends with it.
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setsigmask(&attributes, &interrupts.before());
  std::string shell = "/bin/sh", flag = "-c", text = command;
  std::array<char*, 4> arguments = {shell.data(), flag.data(), text.data(), nullptr};
  pid_t child = -1;
  const int spawned = ::posix_spawn(&child, shell.c_str(), &actions, &attributes, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (spawned != 0) return Error{ErrorCode::kIo, format("{}: {}", log, std::strerror(spawned))};

  // Not pidfd_open(): Debian 12's header declares it for C alone.
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  ONELANE_CHECK(process >= 0, "no descriptor for a child that was not waited for");
  CommandEnd end;
  const Wait first = wait_for(process, interrupts.fd(), timeout_s);
  if (first != Wait::kEnded) {
    ::kill(-child, SIGTERM);
    if (wait_for(process, interrupts.fd(), kGraceSeconds) != Wait::kEnded) ::kill(-child, SIGKILL);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  ::close(process);
  if (first == Wait::kInterrupted) return Error{ErrorCode::kIo, format("interrupted while this ran: {}", command)};
  end.timed_out = first == Wait::kTimeout;
  end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return end;
}

std::string fill_command(const std::string& text, const std::map<std::string, std::string>& values) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t close = text[at] == '{' ? text.find('}', at) : std::string::npos;
    const auto value = close == std::string::npos ? values.end() : values.find(text.substr(at + 1, close - at - 1));
    if (value == values.end()) {
      out += text[at++];
    } else {
      out += shell_quoted(value->second);
      at = close + 1;
    }
  }
  return out;
}

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string last_line(const std::string& log) {
  const auto text = read_file(log);
  if (!text) return "";
  const size_t end = text->find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return "";
  const size_t begin = text->rfind('\n', end) + 1;  // npos + 1 is the beginning
  return text->substr(begin, std::min<size_t>(end + 1 - begin, 200));
}

}  // namespace onelane
