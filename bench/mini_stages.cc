#include "mini_stages.h"

namespace onelane::bench {
namespace {

constexpr int kCapacity = kWindow + 6;

size_t area(int64_t a, int64_t b) { return static_cast<size_t>(a * b); }
double product(int64_t a, int64_t b, int64_t c = 1) { return static_cast<double>(a * b * c); }

}  // namespace

template <class T>
T* MiniStages::make(size_t count, const std::function<T()>& value) {
  buffers_.emplace_back(count * sizeof(T));
  T* data = reinterpret_cast<T*>(buffers_.back().data());
  for (size_t i = 0; i < count; ++i) data[i] = value();
  return data;
}
template <class T>
T* MiniStages::zeros(size_t count) {
  return make<T>(count, [] { return T{}; });
}
float* MiniStages::floats(size_t count, float scale) {
  std::normal_distribution<float> normal(0, scale);
  return make<float>(count, [&] { return normal(engine_); });
}
bf16* MiniStages::normals(size_t count, float scale) {
  std::normal_distribution<float> normal(0, scale);
  return make<bf16>(count, [&] { return float_to_bf16(normal(engine_)); });
}

Matrix MiniStages::fp8(int out, int in, bool activations) {
  std::normal_distribution<float> normal(0, 60);
  const auto* data = make<uint8_t>(area(out, in), [&] { return float_to_e4m3(normal(engine_)); });
  const auto code = static_cast<uint8_t>(127 - 6 - std::lround(std::log2(std::sqrt(in))));
  const uint8_t* scale = make<uint8_t>(area((out + 31) / 32, (in + 31) / 32), [&] { return code; });
  return {Matrix::Kind::kFp8, out, in, 32, activations ? 32 : 0, reinterpret_cast<const std::byte*>(data), scale};
}
Matrix MiniStages::fp4(int out, int in) {
  const auto* data = make<uint8_t>(area(out, in / 2), [&] { return static_cast<uint8_t>(engine_()); });
  const auto code = static_cast<uint8_t>(127 - 1 - std::lround(std::log2(std::sqrt(in))));
  const uint8_t* scale = make<uint8_t>(area(out, in / 32), [&] { return code; });
  return {Matrix::Kind::kFp4, out, in, 0, 32, reinterpret_cast<const std::byte*>(data), scale};
}
Matrix MiniStages::plain(int out, int in) {
  const bf16* data = normals(area(out, in), 1 / std::sqrt(static_cast<float>(in)));
  return {Matrix::Kind::kBf16, out, in, 0, 0, reinterpret_cast<const std::byte*>(data), nullptr};
}
double MiniStages::matrix_bytes(const Matrix& m) const {
  const double count = product(m.out, m.in);
  return m.kind == Matrix::Kind::kBf16 ? 2 * count : m.kind == Matrix::Kind::kFp8 ? count : count / 2 + count / 32;
}

void MiniStages::fill_records(const RecordBlock& block) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(record_width(block.format)));
  for (int i = 0; i < block.capacity; ++i) {
    for (float& value : values) value = normal(engine_);
    encode_record(block.format, values.data(), block.data(i), block.scales(i));
  }
}
RingCache MiniStages::ring() {
  const size_t bytes = RecordBlock::bytes(RecordFormat::kV41Fp8, kCapacity);
  RingCache ring{reinterpret_cast<std::byte*>(zeros<uint8_t>(bytes * runs_.size())), bytes, kCapacity,
                 RecordFormat::kV41Fp8};
  for (const RowRun& run : runs_) fill_records(ring.block(run.slot));
  return ring;
}
PagedCache MiniStages::pages(RecordFormat format, int ratio, int count) {
  const int per_page = kPageTokens / ratio;
  const size_t bytes = RecordBlock::bytes(format, per_page);
  PagedCache cache{reinterpret_cast<std::byte*>(zeros<uint8_t>(bytes * static_cast<size_t>(count))), bytes, 0, per_page,
                   format};
  for (int page = 0; page < count; ++page) fill_records(cache.block(page));
  return cache;
}

void MiniStages::add(const std::string& name, double per_step, double macs, double weight_bytes,
                     std::function<void(Kernels&)> call) {
  calls_.push_back({name, std::move(call), per_step, macs, weight_bytes});
}

MiniStages::MiniStages(int position, int rows_each, int streams)
    : rope_(make_rope_frequencies(160000, 16, 32, 1, 65536)) {
  const int rows = rows_each * streams;
  const int page_count = (position + rows_each + kPageTokens - 1) / kPageTokens;
  for (int stream = 0; stream < streams; ++stream) {
    runs_.push_back({stream * rows_each, rows_each, position, stream});
    for (int row = 0; row < rows_each; ++row) {
      token_.push_back((stream * rows_each + row) % s_.vocab);
      position_.push_back(position + row);
      run_of_.push_back(stream);
    }
    logit_row_.push_back((stream + 1) * rows_each - 1);
    for (int page = 0; page < page_count; ++page) page_table_.push_back(stream * page_count + page);
  }
  rows_ = {rows,         token_.data(), position_.data(),   run_of_.data(),
           runs_.data(), streams,       page_table_.data(), page_count};

  const int dim = s_.dim;
  stream_ = normals(area(rows, kStreams * dim));
  x_ = normals(area(rows, dim));
  y_ = normals(area(rows, dim));
  qr_ = normals(area(rows, s_.q_lora));
  q_ = normals(area(rows, s_.heads * kHeadDim));
  attended_ = normals(area(rows, s_.heads * kHeadDim));
  kv_ = {reinterpret_cast<std::byte*>(zeros<uint8_t>(RecordBlock::bytes(RecordFormat::kV41Fp8, rows))),
         RecordFormat::kV41Fp8, rows};
  fill_records(kv_);
  ring_ = ring();

  add_stream_stages();
  add_attention_stages();
  add_compressed_stages(2, 1, 1, 2);
  add_compressed_stages(1, 1, 2, 3);
  add_feed_forward_stages();
  add_head();
}

void MiniStages::add_stream_stages() {
  const int dim = s_.dim;
  const int rows = rows_.count;
  const bf16* table = normals(area(s_.vocab, dim));
  bf16* fresh = zeros<bf16>(area(rows, kStreams * dim));
  add("embed", 1, 0, 0, [=, this](Kernels& k) { k.embed(rows_, {table, dim, fresh}); });

  const MixWeights mix{floats(area(kMixes, kStreams * dim), 0.03f), floats(kMixes), floats(3)};
  MixArgs args{.stream = stream_, .dim = dim, .weights = mix, .norm_eps = 1e-20f, .mix_eps = 1e-6f};
  args.collapse_with = floats(area(rows, kStreams));
  args.norm = normals(static_cast<size_t>(dim));
  args.pre = zeros<float>(area(rows, kStreams));
  args.post = floats(area(rows, kStreams));
  args.comb = floats(area(rows, kStreams * kStreams), 0.25f);
  args.x = zeros<bf16>(area(rows, dim));
  add("mix_streams", 12, product(rows, kMixes, kStreams * dim), product(kMixes, kStreams * dim, 4),
      [=, this](Kernels& k) { k.mix_streams(rows_, args); });
  // In place: from a copy of its own, with coefficients that keep it from growing.
  bf16* stream = normals(area(rows, kStreams * dim));
  float* comb = make<float>(area(rows, kStreams * kStreams), [] { return 0.2f; });
  add("expand_streams", 12, product(rows, kStreams * (kStreams + 1), dim), 0,
      [=, this](Kernels& k) { k.expand_streams(rows_, {stream, dim, y_, args.post, comb}); });

  EngramArgs engram{.stream = normals(area(rows, kStreams * dim)), .dim = dim};
  std::uniform_int_distribution<int32_t> any(0, s_.table_rows - 1);
  engram.table_rows = make<int32_t>(area(rows, s_.columns), [&] { return any(engine_); });
  engram.columns = s_.columns;
  std::normal_distribution<float> normal(0, 60);
  engram.table = make<uint8_t>(area(s_.table_rows, s_.engram_width), [&] { return float_to_e4m3(normal(engine_)); });
  engram.table_scale = make<uint8_t>(static_cast<size_t>(s_.table_rows), [] { return uint8_t{121}; });
  engram.width = s_.engram_width;
  engram.wkv = fp8((kStreams + 1) * dim, s_.columns * s_.engram_width);
  engram.q_weight = normals(area(kStreams, dim));
  engram.k_weight = normals(area(kStreams, dim));
  engram.norm_eps = 1e-20f;
  add("engram", 2, product(rows, engram.wkv.out, engram.wkv.in), matrix_bytes(engram.wkv),
      [=, this](Kernels& k) { k.engram(rows_, engram); });
}

void MiniStages::add_attention_stages() {
  const int dim = s_.dim;
  const int rows = rows_.count;
  QkvArgs qkv{.x = x_, .dim = dim};
  qkv.wq_a = fp8(s_.q_lora, dim);
  qkv.wq_b = fp8(s_.heads * kHeadDim, s_.q_lora);
  qkv.wkv = fp8(kHeadDim, dim);
  qkv.q_norm = normals(static_cast<size_t>(s_.q_lora));
  qkv.kv_norm = normals(kHeadDim);
  qkv.norm_eps = 1e-20f;
  qkv.rope = &rope_;
  qkv.heads = s_.heads;
  qkv.qr = zeros<bf16>(area(rows, s_.q_lora));
  qkv.q = zeros<bf16>(area(rows, s_.heads * kHeadDim));
  qkv.kv = {reinterpret_cast<std::byte*>(zeros<uint8_t>(RecordBlock::bytes(RecordFormat::kV41Fp8, rows))),
            RecordFormat::kV41Fp8, rows};
  const double weights = matrix_bytes(qkv.wq_a) + matrix_bytes(qkv.wq_b) + matrix_bytes(qkv.wkv);
  add("project_qkv", 6, rows * weights, weights, [=, this](Kernels& k) { k.project_qkv(rows_, qkv); });

  AttendArgs attend{.q = q_, .heads = s_.heads, .kv = kv_, .ring = ring_};
  attend.sink = floats(static_cast<size_t>(s_.heads));
  attend.rope = &rope_;
  attend.out = zeros<bf16>(area(rows, s_.heads * kHeadDim));
  add("attend, window", 1, product(rows, 2 * kWindow, s_.heads * kHeadDim), 0,
      [=, this](Kernels& k) { k.attend(rows_, attend); });
  RingCache written = ring();
  add("commit", 6, 0, 0, [=, this](Kernels& k) { k.commit(rows_, {kv_, written}); });

  ProjectOutArgs out{.attended = attended_, .heads = s_.heads, .groups = s_.groups};
  out.wo_a = fp8(s_.groups * s_.o_lora, s_.heads / s_.groups * kHeadDim, false);
  out.wo_b = fp8(dim, s_.groups * s_.o_lora);
  out.y = zeros<bf16>(area(rows, dim));
  const double out_weights = matrix_bytes(out.wo_a) + matrix_bytes(out.wo_b);
  add("project_out", 6, rows * out_weights, out_weights, [=, this](Kernels& k) { k.project_out(rows_, out); });
}

// Of the layers with this ratio: `owners` that compress, `indexers` with an indexer, `readers` that attend.
void MiniStages::add_compressed_stages(int ratio, int owners, int indexers, int readers) {
  const int dim = s_.dim;
  const int rows = rows_.count;
  const int slot_pages = rows_.pages_per_slot;
  const int page_count = slot_pages * rows_.run_count;
  const int last = runs_[0].first_position + runs_[0].count;
  const std::string suffix = ", ratio " + std::to_string(ratio);

  // Their products of x and of low-rank queries, which project_qkv makes.
  QkvArgs products{.x = x_, .dim = dim};
  products.rope = &rope_;
  products.qr = qr_;
  double product_work = 0, product_bytes = 0;
  const auto ask = [&](SideProduct side) {
    product_work += product(rows, side.weights.out, side.weights.in);
    product_bytes += matrix_bytes(side.weights);
    return side;
  };

  CompressArgs compress{.ratio = ratio, .norm_eps = 1e-20f, .rope = &rope_};
  if (ratio > 1) {
    float* kv = zeros<float>(area(rows, kHeadDim));
    float* gate = zeros<float>(area(rows, kHeadDim));
    products.of_x[0] = ask({.weights = plain(kHeadDim, dim), .exact = kv});
    products.of_x[1] = ask({.weights = plain(kHeadDim, dim), .exact = gate});
    compress.main.kv = kv;
    compress.main.gate = gate;
  } else {
    bf16* latent = zeros<bf16>(area(rows, kHeadDim));
    products.of_x[0] = ask({.weights = plain(kHeadDim, dim), .rounded = latent});
    compress.main.latent = latent;
  }
  add("products of x for compress" + suffix, owners, product_work, product_bytes,
      [=, this](Kernels& k) { k.project_qkv(rows_, products); });
  compress.main.norm = normals(kHeadDim);
  compress.main.width = kHeadDim;
  const int capacity = ratio + 6;
  if (ratio > 1) {
    const size_t slot_floats = area(capacity, 2 * kHeadDim);
    compress.main.state = {floats(slot_floats * runs_.size()), slot_floats, capacity};
  }
  compress.entries = pages(RecordFormat::kV41Nvfp4, ratio, page_count);
  compress.wk = plain(kIndexDim, kHeadDim);
  compress.k_norm = normals(kIndexDim);
  compress.keys = pages(RecordFormat::kIndexMxfp4, ratio, page_count);
  const double entries_made = static_cast<double>(rows) / ratio;
  add("compress" + suffix, owners, entries_made * product(kIndexDim, kHeadDim), 2 * product(kIndexDim, kHeadDim),
      [=, this](Kernels& k) { k.compress(rows_, compress); });

  bf16* head_weights = zeros<bf16>(area(rows, s_.index_heads));
  bf16* queries = zeros<bf16>(area(rows, s_.index_heads * kIndexDim));
  product_work = product_bytes = 0;
  products.of_x[0] = ask({.weights = plain(s_.index_heads, dim), .rounded = head_weights});
  products.of_x[1] = {};
  products.of_qr = ask({.weights = fp8(s_.index_heads * kIndexDim, s_.q_lora), .rounded = queries});
  add("products for index" + suffix, indexers, product_work, product_bytes,
      [=, this](Kernels& k) { k.project_qkv(rows_, products); });

  IndexArgs index{.queries = queries, .head_weights = head_weights};
  index.heads = s_.index_heads;
  index.ratio = ratio;
  index.rope = &rope_;
  index.keys = pages(RecordFormat::kIndexMxfp4, ratio, page_count);
  index.topk = s_.picks;
  index.picks = zeros<int32_t>(area(rows, s_.picks));
  if (ratio == 1) {
    index.mode = IndexArgs::Candidates::kPublish;
    index.topk_blocks = s_.topk_blocks;
    index.block_size = s_.block_size;
    index.candidate_words = (slot_pages * kPageTokens / s_.block_size + 31) / 32;
    index.candidates = zeros<uint32_t>(area(rows, index.candidate_words));
  }
  add("index" + suffix, indexers, product(rows, last / ratio, s_.index_heads * kIndexDim), 0,
      [=, this](Kernels& k) { k.index(rows_, index); });

  AttendArgs attend{.q = q_, .heads = s_.heads, .kv = kv_, .ring = ring_};
  attend.sink = floats(static_cast<size_t>(s_.heads));
  attend.rope = &rope_;
  attend.ratio = ratio;
  attend.entries = compress.entries;
  attend.topk = s_.picks;
  // Picks spread over what a row can see, other ones for every row.
  int place = 0;
  attend.picks = make<int32_t>(area(rows, s_.picks), [&] {
    const int row = place / s_.picks;
    const int i = place++ % s_.picks;
    const int visible = (position_[static_cast<size_t>(row)] + 1) / ratio;
    if (visible <= s_.picks) return i < visible ? i : -1;
    const int stride = visible / s_.picks;
    return i * stride + row % stride;
  });
  attend.out = zeros<bf16>(area(rows, s_.heads * kHeadDim));
  add("attend" + suffix, readers, product(rows, 2 * (kWindow + s_.picks), s_.heads * kHeadDim), 0,
      [=, this](Kernels& k) { k.attend(rows_, attend); });
}

void MiniStages::add_feed_forward_stages() {
  const int dim = s_.dim;
  const int rows = rows_.count;
  RouteArgs route{.x = x_, .dim = dim, .gate = plain(s_.experts, dim)};
  route.bias = floats(static_cast<size_t>(s_.experts), 0.01f);
  route.experts = s_.experts;
  route.topk = s_.topk;
  route.norm_eps = 1e-20f;
  route.scale = 1.5f;
  route.ids = zeros<int32_t>(area(rows, s_.topk));
  route.weights = zeros<float>(area(rows, s_.topk));
  add("route", 6, product(rows, s_.experts, dim), matrix_bytes(route.gate),
      [=, this](Kernels& k) { k.route(rows_, route); });

  for (int e = 0; e < s_.experts; ++e) experts_.push_back({fp4(s_.inter, dim), fp4(dim, s_.inter), fp4(s_.inter, dim)});
  ExpertsArgs experts{.x = x_, .dim = dim, .inter = s_.inter};
  experts.experts = experts_.data();
  experts.expert_count = s_.experts;
  int place = 0;
  experts.ids = make<int32_t>(area(rows, s_.topk), [&] { return place++ * 3 % s_.experts; });
  experts.weights = make<float>(area(rows, s_.topk), [] { return 0.75f; });
  experts.topk = s_.topk;
  experts.shared = {fp8(s_.inter, dim), fp8(dim, s_.inter), fp8(s_.inter, dim)};
  experts.limit = 10;
  experts.y = zeros<bf16>(area(rows, dim));
  const double expert_macs = 3 * product(s_.inter, dim);
  const double distinct = std::min(s_.experts, rows * s_.topk);
  add("experts", 6, rows * (s_.topk + 1) * expert_macs, distinct * expert_macs * (0.5 + 1.0 / 32) + expert_macs,
      [=, this](Kernels& k) { k.experts(rows_, experts); });
}

void MiniStages::add_head() {
  const int dim = s_.dim;
  HeadArgs head{.stream = stream_, .dim = dim, .rows = logit_row_.data(), .count = rows_.run_count};
  head.collapse_with = floats(area(rows_.count, kStreams));
  head.norm_eps = 1e-20f;
  head.norm = normals(static_cast<size_t>(dim));
  head.head = plain(s_.vocab, dim);
  head.logits = zeros<float>(area(head.count, s_.vocab));
  add("head", 1, product(head.count, s_.vocab, dim), matrix_bytes(head.head),
      [=, this](Kernels& k) { k.head(rows_, head); });
}

}  // namespace onelane::bench
