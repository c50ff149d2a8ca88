// What the stages of the CPU kernels share: the team of threads, scratch memory that grows and stays, RoPE angles.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/thread_team.h"
#include "device/buffer.h"
#include "kernels/kernels.h"
#include "kernels/rope.h"

namespace onelane::cpu {

inline size_t offset(int64_t row, int64_t width) { return static_cast<size_t>(row * width); }

// Rows of float scratch are padded to a multiple of this (the widest vector of any target), so that a full load at the
// end of a row stays inside the row.
inline constexpr int kPad = 16;
inline int padded(int width) { return (width + kPad - 1) / kPad * kPad; }

class Context {
 public:
  explicit Context(int threads) : team_(threads) {}

  int threads() const { return team_.size(); }

  // Scratch number `slot`, at least `count` values, contents undefined. Valid until the slot's next request. Stages run
  // one after another, so they share the slots; inside a stage a slot has one use.
  template <class T>
  T* scratch(size_t slot, size_t count) {
    ONELANE_CHECK(slot < slots_.size(), "no such scratch slot");
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    if (slots_[slot].size() < bytes) slots_[slot] = Buffer(std::max(bytes, slots_[slot].size() * 2));
    return reinterpret_cast<T*>(slots_[slot].data());
  }

  // Calls body(share, begin, end) for static shares of [0, count), whole multiples of `grain`; `share` < threads(), for
  // scratch of its own. `work` estimates the whole in multiply-adds: a small job is done by the caller, because waking
  // the team costs more. Nothing that the body computes may depend on its share.
  template <class Body>
  void parallel(int64_t count, int64_t grain, int64_t work, Body&& body) {
    if (count <= 0) return;
    const int64_t shares = team_.size();
    if (shares == 1 || work < kWorthATeam || count <= grain) return body(0, int64_t{0}, count);
    const int64_t grains = (count + grain - 1) / grain;
    team_.run([&](int share) {
      const int64_t begin = std::min(count, grains * share / shares * grain);
      const int64_t end = std::min(count, grains * (share + 1) / shares * grain);
      if (begin < end) body(share, begin, end);
    });
  }

  // Calls body(share, i) for every i in [0, count), one by one, by whichever thread is free: for items of which each
  // fills one thread's caches, or that differ in length. `work` and `share` as above.
  template <class Body>
  void take(int64_t count, int64_t work, Body&& body) {
    std::atomic<int64_t> next{0};
    parallel(threads(), 1, work, [&](int share, int64_t, int64_t) {
      for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(share, i);
    });
  }
  // Whether threads that take `count` items of up to `largest` rows, `rows` in all, are idle for no more than a quarter
  // of their time.
  bool worth_taking(int64_t count, int64_t largest, int64_t rows) const {
    const int64_t most_taken = (count + threads() - 1) / threads() * largest;
    return 4 * most_taken * threads() <= 5 * rows;
  }

  // Angles of the step's rows by `table`, [rows.count]. Valid until the next call. Cosines in double cost more than the
  // rest of a row's attention, and every layer asks for the same positions: kept by position.
  const RopeAngles* row_angles(const RopeFrequencies& table, const StepRows& rows);
  // Angles of one position.
  RopeAngles angles(const RopeFrequencies& table, int position) { return cached(table_entry(table), position); }

 private:
  static constexpr int64_t kWorthATeam = 25'000;  // about 2 us of one core
  static constexpr size_t kCachedPositions = 2048;

  struct CachedTable {
    RopeFrequencies table;
    std::vector<int32_t> position;  // [kCachedPositions], -1 = empty
    std::vector<RopeAngles> angles;
  };
  CachedTable& table_entry(const RopeFrequencies& table);
  static const RopeAngles& cached(CachedTable& entry, int position);

  ThreadTeam team_;
  std::array<Buffer, 24> slots_;
  std::vector<CachedTable> tables_;
  std::vector<RopeAngles> row_angles_;
};

}  // namespace onelane::cpu
