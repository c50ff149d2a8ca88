// The disk's side of PrefixCache::Tiers: what is written when, and how a directory becomes a tree again.
#include <algorithm>
#include <ranges>

#include "cache/slot_state.h"
#include "cache/tiers.h"

namespace onelane {
namespace {

BlobHeader header_of(const CachedBlob& blob, const PageKey& model, size_t payload_bytes) {
  const PrefixNode& node = *blob.node;
  return {blob.kind, model, node.parent->key, node.tokens, payload_bytes};
}

BlobId id_of(const CachedBlob& blob) { return {blob.node->key, blob.kind}; }

}  // namespace

Result<void> PrefixCache::Tiers::open_disk() {
  if (options_.disk_dir.empty()) return {};
  DiskTier::Files found;
  ONELANE_ASSIGN(disk_, DiskTier::open({.dir = options_.disk_dir,
                                        .bytes = options_.disk_bytes,
                                        .queue_bytes = options_.disk_queue_bytes,
                                        .model = tree_.root(),
                                        .page_bytes = store_.page_bytes(),
                                        .checkpoint_bytes = state_bytes_},
                                       found));
  adopt(found);
  return {};
}

// Nodes for all files that hang together with the root. The order of use is that of writing, where a page counts as
// recent as the most recent file behind it.
void PrefixCache::Tiers::adopt(const DiskTier::Files& found) {
  std::unordered_multimap<PageKey, const BlobHeader*, PageKeyHash> behind;
  for (const auto& [id, file] : found) {
    if (id.kind == BlobKind::kPage) behind.emplace(file.header.parent, &file.header);
  }
  struct Kept {
    CachedBlob* blob;
    int64_t used;
  };
  std::vector<Kept> pages, checkpoints;
  std::unordered_map<const PrefixNode*, size_t> row;  // of pages
  const auto extend = [&](PrefixNode* parent) {       // null: the root
    const auto [begin, end] = behind.equal_range(parent == nullptr ? tree_.root() : parent->key);
    for (auto next = begin; next != end; ++next) {
      PrefixNode* node = tree_.add(parent, next->second->tokens);
      if (node == nullptr) continue;
      node->page.on_disk = true;
      row[node] = pages.size();
      pages.push_back({&node->page, found.at(id_of(node->page)).written});
    }
  };
  extend(nullptr);
  for (size_t i = 0; i < pages.size(); ++i) extend(pages[i].blob->node);  // parents stand before children

  for (const Kept& page : pages) {
    CachedBlob& checkpoint = page.blob->node->checkpoint;
    const auto file = found.find(id_of(checkpoint));
    if (file == found.end()) continue;
    checkpoint.on_disk = true;
    checkpoints.push_back({&checkpoint, file->second.written});
  }
  for (const Kept& checkpoint : checkpoints) {
    tree_.checkpoint_appeared(*checkpoint.blob->node);
    int64_t& used = pages[row.at(checkpoint.blob->node)].used;
    used = std::max(used, checkpoint.used);
  }
  for (const Kept& page : std::views::reverse(pages)) {
    const auto parent = row.find(page.blob->node->parent);
    if (parent != row.end()) pages[parent->second].used = std::max(pages[parent->second].used, page.used);
  }
  pages.insert(pages.end(), checkpoints.begin(), checkpoints.end());
  std::ranges::sort(pages, [](const Kept& a, const Kept& b) {
    return a.used != b.used ? a.used < b.used : a.blob->node->depth > b.blob->node->depth;
  });
  for (const Kept& kept : pages) {
    const size_t payload = kept.blob->kind == BlobKind::kPage ? store_.page_bytes() : state_bytes_;
    disk_->adopt(id_of(*kept.blob), static_cast<int64_t>(kBlobHeaderBytes + payload));
  }
  disk_->finish_adopting(found);
}

// The pages of `path` that are not on disk yet, root first, then the checkpoint at its end. What comes after a blob
// that cannot be written could not be reached and waits for the next checkpoint on this path.
void PrefixCache::Tiers::write_behind(Path path) {
  if (disk_ == nullptr) return;
  const auto write = [&](CachedBlob& blob) {
    if (blob.on_disk) return true;
    if (!blob.in_memory()) return false;
    Blob bytes = blob.page >= 0 ? save_page(store_, blob.page) : copy_to_blob(blob.bytes.bytes());
    const BlobHeader header = header_of(blob, tree_.root(), bytes.size());
    return blob.on_disk = disk_->put(header, std::move(bytes));
  };
  if (std::ranges::all_of(path, [&](PrefixNode* node) { return write(node->page); })) write(path.back()->checkpoint);
}

std::optional<Blob> PrefixCache::Tiers::read_from_disk(CachedBlob& blob) {
  if (!blob.on_disk) return std::nullopt;
  const size_t payload = blob.kind == BlobKind::kPage ? store_.page_bytes() : state_bytes_;
  std::optional<Blob> bytes = disk_->read(header_of(blob, tree_.root(), payload));
  if (!bytes) {
    blob.on_disk = false;
    if_gone(blob);
  }
  return bytes;
}

void PrefixCache::Tiers::touch_disk(Path path) {
  if (disk_ == nullptr) return;
  std::vector<BlobId> ids = {id_of(path.back()->checkpoint)};
  for (const PrefixNode* node : std::views::reverse(path)) ids.push_back(id_of(node->page));
  disk_->touch(ids);
}

void PrefixCache::Tiers::collect_lost() {
  if (disk_ == nullptr) return;
  for (const BlobId& id : disk_->take_lost()) {
    PrefixNode* node = tree_.find(id.key);
    if (node == nullptr) continue;
    node->blob(id.kind).on_disk = false;
    if_gone(node->blob(id.kind));
  }
}

}  // namespace onelane
