// PrefixTree: which prefixes are known, and where each page and checkpoint of them is.
//
// The tree knows no tier; it keeps the nodes, and a node exists as long as one of its two blobs is somewhere or a node
// below it exists. A node in the middle may have lost its page: what lies below can be used again once the page has
// been computed again.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/blob_file.h"

namespace onelane {

struct PrefixNode;

// A page or checkpoint of a node and where its bytes are: at most one place in memory, and maybe on disk.
struct CachedBlob {
  enum class Place { kNone, kFast, kHost };

  PrefixNode* node = nullptr;
  BlobKind kind = BlobKind::kPage;
  Place place = Place::kNone;
  bool on_disk = false;                 // or in the queue for it
  int page = -1;                        // of a page in fast memory: its number in the pool
  Blob bytes;                           // of everything else in memory
  std::list<CachedBlob*>::iterator at;  // in the list of its place

  bool in_memory() const { return place != Place::kNone; }
  bool exists() const { return in_memory() || on_disk; }
};

struct PrefixNode {
  PageKey key;
  PrefixNode* parent = nullptr;  // null: the root, which stands for no page
  int depth = 0;                 // pages up to here, this one included
  int children = 0;
  bool superseded = false;  // a later checkpoint on the same path exists, and no path has left between the two
  PageTokens tokens{};
  CachedBlob page, checkpoint;

  CachedBlob& blob(BlobKind kind) { return kind == BlobKind::kPage ? page : checkpoint; }
};

// The blobs of one tier, most recently used first. `bytes` is kept for tiers with a budget.
class BlobList {
 public:
  // Puts `blob`, which is in no list, first; sets its place.
  void add(CachedBlob& blob, CachedBlob::Place place);
  void remove(CachedBlob& blob);
  void touch(CachedBlob& blob) { order_.splice(order_.begin(), order_, blob.at); }

  int64_t bytes() const { return bytes_; }
  int size() const { return static_cast<int>(order_.size()); }
  bool empty() const { return order_.empty(); }
  CachedBlob& oldest() { return *order_.back(); }
  const std::list<CachedBlob*>& order() const { return order_; }

 private:
  std::list<CachedBlob*> order_;
  int64_t bytes_ = 0;
};

class PrefixTree {
 public:
  explicit PrefixTree(const PageKey& root);

  const PageKey& root() const { return root_->key; }
  size_t size() const { return nodes_.size(); }
  // The nodes of the leading full pages of `tokens`, as far as they are known; their pages may be gone.
  std::vector<PrefixNode*> match(std::span<const int32_t> tokens) const;
  PrefixNode* find(const PageKey& key) const;
  // The node of `tokens` (one page) below `parent` (null: the root), added if need be. Null when another page has the
  // same key.
  PrefixNode* add(PrefixNode* parent, std::span<const int32_t> tokens);
  // Removes `node` and the nodes above it that hold nothing any more.
  void prune(PrefixNode* node);

  // Keeps `superseded` right after a checkpoint appeared at, or vanished from, `node`.
  void checkpoint_appeared(PrefixNode& node);
  void checkpoint_vanished(PrefixNode& node);

 private:
  PrefixNode* child(const PrefixNode& parent, std::span<const int32_t> tokens, const PageKey& key) const;

  std::unique_ptr<PrefixNode> root_;
  std::unordered_map<PageKey, std::unique_ptr<PrefixNode>, PageKeyHash> nodes_;
};

}  // namespace onelane
