#include "cli/step_profile.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>

#include <unistd.h>

#include "base/format.h"
#include "base/mapped_file.h"
#include "base/program.h"
#include "cli/runtime.h"
#include "lane/command.h"

namespace onelane {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "Kernel Name";
constexpr const char* kTime = "gpu__time_duration.sum";
constexpr const char* kSmActive = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed";
constexpr const char* kIssueActive = "smsp__issue_active.avg.pct_of_peak_sustained_active";
constexpr const char* kTensorActive = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed";
constexpr const char* kMemoryRead = "dram__bytes_read.sum.pct_of_peak_sustained_elapsed";
constexpr double kTimeoutS = 3600;  // every kernel runs several times

Error corrupt(std::string message) { return {ErrorCode::kCorrupt, "ncu: " + std::move(message)}; }

// The fields of a line of CSV, quotes taken off; ncu doubles none.
std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

// "1,234.5" is one.
std::optional<double> number(std::string text) {
  std::erase(text, ',');
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || rest != end) return std::nullopt;
  return value;
}

// Both together, in `all`.
void add(KernelCounters& all, const KernelCounters& more) {
  const double share = more.us > 0 ? more.us / (all.us + more.us) : 0;  // of the time of both
  all.calls += more.calls;
  all.us += more.us;
  for (const auto counter : {&KernelCounters::sm_active, &KernelCounters::issue_active, &KernelCounters::tensor_active,
                             &KernelCounters::memory_read}) {
    all.*counter += share * (more.*counter - all.*counter);
  }
}

Result<std::string> find_ncu() {
  std::string tried = "/usr/local/cuda/bin";
  const char* path = std::getenv("PATH");
  std::stringstream folders(format("{}:{}", path == nullptr ? "" : path, tried));
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path file = fs::path(folder) / "ncu";
    if (!folder.empty() && ::access(file.c_str(), X_OK) == 0) return file.string();
  }
  return Error{ErrorCode::kNotFound, "--profile: no ncu (Nsight Compute) in PATH or in " + tried};
}

Result<void> profile() {
  ONELANE_ASSIGN(const std::string ncu, find_ncu());
  const std::vector<std::string> words = program_arguments();
  std::string metrics;
  for (const std::string& metric : profile_metrics()) {
    if (!metrics.empty()) metrics += ',';
    metrics += metric;
  }
  std::string command = format(
      "{} --csv --page raw --print-units base --print-kernel-base function --profile-from-start off "
      "--clock-control none --metrics {} {}",
      shell_quoted(ncu), metrics, shell_quoted(program_path()));
  for (size_t i = 1; i < words.size(); ++i) {
    command += ' ';
    command += shell_quoted(words[i] == "--profile" ? "--profiled" : words[i]);
  }
  const fs::path log = fs::temp_directory_path() / format("onelane-profile-{}.log", ::getpid());
  std::cerr << "under " << ncu << " ...\n";
  const auto end = run_command(command, log.string(), kTimeoutS);
  if (!end) return end.error();
  if (end->exit_code != 0) {
    return Error{ErrorCode::kIo, format("{} ended with {}: {} (all of it is in {})", ncu, end->exit_code,
                                        last_line(log.string()), log.string())};
  }
  ONELANE_ASSIGN(const std::string text, read_file(log.string()));
  ONELANE_ASSIGN(const auto kernels, parse_profile(text));
  fs::remove(log);
  std::cout << profile_table(kernels) << std::flush;
  return {};
}

}  // namespace

std::vector<std::string> profile_metrics() { return {kTime, kSmActive, kIssueActive, kTensorActive, kMemoryRead}; }

Result<std::vector<KernelCounters>> parse_profile(std::string_view text) {
  std::map<std::string, size_t> columns;
  std::map<std::string, KernelCounters> by_name;
  std::stringstream lines{std::string(text)};
  int line_number = 0;  // from the header on
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() != '"') continue;
    const std::vector<std::string> fields = fields_of(line);
    if (columns.empty()) {
      for (size_t i = 0; i < fields.size(); ++i) columns[fields[i]] = i;
      for (const std::string& wanted : profile_metrics()) {
        if (!columns.contains(wanted)) return corrupt("no column " + wanted);
      }
      if (!columns.contains(kName)) return corrupt(format("no column {}", kName));
      continue;
    }
    if (++line_number == 1) continue;  // units
    const auto field = [&](const char* column) {
      const size_t at = columns.at(column);
      return at < fields.size() ? fields[at] : std::string();
    };
    std::vector<double> values;
    for (const std::string& metric : profile_metrics()) {
      const auto value = number(field(metric.c_str()));
      if (!value) return corrupt(format("{} of {} is '{}'", metric, field(kName), field(metric.c_str())));
      values.push_back(*value);
    }
    const std::string name = field(kName);
    add(by_name.try_emplace(name, KernelCounters{.name = name}).first->second, {.calls = 1,
                                                                                .us = values[0] / 1e3,
                                                                                .sm_active = values[1] / 100,
                                                                                .issue_active = values[2] / 100,
                                                                                .tensor_active = values[3] / 100,
                                                                                .memory_read = values[4] / 100});
  }
  if (by_name.empty()) return corrupt("no kernel was watched");
  std::vector<KernelCounters> kernels;
  for (const auto& [name, kernel] : by_name) kernels.push_back(kernel);
  std::stable_sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) { return a.us > b.us; });
  return kernels;
}

std::string profile_table(const std::vector<KernelCounters>& kernels) {
  KernelCounters all{.name = "all"};
  for (const KernelCounters& kernel : kernels) add(all, kernel);
  std::string text = format("{:<28} {:>6} {:>11} {:>10} {:>8} {:>8} {:>12}\n", "kernel", "calls", "us alone",
                            "SM active", "issuing", "tensor", "memory read");
  const auto line = [&](const KernelCounters& kernel) {
    text += format("{:<28} {:>6} {:>11.1f} {:>10.2f} {:>8.2f} {:>8.2f} {:>12.2f}\n", kernel.name, kernel.calls,
                   kernel.us, kernel.sm_active, kernel.issue_active, kernel.tensor_active, kernel.memory_read);
  };
  for (const KernelCounters& kernel : kernels) line(kernel);
  line(all);
  return text;
}

int run_profile() {
  const auto done = profile();
  return done ? 0 : fail(done.error());
}

}  // namespace onelane
