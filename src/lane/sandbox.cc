#include "lane/sandbox.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/format.h"

namespace onelane {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostOutput = size_t{1} << 20;

Error failure(const std::string& what) {
  return {ErrorCode::kIo, fmt::format("sandbox: {}: {}", what, std::strerror(errno))};
}

class ScratchFolder {
 public:
  static Result<ScratchFolder> create() {
    std::string name = (fs::temp_directory_path() / "onelane-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) return failure("no scratch folder");
    return ScratchFolder(std::move(name));
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

struct Pipe {
  std::array<int, 2> ends = {-1, -1};
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  bool open() { return ::pipe2(ends.data(), O_CLOEXEC) == 0; }
  void close_end(size_t end) {
    if (ends[end] >= 0) ::close(std::exchange(ends[end], -1));
  }
};

std::vector<std::string> command_line(const std::string& scratch, const std::string& command) {
  std::vector<std::string> line = {"bwrap",         "--unshare-all", "--die-with-parent",
                                   "--new-session", "--clearenv",    "--ro-bind",
                                   "/usr",          "/usr",          "--proc",
                                   "/proc",         "--dev",         "/dev",
                                   "--tmpfs",       "/tmp"};
  for (const std::string name : {"bin", "lib", "lib64", "sbin"}) {
    std::error_code ignored;
    if (fs::is_symlink("/" + name, ignored)) {
      line.insert(line.end(), {"--symlink", "usr/" + name, "/" + name});
    } else if (fs::exists("/" + name, ignored)) {
      line.insert(line.end(), {"--ro-bind", "/" + name, "/" + name});
    }
  }
  // awk is /etc/alternatives/awk on Debian.
  line.insert(line.end(), {"--ro-bind-try", "/etc/alternatives", "/etc/alternatives", "--bind", scratch, "/scratch",
                           "--chdir", "/scratch", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "LC_ALL", "C"});
  line.insert(line.end(), {"prlimit", "--as=2147483648", "--fsize=16777216", "--core=0", "bash", "-c", command});
  return line;
}

}  // namespace

Result<SandboxRun> run_in_sandbox(const std::map<std::string, std::string>& files, const std::string& command,
                                  double seconds) {
  ONELANE_ASSIGN(const ScratchFolder scratch, ScratchFolder::create());
  for (const auto& [name, text] : files) {
    if (name.empty() || name.find('/') != std::string::npos) {
      return Error{ErrorCode::kInvalidArgument, fmt::format("sandbox: \"{}\" is not a plain file name", name)};
    }
    std::ofstream file(fs::path(scratch.path()) / name, std::ios::binary);
    if (!file.write(text.data(), static_cast<std::streamsize>(text.size())).flush()) return failure(name);
  }

  Pipe output, errors;
  if (!output.open() || !errors.open()) return failure("no pipe");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output.ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, errors.ends[1], STDERR_FILENO);
  std::vector<std::string> line = command_line(scratch.path(), command);
  std::vector<char*> arguments;
  for (std::string& word : line) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = -1;
  const int spawned = ::posix_spawnp(&child, "bwrap", &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (spawned != 0) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("no sandbox: bwrap (Debian package bubblewrap): {}", std::strerror(spawned))};
  }
  output.close_end(1);
  errors.close_end(1);

  SandboxRun run;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::array<std::pair<Pipe*, std::string*>, 2> readers = {{{&output, &run.output}, {&errors, &run.errors}}};
  while (output.ends[0] >= 0 || errors.ends[0] >= 0) {
    const double left = std::chrono::duration<double>(end - std::chrono::steady_clock::now()).count();
    if (left <= 0) {
      // Ends bubblewrap, and with it everything in its namespace of processes.
      run.timed_out = true;
      ::kill(child, SIGKILL);
      break;
    }
    std::array<pollfd, 2> ready{};
    for (size_t i = 0; i < 2; ++i) ready[i] = {.fd = readers[i].first->ends[0], .events = POLLIN, .revents = 0};
    if (::poll(ready.data(), ready.size(), static_cast<int>(left * 1000) + 1) < 0 && errno != EINTR) break;
    for (size_t i = 0; i < 2; ++i) {
      if (ready[i].fd < 0 || ready[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = ::read(ready[i].fd, buffer, sizeof(buffer));
      if (got <= 0) {
        readers[i].first->close_end(0);
      } else if (std::string& text = *readers[i].second; text.size() < kMostOutput) {
        text.append(buffer, std::min(static_cast<size_t>(got), kMostOutput - text.size()));
      }
    }
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (!run.timed_out && run.exit_code != 0 && run.errors.starts_with("bwrap: ")) {
    return Error{ErrorCode::kUnsupported, fmt::format("no sandbox: {}", run.errors)};
  }
  return run;
}

}  // namespace onelane
