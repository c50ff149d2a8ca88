// What XGrammar calls back while it works for this thread: its log, and the parser's checkpoint.
//
// The log is kept from stderr, because it quotes what users sent; its warnings say what was ignored in a grammar. The
// checkpoint ends work that takes too long: neither compiling nor a mask has a bound of its own.
#pragma once

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace onelane {

// Collects the warnings of this thread while it lives; those of a thread without one are dropped. One at a time.
class XgrammarWarnings {
 public:
  XgrammarWarnings();
  ~XgrammarWarnings();
  XgrammarWarnings(const XgrammarWarnings&) = delete;
  XgrammarWarnings& operator=(const XgrammarWarnings&) = delete;

  void add(std::string text);  // once each, and a few at most
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

struct XgrammarBudgetSpent : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// While it lives, XGrammar's parser throws XgrammarBudgetSpent in this thread once the thread has computed for
// `seconds`, or `stop` (which may be null) is set. What was being built or asked is unusable then. One at a time.
class XgrammarBudget {
 public:
  explicit XgrammarBudget(double seconds, const std::atomic<bool>* stop = nullptr);
  ~XgrammarBudget();
  XgrammarBudget(const XgrammarBudget&) = delete;
  XgrammarBudget& operator=(const XgrammarBudget&) = delete;

  void check();  // at every checkpoint; looks at the clock now and then

 private:
  const double seconds_;
  const std::atomic<bool>* stop_;
  double end_ = 0;  // 0: the clock has not been looked at
  int left_;        // checkpoints before it is
};

}  // namespace onelane
