#include "cache/prefix_tree.h"

#include <algorithm>

#include "base/check.h"

namespace onelane {

void BlobList::add(CachedBlob& blob, CachedBlob::Place place) {
  ONELANE_CHECK(!blob.in_memory() && place != CachedBlob::Place::kNone, "a blob is in one place");
  blob.place = place;
  order_.push_front(&blob);
  blob.at = order_.begin();
  bytes_ += static_cast<int64_t>(blob.bytes.size());
}

void BlobList::remove(CachedBlob& blob) {
  bytes_ -= static_cast<int64_t>(blob.bytes.size());
  order_.erase(blob.at);
  blob.place = CachedBlob::Place::kNone;
}

PrefixTree::PrefixTree(const PageKey& root) : root_(std::make_unique<PrefixNode>()) { root_->key = root; }

PrefixNode* PrefixTree::find(const PageKey& key) const {
  const auto found = nodes_.find(key);
  return found == nodes_.end() ? nullptr : found->second.get();
}

PrefixNode* PrefixTree::child(const PrefixNode& parent, std::span<const int32_t> tokens, const PageKey& key) const {
  PrefixNode* node = find(key);
  return node != nullptr && node->parent == &parent && std::ranges::equal(node->tokens, tokens) ? node : nullptr;
}

std::vector<PrefixNode*> PrefixTree::match(std::span<const int32_t> tokens) const {
  std::vector<PrefixNode*> path;
  const PrefixNode* parent = root_.get();
  for (; tokens.size() >= kPageTokens; tokens = tokens.subspan(kPageTokens)) {
    const auto page = tokens.first(kPageTokens);
    PrefixNode* node = child(*parent, page, page_key(parent->key, page));
    if (node == nullptr) break;
    path.push_back(node);
    parent = node;
  }
  return path;
}

PrefixNode* PrefixTree::add(PrefixNode* parent, std::span<const int32_t> tokens) {
  if (parent == nullptr) parent = root_.get();
  const PageKey key = page_key(parent->key, tokens);
  auto& slot = nodes_[key];
  if (slot != nullptr) return child(*parent, tokens, key);
  slot = std::make_unique<PrefixNode>();
  slot->key = key;
  slot->parent = parent;
  slot->depth = parent->depth + 1;
  std::ranges::copy(tokens, slot->tokens.begin());
  slot->page.node = slot->checkpoint.node = slot.get();
  slot->checkpoint.kind = BlobKind::kCheckpoint;
  if (++parent->children > 1) parent->superseded = false;
  return slot.get();
}

void PrefixTree::prune(PrefixNode* node) {
  while (node->parent != nullptr && node->children == 0 && !node->page.exists() && !node->checkpoint.exists()) {
    PrefixNode* parent = node->parent;
    --parent->children;
    nodes_.erase(PageKey(node->key));
    node = parent;
  }
}

void PrefixTree::checkpoint_appeared(PrefixNode& node) {
  for (PrefixNode* above = node.parent; above != nullptr && above->children == 1; above = above->parent) {
    if (!above->checkpoint.exists()) continue;
    above->superseded = true;
    return;
  }
}

void PrefixTree::checkpoint_vanished(PrefixNode& node) {
  node.superseded = false;
  for (PrefixNode* above = node.parent; above != nullptr; above = above->parent) {
    if (!above->checkpoint.exists()) continue;
    // Wrong only if a deeper checkpoint is left on the path; that costs an order of eviction.
    above->superseded = false;
    return;
  }
}

}  // namespace onelane
