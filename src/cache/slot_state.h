// Taking a sequence out of a KvStore and putting it back: its slot's state, and its pages.
//
// The bytes are copied as they are, those nobody has written yet included. They fit every slot of every store of the
// same model.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cache/blob.h"
#include "model/kv_store.h"

namespace onelane {

// One page, to host memory and back.
Blob save_page(KvStore& store, int page);
void load_page(KvStore& store, int page, std::span<const std::byte> bytes);

// Bytes of one slot's state: window rings, draft rings, compressor and index states.
size_t slot_state_bytes(const KvStore& store);
// `out` and `state` hold slot_state_bytes(store) bytes.
void save_slot(const KvStore& store, int slot, std::span<std::byte> out);
void load_slot(KvStore& store, int slot, std::span<const std::byte> state);

// A sequence in host memory. Copies; the pages and the slot it was taken from are the caller's to give away.
class SpilledSequence {
 public:
  SpilledSequence() = default;
  SpilledSequence(KvStore& store, int slot, std::span<const int> pages);

  bool empty() const { return bytes_ == 0; }
  int page_count() const { return static_cast<int>(pages_.size()); }
  size_t bytes() const { return bytes_; }
  // Into any slot and any page_count() pages, in the sequence's order.
  void restore(KvStore& store, int slot, std::span<const int> pages) const;

 private:
  Blob state_;
  std::vector<Blob> pages_;
  size_t bytes_ = 0;
};

}  // namespace onelane
