#include "machine.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <boost/context/fiber.hpp>
#include <sys/mman.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace onelane::emulator {
namespace {

constexpr size_t kStackBytes = 128 * 1024;
constexpr size_t kArenaBytes = size_t{1} << 18;
constexpr uint32_t kVariable = 0x80000000u;
constexpr int kBlockBarriers = 16;

// Stacks, and the shared memory of blocks, stay for the next kernel.
class Pool {
 public:
  explicit Pool(size_t bytes) : bytes_(bytes) {}
  std::byte* take() {
    if (free_.empty()) {
      void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (data == MAP_FAILED) fail("no memory");
      return static_cast<std::byte*>(data);
    }
    std::byte* data = free_.back();
    free_.pop_back();
    return data;
  }
  void give(std::byte* data) { free_.push_back(data); }

 private:
  size_t bytes_;
  std::vector<std::byte*> free_;
};
Pool& stacks() {
  static Pool pool(kStackBytes);
  return pool;
}
Pool& arenas() {
  static Pool pool(kArenaBytes);
  return pool;
}
struct PooledStack {
  boost::context::stack_context allocate() {
    // Not all of them at one place of a page: in the cache they would be in each other's way.
    static size_t lower = 0;
    lower = (lower + 17 * 64) % 8192;
    boost::context::stack_context context;
    context.size = kStackBytes - lower;
    context.sp = stacks().take() + context.size;
    return context;
  }
  void deallocate(boost::context::stack_context& context) {
    stacks().give(static_cast<std::byte*>(context.sp) - context.size);
  }
};

struct Thread;

// Threads that have come to one place, and what each brought.
struct Meeting {
  uint32_t mask = 0;  // of lanes; of a warpgroup all
  Together together = nullptr;
  int arrived = 0;
  std::vector<void*> brought;
  std::vector<Thread*> waiting;
};

struct Copy {
  enum Kind { kCopy, kCommit, kArrive } kind;
  std::byte* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  uint32_t barrier = 0;
};

struct Block;

struct Thread {
  uint3 place;
  Block* block;
  int index, lane;
  bool ended = false;
  const char* waits_for = "its turn";
  boost::context::fiber self, machine;
  std::deque<Copy> copies;
  int cluster_phase = 0;
  int products_committed = 0;
};

struct Warp {
  std::vector<Meeting> meetings;
  uint32_t lanes = 0;  // that have not ended
};

struct Warpgroup {
  Meeting meeting;
  struct Product {
    int group;
    std::function<void()> make;
  };
  std::deque<Product> products;
};

struct MBarrier {
  int arrivals = 0, pending = 0;
  int64_t bytes = 0;
  uint32_t phase = 0;
  std::vector<Thread*> waiting;
};

struct BlockBarrier {
  int threads = 0, arrived = 0;
  std::vector<Thread*> waiting;
};

struct Block {
  uint3 place;
  int rank, cluster;
  std::byte* arena = nullptr;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  BlockBarrier barriers[kBlockBarriers];
  std::map<uint32_t, MBarrier> mbarriers;
  int alive = 0;
};

// A bulk copy or a store into another block.
struct Bulk {
  Block* block;  // of the barrier
  std::byte* to;
  size_t bytes;
  uint32_t barrier;
  const void* from = nullptr;  // null: `value`
  std::byte value[16] = {};
};

struct Settings {
  bool lazy = false, random = false;
  std::mt19937 generator;

  Settings() {
    const char* text = std::getenv("ONELANE_EMULATOR");
    if (text == nullptr || std::string(text) == "eager") return;
    lazy = true;
    if (std::string(text) == "lazy") return;
    char* end;
    generator.seed(static_cast<uint32_t>(std::strtoul(text, &end, 10)));
    random = true;
    if (*end != '\0') fail("ONELANE_EMULATOR is eager, lazy or a number, not %s", text);
  }
};
Settings& settings() {
  static Settings of_process;
  return of_process;
}

class Machine {
 public:
  void run(const Launch& launch, const std::function<void()>& kernel) {
    launch_ = &launch;
    blockDim = launch.block;
    gridDim = launch.grid;
    kernel_ = &kernel;
    const int blocks = static_cast<int>(launch.grid.x * launch.grid.y * launch.grid.z);
    if (launch.shared_bytes > kMostShared) fail("%zu bytes of shared memory", launch.shared_bytes);
    if (launch.grid.x % launch.cluster != 0)
      fail("a grid of %u blocks in clusters of %d", launch.grid.x, launch.cluster);
    for (int first = 0; first < blocks; first += launch.cluster) run_cluster(first);
  }

  Thread* thread = nullptr;

  void wait(std::vector<Thread*>& waiting, const char* what) {
    waiting.push_back(thread);
    thread->waits_for = what;
    Thread* const self = thread;
    self->machine = std::move(self->machine).resume();
  }
  void wake(std::vector<Thread*>& waiting) {
    ready_.insert(ready_.end(), waiting.begin(), waiting.end());
    waiting.clear();
  }

  Block& block_of(uint32_t address) {
    const uint32_t rank = address >> 24 & 0x7f;
    if (rank == 0) return *thread->block;
    if (rank > blocks_.size()) fail("an address in block %u of a cluster of %zu", rank - 1, blocks_.size());
    return blocks_[rank - 1];
  }

  void meet(Meeting& meeting, int index, int expected, void* mine, Together together) {
    if (meeting.arrived > 0 && meeting.together != together) fail("lanes of a warp are at different instructions");
    meeting.together = together;
    meeting.brought[static_cast<size_t>(index)] = mine;
    if (++meeting.arrived < expected) return wait(meeting.waiting, "the rest of its warp");
    complete(meeting);
  }
  void complete(Meeting& meeting) {
    if (meeting.together != nullptr) meeting.together(meeting.brought.data());
    meeting.arrived = 0;
    std::fill(meeting.brought.begin(), meeting.brought.end(), nullptr);
    wake(meeting.waiting);
  }

  void arrive(BlockBarrier& barrier) {
    if (barrier.arrived < barrier.threads) return;
    barrier.arrived = 0;
    wake(barrier.waiting);
  }

  MBarrier& mbarrier(Block& block, uint32_t address) {
    const auto found = block.mbarriers.find(address & (kArenaBytes - 1));
    if (found == block.mbarriers.end()) fail("a barrier at %#x that was not initialised", address);
    return found->second;
  }
  void progress(MBarrier& barrier) {
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    barrier.phase ^= 1;
    barrier.pending = barrier.arrivals;
    wake(barrier.waiting);
  }

  // Does what a thread's oldest copy, or mark among copies, says.
  void advance(Thread& of) {
    const Copy copy = of.copies.front();
    of.copies.pop_front();
    if (copy.kind == Copy::kCopy) std::memcpy(copy.to, copy.from, copy.bytes);
    if (copy.kind == Copy::kArrive) {
      MBarrier& barrier = mbarrier(*of.block, copy.barrier);
      --barrier.pending;
      progress(barrier);
    }
  }
  void copy(const Copy& what) {
    thread->copies.push_back(what);
    if (!settings().lazy) advance(*thread);
  }
  void bulk(const Bulk& what) {
    bulks_.push_back(what);
    if (!settings().lazy) advance_bulk();
  }
  void advance_bulk() {
    const Bulk bulk = bulks_.front();
    bulks_.pop_front();
    std::memcpy(bulk.to, bulk.from == nullptr ? bulk.value : bulk.from, bulk.bytes);
    MBarrier& barrier = mbarrier(*bulk.block, bulk.barrier);
    barrier.bytes -= static_cast<int64_t>(bulk.bytes);
    progress(barrier);
  }

  int cluster_arrived = 0, cluster_phase = 0, alive = 0;
  std::vector<Thread*> cluster_waiting;
  void progress_cluster() {
    if (cluster_arrived == 0 || cluster_arrived < alive) return;
    cluster_arrived = 0;
    ++cluster_phase;
    wake(cluster_waiting);
  }

  const Launch& launch() const { return *launch_; }

 private:
  void run_cluster(int first) {
    const auto threads = static_cast<int>(launch_->block.x * launch_->block.y * launch_->block.z);
    blocks_.clear();
    blocks_.resize(static_cast<size_t>(launch_->cluster));
    bulks_.clear();
    cluster_arrived = cluster_phase = 0;
    alive = threads * launch_->cluster;
    for (int rank = 0; rank < launch_->cluster; ++rank) {
      begin(blocks_[static_cast<size_t>(rank)], first + rank, rank, first / launch_->cluster, threads);
    }
    while (alive > 0) {
      if (ready_.empty()) {
        if (!advance_any()) fail_waiting();
        continue;
      }
      resume(next());
    }
    for (Block& block : blocks_) arenas().give(block.arena);
  }

  static uint3 place_of(unsigned index, const dim3& of) {
    return {index % of.x, index / of.x % of.y, index / of.x / of.y};
  }
  void begin(Block& block, int index, int rank, int cluster, int threads) {
    block.arena = arenas().take();
    std::memset(block.arena, 0xff, launch_->shared_bytes);
    block.alive = threads;
    block.warps.resize(static_cast<size_t>(threads + 31) / 32);
    block.warpgroups.resize(static_cast<size_t>(threads + 127) / 128);
    for (Warpgroup& group : block.warpgroups) group.meeting.brought.resize(128);
    const dim3& shape = launch_->block;
    block.place = place_of(static_cast<unsigned>(index), launch_->grid);
    block.rank = rank;
    block.cluster = cluster;
    for (int i = 0; i < threads; ++i) {
      auto made = std::make_unique<Thread>();
      made->place = place_of(static_cast<unsigned>(i), shape);
      made->block = &block;
      made->index = i;
      made->lane = i % 32;
      Warp& warp = block.warps[static_cast<size_t>(i / 32)];
      warp.lanes |= 1u << (i % 32);
      Thread* const self = made.get();
      made->self = boost::context::fiber(std::allocator_arg, PooledStack(), [this, self](boost::context::fiber&& from) {
        self->machine = std::move(from);
        (*kernel_)();
        end(*self);
        return std::move(self->machine);
      });
      ready_.push_back(self);
      block.threads.push_back(std::move(made));
    }
  }

  Thread* next() {
    size_t at = 0;
    if (settings().random) at = settings().generator() % ready_.size();
    Thread* const chosen = ready_[at];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(at));
    return chosen;
  }
  void resume(Thread* chosen) {
    thread = chosen;
    threadIdx = chosen->place;
    blockIdx = chosen->block->place;
    thread->self = std::move(thread->self).resume();
  }

  // Barriers no longer wait for a thread that has ended.
  void end(Thread& of) {
    while (!of.copies.empty()) advance(of);
    of.ended = true;
    Block& block = *of.block;
    --alive;
    --block.alive;
    Warp& warp = block.warps[static_cast<size_t>(of.index / 32)];
    warp.lanes &= ~(1u << of.lane);
    for (Meeting& meeting : warp.meetings) {
      if (meeting.arrived > 0 && meeting.arrived == __builtin_popcount(meeting.mask & warp.lanes)) complete(meeting);
    }
    BlockBarrier& all = block.barriers[0];
    if (all.arrived > 0) {
      all.threads = block.alive;
      arrive(all);
    }
    progress_cluster();
  }

  // What runs beside the threads goes on, some of it.
  bool advance_any() {
    std::vector<Thread*> copying;
    for (Block& block : blocks_) {
      for (const auto& of : block.threads) {
        if (!of->copies.empty()) copying.push_back(of.get());
      }
    }
    if (copying.empty() && bulks_.empty()) return false;
    if (!bulks_.empty() && (copying.empty() || settings().generator() % 2 == 0)) {
      advance_bulk();
    } else {
      advance(*copying[settings().generator() % copying.size()]);
    }
    return true;
  }

  [[noreturn]] void fail_waiting() {
    std::map<std::string, int> waits;
    for (Block& block : blocks_) {
      for (const auto& of : block.threads) {
        if (!of->ended) {
          ++waits["warp " + std::to_string(of->index / 32) + " of block " + std::to_string(block.rank) + ": " +
                  of->waits_for];
        }
      }
    }
    std::string all;
    for (const auto& [what, count] : waits) all += "\n  " + std::to_string(count) + " of " + what;
    fail("all threads wait for what never comes:%s", all.c_str());
  }

  const Launch* launch_ = nullptr;
  const std::function<void()>* kernel_ = nullptr;
  std::vector<Block> blocks_;  // of the cluster
  std::deque<Thread*> ready_;
  std::deque<Bulk> bulks_;
};
Machine machine;

Warpgroup& warpgroup() { return machine.thread->block->warpgroups[static_cast<size_t>(machine.thread->index / 128)]; }

// Products of groups before `group` are made.
void make_products(Warpgroup& of, int group) {
  while (!of.products.empty() && of.products.front().group < group) {
    of.products.front().make();
    of.products.pop_front();
  }
}

}  // namespace

void fail(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::fputs("emulator: ", stderr);
  std::vfprintf(stderr, format, arguments);
  if (machine.thread != nullptr) {
    std::fprintf(stderr, " (thread %d of block %u, %u)", machine.thread->index, blockIdx.x, blockIdx.y);
  }
  std::fputs("\n", stderr);
  va_end(arguments);
  std::abort();
}

int cluster_index() { return machine.thread->block->cluster; }
int block_rank() { return machine.thread->block->rank; }
void run(const Launch& launch, const std::function<void()>& kernel) {
  machine.run(launch, kernel);
  machine.thread = nullptr;
}

std::byte* dynamic_shared() { return machine.thread->block->arena; }
// Of a variable: the distance from one of the library's own. It fits 31 bits, as all of a library does.
static std::byte anchor;
uint32_t shared_address(const void* p) {
  const auto* at = static_cast<const std::byte*>(p);
  const std::byte* arena = machine.thread->block->arena;
  if (at >= arena && at < arena + kArenaBytes) return static_cast<uint32_t>(at - arena);
  return kVariable | (static_cast<uint32_t>(at - &anchor) & ~kVariable);
}
uint32_t address_in_block(uint32_t address, int rank) {
  if ((address & kVariable) != 0) fail("a variable of another block");
  return (address & (kArenaBytes - 1)) | static_cast<uint32_t>(rank + 1) << 24;
}
std::byte* shared(uint32_t address, size_t bytes) {
  if (address % std::min<size_t>(bytes, 16) != 0) fail("%zu bytes of shared memory at %#x", bytes, address);
  if ((address & kVariable) != 0) {
    const auto distance = static_cast<int32_t>(address << 1) >> 1;
    return &anchor + distance;
  }
  const uint32_t at = address & (kArenaBytes - 1);
  if (at + bytes > machine.launch().shared_bytes)
    fail("%zu bytes at %u of shared memory of %zu", bytes, at, machine.launch().shared_bytes);
  return machine.block_of(address).arena + at;
}

void meet_warp(uint32_t mask, void* mine, Together together) {
  Thread& self = *machine.thread;
  if ((mask >> self.lane & 1) == 0) fail("a lane that is not in its mask %#x", mask);
  Warp& warp = self.block->warps[static_cast<size_t>(self.index / 32)];
  auto found =
      std::find_if(warp.meetings.begin(), warp.meetings.end(), [&](const Meeting& of) { return of.mask == mask; });
  if (found == warp.meetings.end()) {
    // Others may wait in theirs: they are not to be moved.
    if (warp.meetings.empty()) warp.meetings.reserve(64);
    if (warp.meetings.size() == 64) fail("more than 64 masks in a warp");
    found = warp.meetings.insert(warp.meetings.end(), Meeting{.mask = mask, .brought = std::vector<void*>(32)});
  }
  machine.meet(*found, self.lane, __builtin_popcount(mask & warp.lanes), mine, together);
}
void meet_warpgroup(void* mine, Together together) {
  Warpgroup& group = warpgroup();
  machine.meet(group.meeting, machine.thread->index % 128, 128, mine, together);
}

void meet_block(int id, int threads) {
  BlockBarrier& barrier = machine.thread->block->barriers[id];
  barrier.threads = threads == 0 ? machine.thread->block->alive : threads;
  if (++barrier.arrived < barrier.threads) return machine.wait(barrier.waiting, "its block");
  machine.arrive(barrier);
}
void arrive_cluster() {
  machine.thread->cluster_phase = machine.cluster_phase;
  ++machine.cluster_arrived;
  machine.progress_cluster();
}
void wait_cluster() {
  while (machine.cluster_phase == machine.thread->cluster_phase) machine.wait(machine.cluster_waiting, "its cluster");
}

void mbarrier_init(uint32_t address, int arrivals) {
  shared(address, 8);
  machine.thread->block->mbarriers[address & (kArenaBytes - 1)] = {.arrivals = arrivals, .pending = arrivals};
}
void mbarrier_arrive(uint32_t address, uint32_t expected_bytes) {
  MBarrier& barrier = machine.mbarrier(machine.block_of(address), address);
  if (barrier.pending == 0) fail("one arrival more than the barrier at %#x expects", address);
  barrier.bytes += expected_bytes;
  --barrier.pending;
  machine.progress(barrier);
}
void mbarrier_wait(uint32_t address, uint32_t parity) {
  MBarrier& barrier = machine.mbarrier(*machine.thread->block, address);
  while (barrier.phase == parity) machine.wait(barrier.waiting, "a barrier in shared memory");
}

void copy_later(uint32_t to, const void* from, size_t bytes) {
  machine.copy({.kind = Copy::kCopy, .to = shared(to, bytes), .from = from, .bytes = bytes});
}
void commit_copies() { machine.copy({.kind = Copy::kCommit}); }
void wait_for_copies(int pending) {
  std::deque<Copy>& copies = machine.thread->copies;
  auto groups = std::count_if(copies.begin(), copies.end(), [](const Copy& of) { return of.kind == Copy::kCommit; });
  while (groups > pending) {
    groups -= copies.front().kind == Copy::kCommit ? 1 : 0;
    machine.advance(*machine.thread);
  }
}
void arrive_after_copies(uint32_t barrier) { machine.copy({.kind = Copy::kArrive, .barrier = barrier}); }
void copy_bulk_later(uint32_t to, const void* from, size_t bytes, uint32_t barrier) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    fail("a bulk copy of %zu bytes from %p", bytes, from);
  machine.bulk({&machine.block_of(barrier), shared(to, bytes), bytes, barrier, from});
}
void store_later(uint32_t to, const void* value, size_t bytes, uint32_t barrier) {
  Bulk bulk = {&machine.block_of(barrier), shared(to, bytes), bytes, barrier};
  std::memcpy(bulk.value, value, bytes);
  machine.bulk(bulk);
}

void product_later(const std::function<void()>& product) {
  Warpgroup& group = warpgroup();
  group.products.push_back({machine.thread->products_committed, product});
  if (!settings().lazy) make_products(group, machine.thread->products_committed + 1);
}
void commit_products() { ++machine.thread->products_committed; }
void wait_for_products(int pending) { make_products(warpgroup(), machine.thread->products_committed - pending); }

}  // namespace onelane::emulator
