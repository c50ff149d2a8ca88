#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <queue>

#include "base/check.h"

namespace onelane {

void Bpe::reserve(size_t merges) { grow(std::bit_ceil(std::max<size_t>(16, merges * 2))); }

size_t Bpe::slot(uint64_t pair) const {
  // Fibonacci hashing: ids are dense, so their low bits alone would cluster.
  const size_t mask = table_.size() - 1;
  size_t at = static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> 32) & mask;
  while (table_[at].pair != kEmpty && table_[at].pair != pair) at = (at + 1) & mask;
  return at;
}

void Bpe::grow(size_t slots) {
  if (slots <= table_.size()) return;
  std::vector<Merge> old(slots);
  old.swap(table_);
  for (const Merge& merge : old) {
    if (merge.pair != kEmpty) table_[slot(merge.pair)] = merge;
  }
}

void Bpe::add_merge(int32_t left, int32_t right, int32_t result) {
  if ((used_ + 1) * 2 > table_.size()) grow(std::max<size_t>(16, table_.size() * 2));
  Merge& merge = table_[slot(pair_key(left, right))];
  if (merge.pair == kEmpty) ++used_;
  merge = {pair_key(left, right), next_rank_++, result};
}

const Bpe::Merge* Bpe::find(int32_t left, int32_t right) const {
  if (table_.empty()) return nullptr;
  const Merge& merge = table_[slot(pair_key(left, right))];
  return merge.pair == kEmpty ? nullptr : &merge;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  ONELANE_CHECK(piece.size() < (size_t{1} << 31), "a piece holds fewer than 2^31 bytes");
  if (piece.size() <= kShortPiece) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, ids);
  }
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  std::array<int32_t, kShortPiece> symbols;
  std::array<const Merge*, kShortPiece> merges{};  // merges[i] joins symbols i and i+1
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) symbols[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = count;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (merges[i] && (best == count || merges[i]->rank < merges[best]->rank)) best = i;
    }
    if (best == count) break;
    symbols[best] = merges[best]->result;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    --count;
    if (best > 0) merges[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = find(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(count));
}

void Bpe::encode_long(std::string_view piece, std::vector<int32_t>& ids) const {
  struct Symbol {
    int32_t id;  // -1 once merged into its left neighbour
    int32_t previous;
    int32_t next;
  };
  struct Candidate {
    int32_t rank;
    int32_t position;
    int32_t result;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  const auto count = static_cast<int32_t>(piece.size());
  std::vector<Symbol> symbols(piece.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)] = {byte_ids_[static_cast<unsigned char>(piece[static_cast<size_t>(i)])], i - 1,
                                       i + 1 < count ? i + 1 : -1};
  }
  const auto merge_at = [&](int32_t position) -> const Merge* {
    const Symbol& left = symbols[static_cast<size_t>(position)];
    return left.next < 0 ? nullptr : find(left.id, symbols[static_cast<size_t>(left.next)].id);
  };
  std::vector<Candidate> initial;
  for (int32_t i = 0; i < count; ++i) {
    if (const Merge* merge = merge_at(i)) initial.push_back({merge->rank, i, merge->result});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap(std::greater<>{}, std::move(initial));
  const auto push = [&](int32_t position) {
    if (const Merge* merge = merge_at(position)) heap.push({merge->rank, position, merge->result});
  };
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    Symbol& left = symbols[static_cast<size_t>(top.position)];
    if (left.id < 0) continue;
    // The pair may have changed since it was queued; the fresh pair has its own entry.
    const Merge* merge = merge_at(top.position);
    if (!merge || merge->rank != top.rank) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    left.id = top.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.position;
    if (left.previous >= 0) push(left.previous);
    push(top.position);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    ids.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace onelane
