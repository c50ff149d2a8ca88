#include "api/process_stats.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include <unistd.h>

namespace onelane {
namespace {

std::string read_file(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The value of "name: value" or "name value" on a line of its own.
double line_value(const std::string& text, const std::string& name) {
  const size_t at = text.find("\n" + name);
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + 1 + name.size(), nullptr);
}

double start_seconds() {
  const std::string stat = read_file("/proc/self/stat");
  const size_t name_end = stat.rfind(')');  // the program's name may hold spaces
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  // starttime is the 22nd field, the one behind the name the third: proc(5).
  for (int i = 3; i <= 22; ++i) fields >> field;
  const double boot = line_value(read_file("/proc/stat"), "btime ");
  return boot + std::strtod(field.c_str(), nullptr) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

ProcessStats read_process_stats() {
  static const double start = start_seconds();
  const std::string status = read_file("/proc/self/status");
  ProcessStats stats{.resident_bytes = line_value(status, "VmRSS:") * 1024,
                     .threads = line_value(status, "Threads:"),
                     .start_seconds = start};
  std::error_code ignored;
  for (std::filesystem::directory_iterator at("/proc/self/fd", ignored), end; !ignored && at != end;
       at.increment(ignored)) {
    ++stats.open_files;
  }
  stats.open_files -= stats.open_files > 0;  // the one that this loop held
  return stats;
}

}  // namespace onelane
