#include "grammar/xgrammar_hooks.h"

#include <algorithm>
#include <ctime>

#include "base/check.h"
#include "base/format.h"

namespace onelane {
namespace {

constexpr size_t kMostWarnings = 4;
constexpr int kCheckpointsPerLook = 256;  // a checkpoint stands for a microsecond or less, mostly

thread_local XgrammarWarnings* collector = nullptr;
thread_local XgrammarBudget* budget = nullptr;

// What this thread has computed, not how long it waited: a busy machine is no fault of a grammar.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

XgrammarWarnings::XgrammarWarnings() {
  ONELANE_CHECK(collector == nullptr, "one collector of warnings a thread");
  collector = this;
}

XgrammarWarnings::~XgrammarWarnings() { collector = nullptr; }

void XgrammarWarnings::add(std::string text) {
  if (texts_.size() >= kMostWarnings || std::find(texts_.begin(), texts_.end(), text) != texts_.end()) return;
  texts_.push_back(std::move(text));
}

XgrammarBudget::XgrammarBudget(double seconds, const std::atomic<bool>* stop)
    : seconds_(seconds), stop_(stop), left_(kCheckpointsPerLook) {
  ONELANE_CHECK(budget == nullptr, "one budget a thread");
  budget = this;
}

XgrammarBudget::~XgrammarBudget() { budget = nullptr; }

void XgrammarBudget::check() {
  if (--left_ > 0) return;
  left_ = kCheckpointsPerLook;
  // Most masks end before the first look, and pay for no system call.
  const double now = processor_seconds();
  if (end_ == 0) end_ = now + seconds_;
  if (now >= end_) throw XgrammarBudgetSpent(format("more than {} s of computing", seconds_));
  if (stop_ != nullptr && *stop_) throw XgrammarBudgetSpent("stopped");
}

}  // namespace onelane

// What XGrammar wants defined when built with XGRAMMAR_LOG_CUSTOMIZE, and the function of onelane.patch.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);
void Checkpoint();

void LogFatalImpl(const std::string&, int, const std::string& message) { throw std::runtime_error(message); }

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && onelane::collector != nullptr) onelane::collector->add(message);
}

void Checkpoint() {
  if (onelane::budget != nullptr) onelane::budget->check();
}

}  // namespace xgrammar
