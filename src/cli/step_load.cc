#include "cli/step_load.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "base/check.h"
#include "base/splitmix.h"

namespace onelane {
namespace {

// Records of normally distributed values, all of a block.
void fill_records(const RecordBlock& block, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(record_width(block.format)));
  for (int slot = 0; slot < block.capacity; ++slot) {
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    encode_record(block.format, values.data(), block.data(slot), block.scales(slot));
  }
}

}  // namespace

int rows_per_sequence(const ModelSpec& spec) {
  return 1 + (spec.drafter == DrafterKind::kDspark ? spec.dspark.block_size : 0);
}

int sequences_of(const ModelSpec& spec, const StepShape& shape) {
  const int each = rows_per_sequence(spec);
  return (shape.rows + each - 1) / each;
}

int pages_per_sequence(const ModelSpec& spec, const StepShape& shape) {
  return (shape.context + rows_per_sequence(spec) + kPageTokens - 1) / kPageTokens;
}

StepLoad::StepLoad(const Model& model, StepMeter& meter, const Sizes& sizes, uint64_t seed)
    : model_(model),
      meter_(meter),
      seed_(seed),
      store_(model.spec, sizes.sequences, sizes.pages, meter.memory()),
      forward_(model, meter, store_, sizes.rows, sizes.logit_rows),
      table_width_(sizes.sequence_pages),
      page_table_(static_cast<size_t>(sizes.sequences * sizes.sequence_pages)),
      logits_(static_cast<size_t>(sizes.logit_rows) * static_cast<size_t>(model.spec.vocab) * sizeof(float),
              meter.shared_memory()) {
  logit_rows_.resize(static_cast<size_t>(sizes.rows));
  std::iota(logit_rows_.begin(), logit_rows_.end(), 0);
  fill_rings();
  fill_pages();
}

void StepLoad::fill_rings() {
  std::mt19937_64 random(seed_);
  const auto layers = static_cast<int>(model_.spec.layers.size());
  const RingCache any = store_.ring(0);
  std::vector<std::byte> records(RecordBlock::bytes(any.format, any.capacity));
  fill_records({records.data(), any.format, any.capacity}, random);
  std::vector<float> state(1 << 16);
  std::normal_distribution<float> normal;
  std::generate(state.begin(), state.end(), [&] { return normal(random); });
  for (int slot = 0; slot < store_.slots(); ++slot) {
    const auto fill = [&](const RingCache& ring) {
      store_.memory().copy(ring.block(slot).base, records.data(), records.size());
    };
    for (int layer = 0; layer < layers; ++layer) {
      fill(store_.ring(layer));
      for (const CompressorState& of : {store_.state(layer), store_.index_state(layer)}) {
        for (size_t done = 0; of.base != nullptr && done < of.slot_floats; done += state.size()) {
          float* to = of.base + static_cast<size_t>(slot) * of.slot_floats + done;
          store_.memory().copy(to, state.data(), std::min(state.size(), of.slot_floats - done) * sizeof(float));
        }
      }
    }
    for (size_t stage = 0; stage < model_.spec.draft_stages.size(); ++stage) {
      fill(store_.draft_ring(static_cast<int>(stage)));
    }
    if (store_.drafts()) store_.drafter_from(slot) = 0;
  }
}

// One page is encoded and repeated, but for its index keys: their codes are drawn anew, any being as good as any other.
void StepLoad::fill_pages() {
  constexpr int kAtOnce = 64;
  std::mt19937_64 random(seed_ + 1);
  const size_t page_bytes = store_.page_bytes();
  if (page_bytes == 0) return;
  std::vector<std::byte> pages(kAtOnce * page_bytes);
  struct Part {
    size_t at, bytes;
  };
  std::vector<Part> key_codes;
  for (const LayerSpec& layer : model_.spec.layers) {
    for (PagedCache cache : {store_.entries(layer.index), store_.keys(layer.index)}) {
      if (cache.per_page == 0) continue;
      cache.base = pages.data();
      const RecordBlock block = cache.block(0);
      fill_records(block, random);
      if (cache.format == RecordFormat::kIndexMxfp4) {
        key_codes.push_back({cache.offset, static_cast<size_t>(cache.per_page * record_data_bytes(cache.format))});
      }
    }
  }
  for (int page = 1; page < kAtOnce; ++page) std::memcpy(pages.data() + page * page_bytes, pages.data(), page_bytes);
  for (int first = 0; first < store_.pages(); first += kAtOnce) {
    const int count = std::min(kAtOnce, store_.pages() - first);
    for (int page = 0; page < count; ++page) {
      for (const Part& part : key_codes) {
        std::byte* at = pages.data() + static_cast<size_t>(page) * page_bytes + part.at;
        for (size_t i = 0; i < part.bytes; i += sizeof(uint64_t)) {
          const uint64_t drawn = random();
          std::memcpy(at + i, &drawn, sizeof(drawn));
        }
      }
    }
    store_.memory().copy(store_.page(first).data(), pages.data(), static_cast<size_t>(count) * page_bytes);
  }
}

// Pages of their own for every sequence, in no order, as after a while of serving. The table keeps its width, which
// recordings hold.
void StepLoad::lay_out_pages(int sequences, int pages) {
  ONELANE_CHECK(sequences <= store_.slots() && sequences * pages <= store_.pages() && pages <= table_width_,
                "the store has been sized");
  step_.set_pages(page_table_.data(), table_width_);
  if (laid_out_ == std::pair(sequences, pages)) return;
  laid_out_ = {sequences, pages};
  std::vector<int32_t> order(static_cast<size_t>(sequences * pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed_));
  for (int slot = 0; slot < sequences; ++slot) {
    std::copy_n(order.begin() + slot * pages, pages, page_table_.begin() + slot * table_width_);
  }
}

std::vector<int32_t> StepLoad::tokens(uint64_t draw, int first, int count) const {
  std::vector<int32_t> drawn;
  for (int i = 0; i < count; ++i) {
    const uint64_t place = SplitMix((draw << 32) + static_cast<uint64_t>(first + i)).next();
    const uint64_t number = SplitMix(seed_ ^ place).next();
    drawn.push_back(static_cast<int32_t>(number % static_cast<uint64_t>(model_.spec.vocab)));
  }
  return drawn;
}

void StepLoad::draft(const StepShape& shape, int draw) {
  const int each = rows_per_sequence(model_.spec);
  std::vector<int32_t> block;
  struct Chain {
    int first_row, depth;
  };
  std::vector<Chain> chains;
  step_.clear();
  lay_out_pages(sequences_of(model_.spec, shape), pages_per_sequence(model_.spec, shape));
  for (int slot = 0; slot * each < shape.rows; ++slot) {
    const int depth = std::min(each, shape.rows - slot * each) - 1;
    if (depth == 0) continue;
    fill_draft_block(model_.spec.dspark, tokens(static_cast<uint64_t>(draw), slot * each, 1).front(), depth, block);
    chains.push_back({step_.count(), depth});
    step_.add(slot, shape.context, block);
  }
  if (chains.empty()) return;
  meter_.part("draft");
  forward_.draft(step_, logits_.as<float>().data());
  meter_.part("chain");
  for (const Chain& chain : chains) forward_.chain(chain.first_row, chain.depth);
}

void StepLoad::step(const StepShape& shape, int draw) {
  if (model_.has_drafter()) draft(shape, draw);
  const int each = rows_per_sequence(model_.spec);
  step_.clear();
  lay_out_pages(sequences_of(model_.spec, shape), pages_per_sequence(model_.spec, shape));
  for (int slot = 0; slot * each < shape.rows; ++slot) {
    const int first = slot * each;
    const int count = std::min(each, shape.rows - first);
    const auto before = tokens(~static_cast<uint64_t>(slot), 0, std::min(kHistory, shape.context));
    step_.add(slot, shape.context, tokens(static_cast<uint64_t>(draw), first, count), before);
  }
  run_rows(std::span(logit_rows_).first(static_cast<size_t>(shape.rows)));
}

void StepLoad::run_rows(std::span<const int32_t> logit_rows) {
  meter_.part("target");
  forward_.target(step_, logit_rows, logits_.as<float>().data(), /*on_demand=*/true);
  if (model_.has_drafter()) {
    meter_.part("seed");
    forward_.seed_drafter(step_);
  }
  if (std::exchange(uncollected_, true)) forward_.collect();
  meter_.drain();
}

void StepLoad::prefill(int count, int chunk) {
  const std::vector<int32_t> prompt = tokens(0, 0, count);
  for (int done = 0; done < count;) {
    const int rows = std::min(chunk, count - done);
    const auto before = std::span(prompt).first(static_cast<size_t>(done));
    step_.clear();
    lay_out_pages(1, (count + kPageTokens - 1) / kPageTokens);
    step_.add(0, done, std::span(prompt).subspan(static_cast<size_t>(done), static_cast<size_t>(rows)),
              before.last(static_cast<size_t>(std::min(kHistory, done))));
    done += rows;
    const int32_t last_row = rows - 1;
    run_rows({&last_row, done == count ? 1u : 0u});
  }
}

}  // namespace onelane
