#include "cache/tiers.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "cache/slot_state.h"

namespace onelane {

using Place = CachedBlob::Place;

PrefixCache::Tiers::Tiers(KvStore& store, PagePool& pool, PrefixCacheOptions options)
    : store_(store),
      pool_(pool),
      options_(std::move(options)),
      state_bytes_(slot_state_bytes(store)),
      tree_(root_key(options_.model_id)) {
  ONELANE_CHECK(pool.size() == store.pages(), "the pool numbers the store's pages");
}

PrefixCache::Tiers::~Tiers() {
  for (const CachedBlob* blob : pages_.order()) pool_.release(blob->page);
}

// -- looking up

PrefixHit PrefixCache::Tiers::attach(std::span<const int32_t> tokens, int slot) {
  if (tokens.empty()) return {};
  collect_lost();
  const std::vector<PrefixNode*> path = tree_.match(tokens.first(tokens.size() - 1));
  std::optional<PrefixHit> hit;
  for (size_t pages = path.size(); pages > 0 && !hit; --pages) {
    if (path[pages - 1]->checkpoint.exists()) hit = restore(Path(path).first(pages), slot);
  }
  prune();
  return hit ? *std::move(hit) : PrefixHit{};
}

std::optional<PrefixHit> PrefixCache::Tiers::restore(Path path, int slot) {
  int missing = 0;
  for (const PrefixNode* node : path) {
    if (!node->page.exists()) return std::nullopt;
    missing += node->page.place == Place::kFast ? 0 : 1;
  }
  PrefixHit hit;
  const auto hold = [&](const CachedBlob& page) {
    pool_.retain(page.page);
    hit.pages.push_back(page.page);
  };
  const auto give_up = [&] {
    for (const int page : hit.pages) pool_.release(page);
    return std::nullopt;
  };
  // The path's own pages are held before others make room for the missing ones, and are the last the host tier gives
  // up.
  touch(path);
  for (PrefixNode* node : path) {
    if (node->page.place == Place::kFast) hold(node->page);
  }
  if (missing > pool_.free() && missing > pool_.free() + unused_pages()) return give_up();
  if (!load_checkpoint(path.back()->checkpoint, slot)) return give_up();
  if (missing > 0) {
    for (PrefixNode* node : path) {
      if (node->page.place == Place::kFast) continue;
      if (!load_page(node->page)) return give_up();
      hold(node->page);
    }
    hit.pages.clear();  // in the order of the path
    for (const PrefixNode* node : path) hit.pages.push_back(node->page.page);
    touch(path);
  }
  touch_disk(path);
  hit.tokens = static_cast<int>(path.size()) * kPageTokens;
  return hit;
}

bool PrefixCache::Tiers::load_checkpoint(CachedBlob& checkpoint, int slot) {
  if (checkpoint.place != Place::kFast) {
    std::optional<Blob> bytes = fetch(checkpoint);
    if (!bytes) return false;
    checkpoint.bytes = *std::move(bytes);
    checkpoints_.add(checkpoint, Place::kFast);
  }
  load_slot(store_, slot, checkpoint.bytes.bytes());
  trim_checkpoints();
  return true;
}

bool PrefixCache::Tiers::load_page(CachedBlob& page) {
  std::optional<Blob> bytes = fetch(page);
  if (!bytes) return false;
  if (pool_.free() == 0) evict_pages(1);
  const std::optional<int> number = pool_.take();
  if (!number) {  // counted before, but the host tier's room is worth a second look
    page.bytes = *std::move(bytes);
    move_to_host(page);
    return false;
  }
  onelane::load_page(store_, *number, bytes->bytes());
  page.page = *number;
  pages_.add(page, Place::kFast);
  ++restored_pages_;
  return true;
}

std::optional<Blob> PrefixCache::Tiers::fetch(CachedBlob& blob) {
  if (blob.place == Place::kHost) {
    host_.remove(blob);
    return std::move(blob.bytes);
  }
  return read_from_disk(blob);
}

int PrefixCache::Tiers::next_checkpoint(std::span<const int32_t> tokens, int from) const {
  if (tokens.empty()) return 0;
  // Behind the last token an identical prompt could not use it.
  const auto usable = tokens.first(tokens.size() - 1);
  const int last = static_cast<int>(usable.size()) / kPageTokens;
  const std::vector<PrefixNode*> path = tree_.match(usable);
  const auto known = std::ranges::find_if(path, [](const PrefixNode* node) { return !node->page.exists(); });
  const int leaves = static_cast<int>(known - path.begin());
  for (int page = from / kPageTokens + 1; page <= last; ++page) {
    const bool worth =
        page == last || page == leaves || (options_.checkpoint_every > 0 && page % options_.checkpoint_every == 0);
    const bool taken = page <= leaves && path[static_cast<size_t>(page) - 1]->checkpoint.exists();
    if (worth && !taken) return page * kPageTokens;
  }
  return 0;
}

// -- taking in

void PrefixCache::Tiers::insert(std::span<const int32_t> tokens, std::span<const int> pages) {
  collect_lost();
  std::vector<PrefixNode*> path;
  for (const int page : pages) {
    if (tokens.size() < kPageTokens) break;
    PrefixNode* node = tree_.add(path.empty() ? nullptr : path.back(), tokens.first(kPageTokens));
    if (node == nullptr) break;  // two pages with one key: the second stays unknown
    tokens = tokens.subspan(kPageTokens);
    path.push_back(node);
    if (node->page.place == Place::kFast) continue;
    if (node->page.place == Place::kHost) host_.remove(node->page);
    node->page.bytes = Blob();
    pool_.retain(page);
    node->page.page = page;
    pages_.add(node->page, Place::kFast);
  }
  touch(path);
  prune();
}

void PrefixCache::Tiers::checkpoint(std::span<const int32_t> tokens, int slot) {
  ONELANE_CHECK(!tokens.empty() && tokens.size() % kPageTokens == 0, "a checkpoint is taken at a page boundary");
  collect_lost();
  const std::vector<PrefixNode*> path = tree_.match(tokens);
  if (path.size() * kPageTokens != tokens.size()) return;  // not inserted: a key that another page has
  CachedBlob& blob = path.back()->checkpoint;
  if (blob.place != Place::kFast) {
    const bool appears = !blob.exists();
    if (blob.place == Place::kHost) host_.remove(blob);
    blob.bytes = Blob(state_bytes_);
    save_slot(store_, slot, blob.bytes.bytes());
    checkpoints_.add(blob, Place::kFast);
    if (appears) tree_.checkpoint_appeared(*path.back());
  }
  touch(path);
  write_behind(path);
  touch_disk(path);
  trim_checkpoints();
  prune();
}

// -- giving up

int PrefixCache::Tiers::reclaim(int pages) {
  collect_lost();
  const int freed = evict_pages(pages);
  prune();
  return freed;
}

int PrefixCache::Tiers::evict_pages(int pages) {
  int freed = 0;
  for (auto end = pages_.order().end(); end != pages_.order().begin() && freed < pages;) {
    CachedBlob& page = **std::prev(end);
    if (pool_.references(page.page) > 1) {
      --end;
    } else {
      evict_page(page);
      ++freed;
    }
  }
  return freed;
}

void PrefixCache::Tiers::evict_page(CachedBlob& page) {
  pages_.remove(page);
  const int number = std::exchange(page.page, -1);
  if (options_.host_bytes >= static_cast<int64_t>(store_.page_bytes())) {
    page.bytes = save_page(store_, number);
    move_to_host(page);
  } else {
    if_gone(page);
  }
  ONELANE_CHECK(pool_.release(number), "only unused pages are evicted");
  ++evicted_pages_;
}

void PrefixCache::Tiers::trim_checkpoints() {
  while (checkpoints_.bytes() > options_.checkpoint_bytes) {
    // The oldest of those that a later one on the same path has replaced, but not the one just used; else the oldest.
    CachedBlob* victim = &checkpoints_.oldest();
    const auto& order = checkpoints_.order();
    const auto replaced = std::find_if(order.rbegin(), std::prev(order.rend()),
                                       [](const CachedBlob* blob) { return blob->node->superseded; });
    if (replaced != std::prev(order.rend())) victim = *replaced;
    checkpoints_.remove(*victim);
    move_to_host(*victim);
  }
}

void PrefixCache::Tiers::move_to_host(CachedBlob& blob) {
  if (static_cast<int64_t>(blob.bytes.size()) > options_.host_bytes) {
    blob.bytes = Blob();
    return if_gone(blob);
  }
  host_.add(blob, Place::kHost);
  while (host_.bytes() > options_.host_bytes) drop_from_host(host_.oldest());
}

void PrefixCache::Tiers::drop_from_host(CachedBlob& blob) {
  host_.remove(blob);
  blob.bytes = Blob();
  if_gone(blob);
}

void PrefixCache::Tiers::if_gone(CachedBlob& blob) {
  if (blob.exists()) return;
  if (blob.kind == BlobKind::kCheckpoint) tree_.checkpoint_vanished(*blob.node);
  emptied_.push_back(blob.node->key);
}

void PrefixCache::Tiers::prune() {
  // By key: a node can be named twice, or have gone with one below it.
  for (const PageKey& key : emptied_) {
    if (PrefixNode* node = tree_.find(key)) tree_.prune(node);
  }
  emptied_.clear();
}

void PrefixCache::Tiers::clear() {
  for (const CachedBlob* blob : pages_.order()) pool_.release(blob->page);
  pages_ = checkpoints_ = host_ = BlobList();
  emptied_.clear();
  tree_ = PrefixTree(PageKey(tree_.root()));
  if (disk_ != nullptr) disk_->clear();
}

void PrefixCache::Tiers::flush() {
  if (disk_ != nullptr) disk_->flush();
}

// -- order and numbers

void PrefixCache::Tiers::touch(CachedBlob& blob) {
  if (blob.place == Place::kHost) host_.touch(blob);
  if (blob.place == Place::kFast) (blob.kind == BlobKind::kPage ? pages_ : checkpoints_).touch(blob);
}

void PrefixCache::Tiers::touch(Path path) {
  // The root last: a page is always more recent than those behind it, so the end of a path goes first. Of checkpoints
  // only the one in question is: the others are not needed for it.
  for (const auto node : std::views::reverse(path)) touch(node->page);
  if (!path.empty()) touch(path.back()->checkpoint);
}

int PrefixCache::Tiers::unused_pages() const {
  return static_cast<int>(std::ranges::count_if(
      pages_.order(), [this](const CachedBlob* page) { return pool_.references(page->page) == 1; }));
}

PrefixCacheStats PrefixCache::Tiers::stats() const {
  PrefixCacheStats stats;
  stats.pages = pages_.size();
  stats.known_pages = static_cast<int>(tree_.size());
  stats.checkpoints = checkpoints_.size();
  stats.host_bytes = host_.bytes();
  stats.evicted_pages = evicted_pages_;
  stats.restored_pages = restored_pages_;
  if (disk_ != nullptr) {
    const DiskStats disk = disk_->stats();
    stats.disk_bytes = disk.bytes;
    stats.dropped_blobs = disk.dropped_blobs;
    stats.dropped_writes = disk.dropped_writes;
  }
  return stats;
}

}  // namespace onelane
