#include "cache/slot_state.h"

#include <cstring>

#include "base/check.h"

namespace onelane {
namespace {

void copy(std::span<std::byte> to, std::span<const std::byte> from) {
  ONELANE_CHECK(to.size() == from.size(), "a page or slot state of another model");
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

size_t slot_state_bytes(const KvStore& store) {
  size_t total = 0;
  for (const auto part : store.slot_parts(0)) total += part.size();
  return total;
}

void save_slot(const KvStore& store, int slot, std::span<std::byte> out) {
  ONELANE_CHECK(out.size() == slot_state_bytes(store), "a slot state has slot_state_bytes() bytes");
  for (const auto part : store.slot_parts(slot)) {
    copy(out.first(part.size()), part);
    out = out.subspan(part.size());
  }
}

void load_slot(KvStore& store, int slot, std::span<const std::byte> state) {
  ONELANE_CHECK(state.size() == slot_state_bytes(store), "the slot state of another model");
  for (const auto part : store.slot_parts(slot)) {
    copy(part, state.first(part.size()));
    state = state.subspan(part.size());
  }
}

SpilledSequence::SpilledSequence(KvStore& store, int slot, std::span<const int> pages)
    : state_(slot_state_bytes(store)) {
  save_slot(store, slot, state_.bytes());
  bytes_ = state_.size();
  pages_.reserve(pages.size());
  for (const int page : pages) {
    pages_.push_back(copy_to_blob(store.page(page)));
    bytes_ += store.page_bytes();
  }
}

void SpilledSequence::restore(KvStore& store, int slot, std::span<const int> pages) const {
  ONELANE_CHECK(pages.size() == pages_.size(), "a sequence comes back with as many pages as it left with");
  load_slot(store, slot, state_.bytes());
  for (size_t i = 0; i < pages.size(); ++i) copy(store.page(pages[i]), pages_[i].bytes());
}

}  // namespace onelane
