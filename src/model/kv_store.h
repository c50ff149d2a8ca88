// KvStore: the memory that outlives a step. Window rings and compressor states per sequence slot, pages for everything
// that grows with a sequence.
//
// One page covers 128 tokens of one sequence and holds their compressed entries and index keys of all owner layers.
// Which pages and slots belong to whom is the caller's business; nothing here needs clearing when a slot or page is
// reused, since no stage reads what the sequence has not written.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "checkpoint/model_spec.h"
#include "device/buffer.h"
#include "kernels/kernels.h"

namespace onelane {

class KvStore {
 public:
  // In `memory`, which must outlive it; what the functions below point to lies there.
  KvStore(const ModelSpec& spec, int slots, int pages, Memory& memory = host_memory());

  int slots() const { return slots_; }
  int pages() const { return pages_; }
  size_t page_bytes() const { return page_bytes_; }
  Memory& memory() const { return memory_; }
  // All memory held, in bytes.
  size_t bytes() const;

  RingCache ring(int layer) const { return rings_[static_cast<size_t>(layer)]; }
  RingCache draft_ring(int stage) const { return draft_rings_[static_cast<size_t>(stage)]; }
  bool drafts() const { return !draft_rings_.empty(); }
  // Of an owner layer; base is null where the layer keeps none.
  PagedCache entries(int layer) const { return entries_[static_cast<size_t>(layer)]; }
  PagedCache keys(int layer) const { return keys_[static_cast<size_t>(layer)]; }
  CompressorState state(int layer) const { return states_[static_cast<size_t>(layer)]; }
  CompressorState index_state(int layer) const { return index_states_[static_cast<size_t>(layer)]; }

  // On the host: the draft rings of `slot` hold every position from this one on; what lies before may be missing.
  int32_t& drafter_from(int slot) { return drafter_from_[static_cast<size_t>(slot)]; }

  // For those who move sequences about. Everything of `page`: entries and keys of all owner layers.
  std::span<std::byte> page(int page) { return {pool_.data() + static_cast<size_t>(page) * page_bytes_, page_bytes_}; }
  // Everything `slot` holds besides pages: window rings, draft rings and where they begin, compressor and index states.
  // The parts and their
  // sizes are the same, in the same order, for every slot of every store of one model.
  std::vector<std::span<std::byte>> slot_parts(int slot) const;

 private:
  RingCache make_ring(const ModelSpec& spec);
  CompressorState make_state(const ModelSpec& spec, const LayerSpec& layer, int width);

  Memory& memory_;
  int slots_;
  int pages_;
  size_t page_bytes_ = 0;
  Buffer pool_;
  std::vector<Buffer> buffers_;
  std::vector<RingCache> rings_, draft_rings_;
  std::span<int32_t> drafter_from_;  // [slots]; empty without a drafter
  std::vector<PagedCache> entries_, keys_;
  std::vector<CompressorState> states_, index_states_;
};

}  // namespace onelane
