#include "model/kv_store.h"

namespace onelane {
namespace {

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

RingCache KvStore::make_ring(const ModelSpec& spec) {
  RingCache ring;
  ring.format = spec.window_record;
  ring.capacity = spec.ring_slots();
  ring.slot_bytes = aligned(RecordBlock::bytes(ring.format, ring.capacity));
  buffers_.emplace_back(ring.slot_bytes * static_cast<size_t>(slots_), memory_);
  ring.base = buffers_.back().data();
  return ring;
}

CompressorState KvStore::make_state(const ModelSpec& spec, const LayerSpec& layer, int width) {
  CompressorState state;
  if (!layer.has_compressor_gate) return state;
  const int lookback = layer.compressor_overlap ? 2 * layer.ratio : layer.ratio;
  const int drafts = spec.drafter == DrafterKind::kDspark ? spec.dspark.block_size : 0;
  state.capacity = lookback + drafts + 1;
  state.slot_floats =
      static_cast<size_t>(state.capacity) * 2 * static_cast<size_t>(width) * (layer.compressor_overlap ? 2 : 1);
  buffers_.emplace_back(state.slot_floats * static_cast<size_t>(slots_) * sizeof(float), memory_);
  state.base = buffers_.back().as<float>().data();
  return state;
}

KvStore::KvStore(const ModelSpec& spec, int slots, int pages, Memory& memory)
    : memory_(memory), slots_(slots), pages_(pages) {
  for (const LayerSpec& layer : spec.layers) {
    rings_.push_back(make_ring(spec));
    PagedCache entries, keys;
    if (layer.has_compressor) {
      entries.format = spec.compressed_record;
      entries.per_page = kPageTokens / layer.ratio;
      entries.offset = page_bytes_;
      page_bytes_ += aligned(RecordBlock::bytes(entries.format, entries.per_page));
    }
    if (layer.has_index_keys) {
      keys.format = RecordFormat::kIndexMxfp4;
      keys.per_page = kPageTokens / layer.ratio;
      keys.offset = page_bytes_;
      page_bytes_ += aligned(RecordBlock::bytes(keys.format, keys.per_page));
    }
    entries_.push_back(entries);
    keys_.push_back(keys);
    states_.push_back(layer.has_compressor ? make_state(spec, layer, kHeadDim) : CompressorState{});
    index_states_.push_back(layer.has_index_keys && layer.has_ape ? make_state(spec, layer, kIndexDim)
                                                                  : CompressorState{});
  }
  for (size_t stage = 0; stage < spec.draft_stages.size(); ++stage) draft_rings_.push_back(make_ring(spec));
  if (!draft_rings_.empty()) {
    buffers_.emplace_back(static_cast<size_t>(slots) * sizeof(int32_t));
    drafter_from_ = buffers_.back().as<int32_t>();
  }

  pool_ = Buffer(page_bytes_ * static_cast<size_t>(pages), memory_);
  for (auto* caches : {&entries_, &keys_}) {
    for (PagedCache& cache : *caches) {
      cache.page_bytes = page_bytes_;
      if (cache.per_page > 0) cache.base = pool_.data();
    }
  }
}

std::vector<std::span<std::byte>> KvStore::slot_parts(int slot) const {
  std::vector<std::span<std::byte>> parts;
  for (const auto* rings : {&rings_, &draft_rings_}) {
    for (const RingCache& ring : *rings) {
      parts.emplace_back(ring.base + static_cast<size_t>(slot) * ring.slot_bytes, ring.slot_bytes);
    }
  }
  if (!drafter_from_.empty()) {
    parts.push_back(std::as_writable_bytes(drafter_from_.subspan(static_cast<size_t>(slot), 1)));
  }
  for (const auto* states : {&states_, &index_states_}) {
    for (const CompressorState& state : *states) {
      if (state.base == nullptr) continue;
      float* first = state.base + static_cast<size_t>(slot) * state.slot_floats;
      parts.emplace_back(reinterpret_cast<std::byte*>(first), state.slot_floats * sizeof(float));
    }
  }
  return parts;
}

size_t KvStore::bytes() const {
  size_t total = pool_.size();
  for (const Buffer& buffer : buffers_) total += buffer.size();
  return total;
}

}  // namespace onelane
