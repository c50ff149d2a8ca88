// A device without a device: kernels of the host that do nothing before somebody waits.
//
// Their memory is not the host's to look at, a step's arrays are copied in begin(), everything else is done in order,
// and only as far as it is waited for. So a host that reads too early reads nothing, and one that changes too early
// what it has asked for changes the answer.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/check.h"
#include "kernels/forwarding_kernels.h"

namespace onelane::testing {

class DeferredKernels final : public ForwardingKernels {
 public:
  explicit DeferredKernels(std::unique_ptr<Kernels> inner) : ForwardingKernels(*inner), owned_(std::move(inner)) {}

  std::string_view name() const override { return "deferred"; }
  Memory& memory() override { return memory_; }

  void begin(const StepRows& rows) override {
    step_ = std::make_shared<Copy>(rows);
    begun_ = rows.token;
    queue_.emplace_back([step = step_] { step->resolve(); });
  }
  void finish() override {
    ++calls_.other_waits;
    work(sent_, true);
  }
  uint64_t send(void* to, const void* from, size_t bytes) override {
    queue_.emplace_back([this, to, from, bytes] {
      std::memcpy(to, from, bytes);
      ++copied_;
    });
    return sent_++;
  }
  void wait(uint64_t sent) override {
    ++calls_.waits;
    work(sent, false);
  }
  HostCalls host_calls() const override { return calls_; }

  void embed(const StepRows& rows, const EmbedArgs& args) override { later(rows, &Kernels::embed, args); }
  void mix_streams(const StepRows& rows, const MixArgs& args) override { later(rows, &Kernels::mix_streams, args); }
  void expand_streams(const StepRows& rows, const ExpandArgs& args) override {
    later(rows, &Kernels::expand_streams, args);
  }
  void tap(const StepRows& rows, const TapArgs& args) override { later(rows, &Kernels::tap, args); }
  void project_qkv(const StepRows& rows, const QkvArgs& args) override { later(rows, &Kernels::project_qkv, args); }
  void compress(const StepRows& rows, const CompressArgs& args) override {
    later_with(rows, &Kernels::compress, args, &CompressArgs::index_compressor);
  }
  void index(const StepRows& rows, const IndexArgs& args) override { later(rows, &Kernels::index, args); }
  void attend(const StepRows& rows, const AttendArgs& args) override { later(rows, &Kernels::attend, args); }
  void commit(const StepRows& rows, const CommitArgs& args) override { later(rows, &Kernels::commit, args); }
  void project_out(const StepRows& rows, const ProjectOutArgs& args) override {
    later(rows, &Kernels::project_out, args);
  }
  void route(const StepRows& rows, const RouteArgs& args) override { later(rows, &Kernels::route, args); }
  void experts(const StepRows& rows, const ExpertsArgs& args) override {
    later_with(rows, &Kernels::experts, args, &ExpertsArgs::router);
  }
  void engram(const StepRows& rows, const EngramArgs& args) override { later(rows, &Kernels::engram, args); }
  void head(const StepRows& rows, const HeadArgs& args) override {
    HeadArgs own = args;
    own.rows = step_->rows.logit_row;
    later(rows, &Kernels::head, own);
  }
  void main_input(const StepRows& rows, const MainInputArgs& args) override { later(rows, &Kernels::main_input, args); }
  void markov(const StepRows& rows, const MarkovArgs& args) override { later(rows, &Kernels::markov, args); }
  void choose(const StepRows& rows, const ChooseArgs& args) override { later(rows, &Kernels::choose, args); }
  void address(const StepRows& rows, const AddressArgs& args) override { later(rows, &Kernels::address, args); }
  void verify(const StepRows& rows, const VerifyArgs& args) override { later(rows, &Kernels::verify, args); }

 private:
  class Queued final : public HostMemory {
   public:
    explicit Queued(DeferredKernels& owner) : owner_(owner) {}
    std::byte* allocate(size_t bytes) override {
      ++owner_.calls_.allocations;
      return HostMemory::allocate(bytes);
    }
    void copy(void* to, const void* from, size_t bytes) override {
      owner_.finish();
      HostMemory::copy(to, from, bytes);
    }
    void fill(void* to, int byte, size_t bytes) override {
      owner_.queue_.emplace_back([to, byte, bytes] { std::memset(to, byte, bytes); });
    }
    bool on_host() const override { return false; }

   private:
    DeferredKernels& owner_;
  };

  // A step's arrays as they were in begin().
  struct Copy {
    explicit Copy(const StepRows& from) : rows(from) {
      int slots = 0;
      for (int i = 0; i < from.run_count; ++i) slots = std::max(slots, from.runs[i].slot + 1);
      const auto runs_count = static_cast<size_t>(from.run_count);
      rows.token = own(tokens, from.token, static_cast<size_t>(from.count));
      rows.position = own(positions, from.position, static_cast<size_t>(from.count));
      rows.run_of = own(run_of, from.run_of, static_cast<size_t>(from.count));
      rows.runs = own(runs, from.runs, runs_count);
      rows.page_table =
          own(pages, from.page_table, static_cast<size_t>(slots) * static_cast<size_t>(from.pages_per_slot));
      rows.logit_row = own(logit_rows, from.logit_row, static_cast<size_t>(from.logit_count));
      rows.before = own(before, from.before, runs_count * kHistory);
      rows.moved_by = own(moved_by, from.moved_by, runs_count);
    }
    template <class T>
    static const T* own(std::vector<T>& copy, const T* from, size_t count) {
      if (from == nullptr) return nullptr;
      copy.assign(from, from + count);
      return copy.data();
    }
    void resolve() {
      if (rows.later == nullptr) return;
      for (auto* all : {&tokens, &before}) {
        for (int32_t& token : *all) {
          if (token < 0 && token != kNoToken) token = std::max(0, rows.later[~token]);
        }
      }
      for (size_t run = 0; run < moved_by.size(); ++run) {
        if (moved_by[run] < 0) continue;
        const int32_t by = rows.later[moved_by[run]];
        runs[run].first_position += by;
        for (int i = 0; i < runs[run].count; ++i) positions[static_cast<size_t>(runs[run].first_row + i)] += by;
      }
    }
    StepRows rows;
    std::vector<int32_t> tokens, positions, run_of, pages, logit_rows, before, moved_by;
    std::vector<RowRun> runs;
  };

  void check(const StepRows& rows) const {
    ONELANE_CHECK(rows.token == begun_ && rows.count == step_->rows.count, "a stage of a step that was not begun");
  }
  template <class Args>
  void later(const StepRows& rows, void (Kernels::*stage)(const StepRows&, const Args&), const Args& args) {
    check(rows);
    // Sanitised, g++ 12 takes a plain call through `stage` for a use of something uninitialised.
    queue_.emplace_back([this, step = step_, stage, args] { std::invoke(stage, inner_, step->rows, args); });
  }
  // The same of arguments that may point to others, which the caller need not keep either.
  template <class Args, class Other>
  void later_with(const StepRows& rows, void (Kernels::*stage)(const StepRows&, const Args&), const Args& args,
                  const Other* Args::* other) {
    check(rows);
    std::optional<Other> copy;
    if (args.*other != nullptr) copy = *(args.*other);
    queue_.emplace_back([this, step = step_, stage, own = args, other, copy]() mutable {
      if (copy) own.*other = &*copy;
      std::invoke(stage, inner_, step->rows, own);
    });
  }
  // Does what was asked for: all, or until the copy number `sent` is made.
  void work(uint64_t sent, bool all) {
    while (!queue_.empty() && (all || copied_ <= sent)) {
      const auto next = std::move(queue_.front());
      queue_.pop_front();
      next();
    }
  }

  std::unique_ptr<Kernels> owned_;
  Queued memory_{*this};
  HostCalls calls_;
  std::shared_ptr<Copy> step_;
  const int32_t* begun_ = nullptr;
  std::deque<std::function<void()>> queue_;
  uint64_t sent_ = 0, copied_ = 0;
};

}  // namespace onelane::testing
