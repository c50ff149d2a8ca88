// PrefixCache::Tiers: the prefix tree's blobs on their way between the pool, host memory and disk.
#pragma once

#include <optional>

#include "cache/disk_tier.h"
#include "cache/prefix_cache.h"
#include "cache/prefix_tree.h"

namespace onelane {

class PrefixCache::Tiers {
 public:
  Tiers(KvStore& store, PagePool& pool, PrefixCacheOptions options);
  ~Tiers();

  // Once, before anything else.
  Result<void> open_disk();
  PrefixHit attach(std::span<const int32_t> tokens, int slot);
  int next_checkpoint(std::span<const int32_t> tokens, int from) const;
  void insert(std::span<const int32_t> tokens, std::span<const int> pages);
  void checkpoint(std::span<const int32_t> tokens, int slot);
  int reclaim(int pages);
  void clear();
  void flush();
  PrefixCacheStats stats() const;

 private:
  using Path = std::span<PrefixNode* const>;

  // Attaches exactly `path`; nothing when a part of it cannot be had or there is no room.
  std::optional<PrefixHit> restore(Path path, int slot);
  bool load_checkpoint(CachedBlob& checkpoint, int slot);
  bool load_page(CachedBlob& page);
  // Takes the bytes out of the host tier or reads them from disk.
  std::optional<Blob> fetch(CachedBlob& blob);

  int evict_pages(int pages);
  void evict_page(CachedBlob& page);
  void trim_checkpoints();
  void move_to_host(CachedBlob& blob);  // which has its bytes and is in no list
  void drop_from_host(CachedBlob& blob);
  void if_gone(CachedBlob& blob);
  void prune();

  void adopt(const DiskTier::Files& found);
  void write_behind(Path path);
  std::optional<Blob> read_from_disk(CachedBlob& blob);
  void touch_disk(Path path);
  void collect_lost();

  void touch(CachedBlob& blob);
  void touch(Path path);
  int unused_pages() const;

  KvStore& store_;
  PagePool& pool_;
  const PrefixCacheOptions options_;
  const size_t state_bytes_;
  PrefixTree tree_;
  BlobList pages_, checkpoints_, host_;  // of fast memory, fast memory, and both kinds in host memory
  std::unique_ptr<DiskTier> disk_;       // null: none
  std::vector<PageKey> emptied_;         // nodes that may hold nothing any more
  uint64_t evicted_pages_ = 0;
  uint64_t restored_pages_ = 0;
};

}  // namespace onelane
