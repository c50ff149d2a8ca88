#include "cache/prefix_cache.h"

#include "cache/tiers.h"

namespace onelane {

PrefixCache::PrefixCache(std::unique_ptr<Tiers> tiers) : tiers_(std::move(tiers)) {}
PrefixCache::~PrefixCache() = default;

Result<std::unique_ptr<PrefixCache>> PrefixCache::create(KvStore& store, PagePool& pool, PrefixCacheOptions options) {
  auto tiers = std::make_unique<Tiers>(store, pool, std::move(options));
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

void PrefixCache::flush() {}

PrefixCacheStats PrefixCache::stats() const { return tiers_->stats(); }

}  // namespace onelane
