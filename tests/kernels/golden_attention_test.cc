// Attention stages against the oracle's golden vectors.
#include "kernels/golden_support.h"

namespace onelane {
namespace {

using namespace testing;

// Before position 127 the oracle's list has empty window slots and the contract's has none, so that the softmax blocks
// begin elsewhere (3.7).
constexpr double kOtherSoftmaxBlocks = 2e-3;

// A probability on the edge between two bf16 that falls the other way moves its head's 512 sums by up to 2^-9 of
// itself.
constexpr Bound kAttended{1, 0.01, 0x1p-10};

// One that rounds probabilities against a maximum of its own differs in every one of them.
constexpr double kOtherMaximum = 4e-3;

class GoldenAttention : public GoldenTest {
 protected:
  const RopeFrequencies& rope(int index) const { return model.rope(spec.layers[index]); }
};
ONELANE_GOLDEN(GoldenAttention);

TEST_P(GoldenAttention, ProjectQkv) {
  const Golden g = golden("project_qkv");
  const Step step = rows_at(g.ints("positions"));
  const StepRows rows = step.rows();
  for (const int index : {0, 1}) {
    const std::string stem = layer(index);
    const BlockWeights& w = model.weights.layers[index];
    Array<bf16> x(g.bf16s(stem + ".attn.x"));
    Array<bf16> qr(static_cast<size_t>(rows.count) * spec.q_lora);
    Array<bf16> q(static_cast<size_t>(rows.count) * spec.n_heads * kHeadDim);
    Records kv(spec.window_record, rows.count);
    kernels->project_qkv(rows, {.x = x.data(),
                                .dim = spec.hidden,
                                .wq_a = w.wq_a,
                                .wq_b = w.wq_b,
                                .wkv = w.wkv,
                                .q_norm = w.q_norm,
                                .kv_norm = w.kv_norm,
                                .q_head_norm = spec.q_head_norm,
                                .norm_eps = spec.rms_eps,
                                .rope = &rope(index),
                                .heads = spec.n_heads,
                                .qr = qr.data(),
                                .q = q.data(),
                                .kv = kv.block});
    expect_bf16(stem + ".qr", qr.vector(), g.bf16s(stem + ".attn.qr"), {1, 0.01});
    expect_bf16(stem + ".q", q.vector(), g.bf16s(stem + ".attn.q"), {1, 0.01});
    expect_records(stem + ".kv", records_of(kv.block), spec.window_record, g.bytes(stem + ".kv_data"),
                   g.bytes(stem + ".kv_scale"), 0.005);
  }
}

// The whole prompt in one step, then in steps of 1, 5 and 256 rows: the same bytes, whatever the cut.
TEST_P(GoldenAttention, Compress) {
  for (const LayerSpec& l : spec.layers) {
    if (!l.has_compressor || (generation == "v4" && l.index == 3)) continue;
    const Golden g = golden("compress_" + std::to_string(l.index));
    Array<bf16> x(g.bf16s("x"));
    const int total = static_cast<int>(x.size()) / spec.hidden;
    const BlockWeights& w = model.weights.layers[l.index];
    std::vector<std::byte> whole;
    for (const std::vector<int>& cut : {std::vector<int>{total}, std::vector<int>{1, 5, 256}}) {
      Compressor main = w.compressor.rest;
      Compressor index_keys = w.index_compressor.rest;
      const int capacity = 2 * std::max(l.ratio, 4) + 6;
      Array<float> state(static_cast<size_t>(capacity) * 2 * main.stored());
      Array<float> index_state(static_cast<size_t>(capacity) * 2 * 2 * kIndexDim);
      main.state = {state.data(), state.size(), capacity};
      index_keys.state = {index_state.data(), index_state.size(), capacity};
      Pages entries(spec.compressed_record, 4, l.ratio);
      Pages keys(RecordFormat::kIndexMxfp4, 4, l.ratio);
      Step step;
      int done = 0;
      for (const int rows : cut) {
        step = Step();
        step.run(done, rows);
        QkvArgs qkv{
            .x = x.data() + static_cast<size_t>(done) * spec.hidden, .dim = spec.hidden, .rope = &rope(l.index)};
        PoolProducts products, index_products;
        products.ask(rows, w.compressor.wkv, w.compressor.wgate, qkv.of_x, main);
        if (w.index_compressor.wkv)
          index_products.ask(rows, w.index_compressor.wkv, w.index_compressor.wgate, qkv.of_x + 2, index_keys);
        kernels->project_qkv(step.rows(), qkv);
        kernels->compress(step.rows(), {.ratio = l.ratio,
                                        .norm_eps = spec.rms_eps,
                                        .rope = &rope(l.index),
                                        .main = main,
                                        .entries = entries.cache,
                                        .wk = w.index_wk,
                                        .k_norm = w.index_k_norm,
                                        .index_compressor = w.index_compressor.wkv ? &index_keys : nullptr,
                                        .keys = l.has_index_keys ? keys.cache : PagedCache{}});
        done += rows;
      }
      const std::string stem = "compress_" + std::to_string(l.index);
      expect_records(stem + ".entry", records_of(step.rows(), entries), spec.compressed_record, g.bytes("entry_data"),
                     g.bytes("entry_scale"), 0.005);
      if (l.has_index_keys) {
        expect_records(stem + ".key", records_of(step.rows(), keys), RecordFormat::kIndexMxfp4, g.bytes("key_data"),
                       g.bytes("key_scale"), 0.005);
      }
      if (l.ratio > 1) {
        const std::vector<int32_t> positions = g.ints("state_positions");
        const int width = main.stored();
        std::vector<float> kv, gate;
        for (const int32_t position : positions) {
          const float* row = state.data() + static_cast<size_t>(position % capacity) * 2 * width;
          kv.insert(kv.end(), row, row + width);
          gate.insert(gate.end(), row + width, row + 2 * width);
        }
        expect_floats(stem + ".rows_kv", kv, g.floats("rows_kv"), 1e-6);
        expect_floats(stem + ".rows_gate", gate, g.floats("rows_gate"), 1e-6);
      }
      std::vector<std::byte> bytes = entries.bytes();
      const std::vector<std::byte> key_bytes = keys.bytes();
      bytes.insert(bytes.end(), key_bytes.begin(), key_bytes.end());
      if (whole.empty()) whole = bytes;
      EXPECT_EQ(whole, bytes) << stem << ": depends on how the prompt was cut";
    }
  }
}

TEST_P(GoldenAttention, Index) {
  const Golden g = golden("index");
  const std::vector<int32_t> positions = g.ints("positions");
  const Step step = rows_at(positions);
  const StepRows rows = step.rows();
  const int topk = spec.indexer.topk;
  const int words = 16;
  Array<uint32_t> candidates(positions.size() * words, 0xffffffffu);
  for (const LayerSpec& l : spec.layers) {
    if (!l.has_indexer || (generation == "v4" && l.index == 3)) continue;  // compress_3 of V4 is not stored
    const std::string stem = layer(l.index);
    const BlockWeights& w = model.weights.layers[l.index];
    const Golden owner = golden("compress_" + std::to_string(l.kv_owner));
    Pages keys(RecordFormat::kIndexMxfp4, 4, l.ratio);
    fill_pages(rows, keys, owner.bytes("key_data"), owner.bytes("key_scale"));
    Array<bf16> x(g.bf16s(stem + ".attn.x"));
    Array<bf16> qr(g.bf16s(stem + ".attn.qr"));
    Array<int32_t> picks(positions.size() * topk, 77);
    const Array<bf16> queries = rounded_product(*kernels, rows, w.index_wq_b, qr.data());
    const Array<bf16> head_weights = rounded_product(*kernels, rows, w.index_weights, x.data());
    IndexArgs args{.queries = queries.data(),
                   .head_weights = head_weights.data(),
                   .heads = spec.indexer.heads,
                   .ratio = l.ratio,
                   .hadamard = spec.indexer.hadamard,
                   .rope = &rope(l.index),
                   .keys = keys.cache,
                   .topk = topk,
                   .picks = picks.data()};
    if (l.candidate_source || l.candidate_masked) {
      args.mode = l.candidate_source ? IndexArgs::Candidates::kPublish : IndexArgs::Candidates::kApply;
      args.topk_blocks = spec.candidate.topk_blocks;
      args.block_size = spec.candidate.block_size;
      args.candidates = candidates.data();
      args.candidate_words = words;
    }
    kernels->index(rows, args);
    EXPECT_EQ(picks.vector(), g.ints(stem + ".index.picks")) << stem;
    if (l.candidate_source) {
      const std::vector<uint8_t> expected = g.bytes(stem + ".index.candidates");
      const size_t entries = expected.size() / positions.size();
      for (size_t row = 0; row < positions.size(); ++row) {
        for (size_t j = 0; j <= static_cast<size_t>(positions[row]); ++j) {
          const size_t block = j / spec.candidate.block_size;
          const bool kept = candidates[row * words + block / 32] >> (block % 32) & 1u;
          EXPECT_EQ(kept, expected[row * entries + j] != 0) << "row " << row << " entry " << j;
        }
      }
    }
  }
}

TEST_P(GoldenAttention, Attend) {
  for (const LayerSpec& l : spec.layers) {
    const std::string file = "attend_" + std::to_string(l.index);
    if (!std::filesystem::exists(std::string(ONELANE_ROOT) + "/tests/data/" + generation + "/" + file +
                                 ".safetensors")) {
      continue;
    }
    const Golden g = golden(file);
    const std::vector<int32_t> positions = g.ints("positions");
    const Step step = rows_at(positions);
    const StepRows rows = step.rows();
    const std::vector<uint8_t> data = g.bytes("kv_data");
    const std::vector<uint8_t> scale = g.bytes("kv_scale");
    const int data_bytes = record_data_bytes(spec.window_record);
    const int scale_bytes = record_scale_bytes(spec.window_record);
    const int total = static_cast<int>(data.size()) / data_bytes;
    // Every position stays in the ring, so that one step can ask about all of them; the row's own record is its own.
    Rings rings(spec.window_record, 1, total);
    Records kv(spec.window_record, rows.count);
    const auto put = [&](const RecordBlock& block, int record, int position) {
      std::copy_n(data.begin() + position * data_bytes, data_bytes, block.data(record));
      std::copy_n(scale.begin() + position * scale_bytes, scale_bytes, block.scales(record));
    };
    for (int position = 0; position < total; ++position) put(rings.cache.block(0), position, position);
    for (int row = 0; row < rows.count; ++row) put(kv.block, row, positions[row]);

    Array<bf16> q(g.bf16s("q"));
    Array<bf16> out(q.size());
    AttendArgs args{.q = q.data(),
                    .heads = spec.n_heads,
                    .kv = kv.block,
                    .ring = rings.cache,
                    .sink = model.weights.layers[l.index].sink,
                    .rope = &rope(l.index),
                    .ratio = l.ratio,
                    .out = out.data()};
    std::unique_ptr<Pages> entries;
    Array<int32_t> picks;
    if (l.ratio > 0) {
      entries = std::make_unique<Pages>(spec.compressed_record, 4, l.ratio);
      fill_pages(rows, *entries, g.bytes("entry_data"), g.bytes("entry_scale"));
      args.entries = entries->cache;
      if (l.index_owner >= 0) {
        picks = Array<int32_t>(g.ints("picks"));
        args.picks = picks.data();
        args.topk = spec.indexer.topk;
      }
    }
    kernels->attend(rows, args);
    const std::vector<bf16> expected = g.bf16s("out");
    const size_t width = out.size() / positions.size();
    for (size_t row = 0; row < positions.size(); ++row) {
      const std::string what = file + ".out of position " + std::to_string(positions[row]);
      const std::span<const bf16> actual(out.data() + row * width, width);
      const std::span<const bf16> golden_row(expected.data() + row * width, width);
      if (kernels->name() == "cuda") {
        expect_rms(what, actual, golden_row, kOtherMaximum);
      } else if (l.ratio == 0 || positions[row] >= kWindow - 1) {
        expect_bf16(what, actual, golden_row, kAttended);
      } else {
        expect_rms(what, actual, golden_row, kOtherSoftmaxBlocks);
      }
    }
  }
}

TEST_P(GoldenAttention, ProjectOut) {
  const Golden g = golden("project_out");
  const Step step = rows_at(g.ints("positions"));
  const StepRows rows = step.rows();
  for (const int index : {0, 1}) {
    const std::string stem = layer(index) + ".attn";
    Array<bf16> attended(g.bf16s(stem + ".out_unrotated"));
    Array<bf16> y(static_cast<size_t>(rows.count) * spec.hidden);
    kernels->project_out(rows, {.attended = attended.data(),
                                .heads = spec.n_heads,
                                .groups = spec.o_groups,
                                .wo_a = model.weights.layers[index].wo_a,
                                .wo_b = model.weights.layers[index].wo_b,
                                .y = y.data()});
    expect_bf16(stem + ".y", y.vector(), g.bf16s(stem + ".y"), {1, 0.01});
  }
}

// A draft block: ring of committed positions, five rows that see each other in both directions.
TEST_P(GoldenAttention, DraftBlock) {
  const Golden g = golden("draft_block");
  for (const std::string label : {"long", "short"}) {
    const std::vector<int32_t> held = g.ints(label + ".ring_positions");
    Step step;
    step.run(held.back() + 1, spec.dspark.block_size);
    const StepRows rows = step.rows();
    for (const LayerSpec& stage : spec.draft_stages) {
      const std::string stem = label + ".mtp." + std::to_string(stage.index);
      const BlockWeights& w = model.weights.stages[stage.index];
      Array<bf16> x(g.bf16s(stem + ".attn.x"));
      Array<bf16> qr(static_cast<size_t>(rows.count) * spec.q_lora);
      Array<bf16> q(static_cast<size_t>(rows.count) * spec.n_heads * kHeadDim);
      Records kv(spec.window_record, rows.count);
      kernels->project_qkv(rows, {.x = x.data(),
                                  .dim = spec.hidden,
                                  .wq_a = w.wq_a,
                                  .wq_b = w.wq_b,
                                  .wkv = w.wkv,
                                  .q_norm = w.q_norm,
                                  .kv_norm = w.kv_norm,
                                  .q_head_norm = spec.q_head_norm,
                                  .norm_eps = spec.rms_eps,
                                  .rope = &model.rope(stage),
                                  .heads = spec.n_heads,
                                  .qr = qr.data(),
                                  .q = q.data(),
                                  .kv = kv.block});
      expect_records(stem + ".kv", records_of(kv.block), spec.window_record, g.bytes(stem + ".kv_data"),
                     g.bytes(stem + ".kv_scale"), 0.005);
      Rings rings(spec.window_record, 1, spec.ring_slots());
      const std::vector<uint8_t> data = g.bytes(stem + ".ring_data");
      const std::vector<uint8_t> scale = g.bytes(stem + ".ring_scale");
      const RecordBlock ring = rings.cache.block(0);
      const int data_bytes = record_data_bytes(spec.window_record);
      const int scale_bytes = record_scale_bytes(spec.window_record);
      for (size_t i = 0; i < held.size(); ++i) {
        const int record = held[i] % rings.cache.capacity;
        std::copy_n(data.data() + i * data_bytes, data_bytes, ring.data(record));
        std::copy_n(scale.data() + i * scale_bytes, scale_bytes, ring.scales(record));
      }
      Array<bf16> out(q.size());
      kernels->attend(rows, {.q = q.data(),
                             .heads = spec.n_heads,
                             .kv = kv.block,
                             .ring = rings.cache,
                             .block_attention = true,
                             .sink = w.sink,
                             .rope = &model.rope(stage),
                             .out = out.data()});
      const std::vector<bf16> expected = g.bf16s(stem + ".attn.out_unrotated");
      if (kernels->name() == "cuda") {
        expect_rms(stem + ".out_unrotated", out.vector(), expected, kOtherMaximum);
      } else {
        expect_bf16(stem + ".out_unrotated", out.vector(), expected, kAttended);
      }
    }
  }
}

}  // namespace
}  // namespace onelane
