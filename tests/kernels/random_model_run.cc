// Running the random model: the stages in the order of the forward pass.
#include <cstring>

#include "kernels/random_model.h"

namespace onelane::testing {
namespace {

template <class T>
T* shifted(T* data, int row, int width) {
  return data + static_cast<ptrdiff_t>(row) * width;
}

}  // namespace

// Working memory of a step.
struct RandomModel::Work {
  Work(int rows, int dim, int q_lora)
      : stream(rows * kStreams * dim),
        x(rows * dim),
        y(rows * dim),
        qr(rows * q_lora),
        q(rows * kHeads * kHeadDim),
        attended(rows * kHeads * kHeadDim),
        index_queries(rows * kIndexHeads * kIndexDim),
        head_weights(rows * kIndexHeads),
        pre(rows * kStreams),
        ffn_pre(rows * kStreams),
        post(rows * kStreams),
        comb(rows * kStreams * kStreams),
        picks(rows * kPicks),
        candidates(rows * kCandidateWords),
        ids(rows * kExperts),
        weights(rows * kExperts),
        logits(rows * kVocab),
        best(rows),
        hidden(rows * dim),
        taps(rows * 2 * dim),
        main_x(rows * dim) {}
  Array<bf16> stream, x, y, qr, q, attended, index_queries, head_weights;
  Array<float> pre, ffn_pre, post, comb;
  PoolProducts pooled, index_pooled;
  Array<int32_t> picks;
  Array<uint32_t> candidates;
  Array<int32_t> ids;
  Array<float> weights, logits;
  Array<int32_t> best;
  Array<bf16> hidden, taps, main_x;
  std::unique_ptr<Records> kv;
  const StepRows* step = nullptr;
  Trace* trace = nullptr;

  template <class T>
  void note(const char* stage, const Array<T>& values, int width) const {
    if (trace == nullptr) return;
    for (int row = 0; row < step->count; ++row) {
      std::vector<T> part(shifted(values.data(), row, width), shifted(values.data(), row + 1, width));
      for (T& value : part) {
        if constexpr (std::is_same_v<T, float>) value = std::isnan(value) ? NAN : value;
        if constexpr (std::is_same_v<T, bf16>) value = std::isnan(bf16_to_float(value)) ? 0x7fc0 : value;
      }
      const auto* bytes = reinterpret_cast<const std::byte*>(part.data());
      (*trace)[{step->runs[step->run_of[row]].slot, step->position[row]}].push_back(
          {stage, {bytes, bytes + part.size() * sizeof(T)}});
    }
  }
};

void RandomModel::attention(Kernels& kernels, ModelCaches& caches, const StepRows& rows, size_t number,
                            Work& work) const {
  const Layer& l = layers_[number];
  const RopeFrequencies& rope = l.ratio == 0 ? table_a() : table_b();
  QkvArgs qkv{.x = work.x.data(),
              .dim = dim_,
              .wq_a = l.wq_a.matrix,
              .wq_b = l.wq_b.matrix,
              .wkv = l.wkv.matrix,
              .q_norm = l.q_norm.data(),
              .kv_norm = l.kv_norm.data(),
              .q_head_norm = !options_.v41,
              .norm_eps = eps_,
              .rope = &rope,
              .heads = kHeads,
              .qr = work.qr.data(),
              .q = work.q.data(),
              .kv = work.kv->block};
  Compressor main = l.main.compressor, index = l.index.compressor;
  const bool own_keys = static_cast<bool>(l.index.wkv.matrix);
  if (l.compresses) work.pooled.ask(rows.count, l.main.wkv.matrix, l.main.wgate.matrix, qkv.of_x, main);
  if (own_keys) work.index_pooled.ask(rows.count, l.index.wkv.matrix, l.index.wgate.matrix, qkv.of_x + 2, index);
  if (l.indexes) {
    qkv.of_x[4] = {.weights = l.index_weights.matrix, .rounded = work.head_weights.data()};
    qkv.of_qr = {.weights = l.index_wq_b.matrix, .rounded = work.index_queries.data()};
  }
  kernels.project_qkv(rows, qkv);
  work.note("qr", work.qr, q_lora_);
  work.note("q", work.q, kHeads * kHeadDim);
  const auto state = [](Buffer& buffer, const Compressor& compressor) {
    const size_t slot_floats = buffer.size() / sizeof(float) / kSlots;
    if (slot_floats == 0) return CompressorState{};
    return CompressorState{buffer.as<float>().data(), slot_floats,
                           static_cast<int>(slot_floats / (2 * compressor.stored()))};
  };
  if (l.compresses) {
    if (l.ratio > 1) main.state = state(caches.states[number], main);
    if (own_keys) index.state = state(caches.index_states[number], index);
    CompressArgs args{.ratio = l.ratio,
                      .norm_eps = eps_,
                      .rope = &rope,
                      .main = main,
                      .entries = caches.entries[number].cache,
                      .wk = l.wk.matrix,
                      .k_norm = l.k_norm.data(),
                      .index_compressor = own_keys ? &index : nullptr};
    if (l.indexes) args.keys = caches.keys[number].cache;
    kernels.compress(rows, args);
  }
  const size_t owner = l.owner < 0 ? number : static_cast<size_t>(l.owner);
  if (l.indexes) {
    kernels.index(rows, {.queries = work.index_queries.data(),
                         .head_weights = work.head_weights.data(),
                         .heads = kIndexHeads,
                         .ratio = l.ratio,
                         .hadamard = !options_.v41,
                         .rope = &rope,
                         .keys = caches.keys[owner].cache,
                         .topk = kPicks,
                         .picks = work.picks.data(),
                         .mode = l.mode,
                         .topk_blocks = kTopkBlocks,
                         .block_size = kBlockSize,
                         .candidates = work.candidates.data(),
                         .candidate_words = kCandidateWords});
    work.note("picks", work.picks, kPicks);
  }
  AttendArgs args{.q = work.q.data(),
                  .heads = kHeads,
                  .kv = work.kv->block,
                  .ring = caches.rings[number].cache,
                  .sink = l.sink.data(),
                  .rope = &rope,
                  .ratio = l.ratio,
                  .entries = caches.entries[owner].cache,
                  .out = work.attended.data()};
  if (l.indexes) {
    args.picks = work.picks.data();
    args.topk = kPicks;
  }
  kernels.attend(rows, args);
  work.note("attend", work.attended, kHeads * kHeadDim);
  kernels.commit(rows, {.kv = work.kv->block, .ring = caches.rings[number].cache});
  kernels.project_out(rows, {.attended = work.attended.data(),
                             .heads = kHeads,
                             .groups = kGroups,
                             .wo_a = l.wo_a.matrix,
                             .wo_b = l.wo_b.matrix,
                             .y = work.y.data()});
  work.note("project_out", work.y, dim_);
}

void RandomModel::feed_forward(Kernels& kernels, const StepRows& rows, const Layer& l, Work& work) const {
  const RouteArgs router{.x = work.x.data(),
                         .dim = dim_,
                         .gate = l.gate.matrix,
                         .bias = l.hash ? nullptr : l.bias.data(),
                         .tid2eid = l.hash ? l.tid2eid.data() : nullptr,
                         .experts = kExperts,
                         .topk = options_.topk,
                         .normalise = options_.normalise,
                         .norm_eps = options_.v41 ? 1e-20f : 0.0f,
                         .scale = 1.5f,
                         .ids = work.ids.data(),
                         .weights = work.weights.data()};
  kernels.experts(rows, {.router = &router,
                         .x = work.x.data(),
                         .dim = dim_,
                         .inter = inter_,
                         .experts = l.expert_weights.data(),
                         .expert_count = kExperts,
                         .ids = work.ids.data(),
                         .weights = work.weights.data(),
                         .topk = options_.topk,
                         .shared = l.shared.weights(),
                         .limit = 1.5f,
                         .y = work.y.data()});
  work.note("ids", work.ids, options_.topk);
  work.note("weights", work.weights, options_.topk);
  work.note("experts", work.y, dim_);
}

void RandomModel::run(Kernels& kernels, ModelCaches& caches, Step& step, Trace* trace, bool with_draft) const {
  StepRows rows = step.rows();
  std::vector<int32_t> tokens;
  for (int row = 0; row < rows.count; ++row)
    tokens.push_back(token(rows.runs[rows.run_of[row]].slot, rows.position[row]));
  rows.token = tokens.data();
  Work work(rows.count, dim_, q_lora_);
  work.kv = std::make_unique<Records>(caches.draft_ring.cache.format, rows.count);
  work.step = &rows;
  work.trace = trace;
  kernels.embed(rows, {embed_.data(), dim_, work.stream.data()});
  for (int i = 0; i < rows.count * kStreams; ++i) work.ffn_pre[i] = i % kStreams == 0 ? 1.0f : 0.0f;

  const auto mix = [&](const Mixing& mixing, const Array<bf16>& norm, const Array<float>& previous, Array<float>& pre) {
    kernels.mix_streams(rows, {.stream = work.stream.data(),
                               .dim = dim_,
                               .weights = mixing.weights(),
                               .norm_eps = eps_,
                               .mix_eps = 1e-6f,
                               .iterations = 20,
                               .collapse_with = options_.v41 ? previous.data() : nullptr,
                               .norm = norm.data(),
                               .pre = pre.data(),
                               .post = work.post.data(),
                               .comb = work.comb.data(),
                               .x = work.x.data()});
    work.note("pre", pre, kStreams);
    work.note("comb", work.comb, kStreams * kStreams);
    work.note("x", work.x, dim_);
  };
  const auto expand = [&] {
    kernels.expand_streams(rows, {work.stream.data(), dim_, work.y.data(), work.post.data(), work.comb.data()});
    work.note("expand", work.stream, kStreams * dim_);
  };
  for (size_t number = 0; number < layers_.size(); ++number) {
    const Layer& l = layers_[number];
    if (l.engram) {
      Array<int32_t> table_rows(rows.count * kColumns);
      for (int i = 0; i < rows.count * kColumns; ++i)
        table_rows[i] = (tokens[i / kColumns] * 5 + i % kColumns) % kTableRows;
      kernels.engram(rows, {.stream = work.stream.data(),
                            .dim = dim_,
                            .table_rows = table_rows.data(),
                            .columns = kColumns,
                            .table = engram_table_.data(),
                            .table_scale = engram_scale_.data(),
                            .width = kEngramWidth,
                            .wkv = engram_wkv_.matrix,
                            .q_weight = engram_q_.data(),
                            .k_weight = engram_k_.data(),
                            .norm_eps = eps_});
      work.note("engram", work.stream, kStreams * dim_);
    }
    if (number < 2)
      kernels.tap(rows, {work.stream.data(), dim_, work.taps.data(), 2 * dim_, static_cast<int>(number) * dim_});
    mix(l.attn_mix, l.attn_norm, work.ffn_pre, work.pre);
    attention(kernels, caches, rows, number, work);
    expand();
    mix(l.ffn_mix, l.ffn_norm, work.pre, work.ffn_pre);
    feed_forward(kernels, rows, l, work);
    expand();
  }
  std::vector<int32_t> every;
  for (int row = 0; row < rows.count; ++row) every.push_back(row);
  kernels.head(rows, {.stream = work.stream.data(),
                      .dim = dim_,
                      .rows = every.data(),
                      .count = rows.count,
                      .collapse_with = options_.v41 ? work.ffn_pre.data() : nullptr,
                      .mix = head_mix_.weights(),
                      .norm_eps = eps_,
                      .mix_eps = 1e-6f,
                      .norm = norm_.data(),
                      .head = head_.matrix,
                      .hidden = work.hidden.data(),
                      .logits = work.logits.data(),
                      .best = work.best.data()});
  work.note("hidden", work.hidden, dim_);
  work.note("logits", work.logits, kVocab);
  work.note("best", work.best, 1);
  draft(kernels, caches, rows, work);
  if (!with_draft) return;
  kernels.attend(rows, {.q = work.q.data(),
                        .heads = kHeads,
                        .kv = work.kv->block,
                        .ring = caches.draft_ring.cache,
                        .block_attention = true,
                        .sink = layers_[0].sink.data(),
                        .rope = &table_a(),
                        .out = work.attended.data()});
}

// The drafter's own stages: tap, its input, its ring, one link of the Markov chain.
void RandomModel::draft(Kernels& kernels, ModelCaches& caches, const StepRows& rows, Work& work) const {
  work.note("taps", work.taps, 2 * dim_);
  kernels.main_input(rows, {work.taps.data(), main_proj_.matrix, main_norm_.data(), eps_, work.main_x.data()});
  work.note("main_x", work.main_x, dim_);
  const Layer& l = layers_[0];
  kernels.project_qkv(rows, {.x = work.main_x.data(),
                             .dim = dim_,
                             .wkv = l.wkv.matrix,
                             .kv_norm = l.kv_norm.data(),
                             .norm_eps = eps_,
                             .rope = &table_a(),
                             .kv = work.kv->block});
  kernels.commit(rows, {.kv = work.kv->block, .ring = caches.draft_ring.cache});
  Array<float> confidence(rows.count);
  for (int row = 0; row < rows.count; ++row) {
    kernels.markov(rows, {.row = row,
                          .w1 = markov_w1_.data(),
                          .w2 = markov_w2_.matrix,
                          .confidence = confidence_.matrix,
                          .hidden = shifted(work.hidden.data(), row, dim_),
                          .dim = dim_,
                          .rank = kRank,
                          .logits = shifted(work.logits.data(), row, kVocab),
                          .confidence_out = confidence.data() + row});
  }
  Array<int32_t> best(rows.count);
  kernels.choose(rows, {.logits = work.logits.data(), .count = rows.count, .vocab = kVocab, .best = best.data()});
  work.note("markov", work.logits, kVocab);
  work.note("best", best, 1);
  work.note("confidence", confidence, 1);
}

std::string first_difference(const Trace& a, const Trace& b) {
  for (const auto& [row, items] : a) {
    const auto other = b.find(row);
    const std::string where = "slot " + std::to_string(row.first) + " position " + std::to_string(row.second);
    if (other == b.end()) return where + " is missing";
    if (items.size() != other->second.size()) return where + " went through other stages";
    for (size_t i = 0; i < items.size(); ++i) {
      const std::vector<std::byte>& x = items[i].bytes;
      const std::vector<std::byte>& y = other->second[i].bytes;
      if (x == y) continue;
      const auto at = std::mismatch(x.begin(), x.end(), y.begin()).first - x.begin();
      return where + " item " + std::to_string(i) + " (" + items[i].stage + ") byte " + std::to_string(at);
    }
  }
  return a.size() == b.size() ? "" : "one trace has more rows";
}

}  // namespace onelane::testing
