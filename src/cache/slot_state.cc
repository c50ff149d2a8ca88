#include "cache/slot_state.h"

#include "base/check.h"

namespace onelane {
namespace {

void copy(const KvStore& store, std::span<std::byte> to, std::span<const std::byte> from) {
  ONELANE_CHECK(to.size() == from.size(), "a page or slot state of another model");
  if (!from.empty()) store.memory().copy(to.data(), from.data(), from.size());
}

}  // namespace

Blob save_page(KvStore& store, int page) {
  Blob blob(store.page_bytes());
  copy(store, blob.bytes(), store.page(page));
  return blob;
}

void load_page(KvStore& store, int page, std::span<const std::byte> bytes) { copy(store, store.page(page), bytes); }

size_t slot_state_bytes(const KvStore& store) {
  size_t total = 0;
  for (const auto part : store.slot_parts(0)) total += part.size();
  return total;
}

void save_slot(const KvStore& store, int slot, std::span<std::byte> out) {
  ONELANE_CHECK(out.size() == slot_state_bytes(store), "a slot state has slot_state_bytes() bytes");
  for (const auto part : store.slot_parts(slot)) {
    copy(store, out.first(part.size()), part);
    out = out.subspan(part.size());
  }
}

void load_slot(KvStore& store, int slot, std::span<const std::byte> state) {
  ONELANE_CHECK(state.size() == slot_state_bytes(store), "the slot state of another model");
  for (const auto part : store.slot_parts(slot)) {
    copy(store, part, state.first(part.size()));
    state = state.subspan(part.size());
  }
}

SpilledSequence::SpilledSequence(KvStore& store, int slot, std::span<const int> pages)
    : state_(slot_state_bytes(store)) {
  save_slot(store, slot, state_.bytes());
  bytes_ = state_.size();
  pages_.reserve(pages.size());
  for (const int page : pages) {
    pages_.push_back(save_page(store, page));
    bytes_ += store.page_bytes();
  }
}

void SpilledSequence::restore(KvStore& store, int slot, std::span<const int> pages) const {
  ONELANE_CHECK(pages.size() == pages_.size(), "a sequence comes back with as many pages as it left with");
  load_slot(store, slot, state_.bytes());
  for (size_t i = 0; i < pages.size(); ++i) load_page(store, pages[i], pages_[i].bytes());
}

}  // namespace onelane
