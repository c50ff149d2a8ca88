#include "cache/prefix_cache.h"

#include "base/format.h"
#include "cache/tiers.h"

namespace onelane {

PrefixCache::PrefixCache(std::unique_ptr<Tiers> tiers) : tiers_(std::move(tiers)) {}
PrefixCache::~PrefixCache() = default;

Result<std::unique_ptr<PrefixCache>> PrefixCache::create(KvStore& store, PagePool& pool, PrefixCacheOptions options) {
  if (!options.disk_dir.empty() && (options.disk_bytes <= 0 || options.model_id.empty())) {
    return Error{ErrorCode::kInvalidArgument,
                 format("cache directory {}: needs a positive disk_bytes and a model_id", options.disk_dir)};
  }
  auto tiers = std::make_unique<Tiers>(store, pool, std::move(options));
  ONELANE_TRY(tiers->open_disk());
  return std::unique_ptr<PrefixCache>(new PrefixCache(std::move(tiers)));
}

PrefixHit PrefixCache::attach(std::span<const int32_t> tokens, int slot) { return tiers_->attach(tokens, slot); }

int PrefixCache::next_checkpoint(std::span<const int32_t> tokens, int from) const {
  return tiers_->next_checkpoint(tokens, from);
}

void PrefixCache::insert(std::span<const int32_t> tokens, std::span<const int> pages) { tiers_->insert(tokens, pages); }

void PrefixCache::checkpoint(std::span<const int32_t> tokens, int slot) { tiers_->checkpoint(tokens, slot); }

int PrefixCache::reclaim(int pages) { return tiers_->reclaim(pages); }

void PrefixCache::clear() { tiers_->clear(); }

void PrefixCache::flush() { tiers_->flush(); }

PrefixCacheStats PrefixCache::stats() const { return tiers_->stats(); }

}  // namespace onelane
