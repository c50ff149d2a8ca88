// Kernels: the contract between the one forward pass (src/model) and whatever computes it.
//
// Every entry is a *stage*: as much of the model as can be fused into one launch. The forward pass calls the stages in
// order and owns no arithmetic; an implementation owns no model. Three implementations keep this contract: `reference`
// (plain loops, double accumulation: the oracle), `cpu` (SIMD, threads) and the CUDA plugin.
//
// Conventions
// - `bf16` is a uint16_t holding a bfloat16; matrices are row-major; a shape in brackets is [rows, ...].
// - Rows, not batches. A step is a list of rows; decode, verify and prefill rows are the same thing. Rows of one
//   sequence stand together in ascending position order and form a *run*.
// - Batch invariance. The bits a row gets depend on its sequence up to its position and on nothing else: not on rows
//   beside it, not on how a prompt was cut into steps, not on the number of threads.
// - `round` in a contract is one rounding to bf16. Between two roundings `reference` and `cpu` compute as if
//   exactly: in double, rounded to float where a result is stored as float and on its way to a bf16. So they agree
//   to the bit, but for values next to a rounding boundary. An implementation that sums in single precision agrees
//   with them up to rounding noise, which a trained model magnifies about tenfold per layer. Stages marked EXACT
//   agree to the bit in any implementation.
// - Bad numbers are contained: NaN or infinity in one row reaches only rows of the same sequence.
// - Bad shapes are programming errors (ONELANE_CHECK): the loader has checked every tensor.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/memory.h"
#include "numerics/records.h"

namespace onelane {

using bf16 = uint16_t;

inline constexpr int kStreams = 4;       // copies in the hyper-connection residual stream
inline constexpr int kMixes = 24;        // pre 4, post 4, comb 16
inline constexpr int kWindow = 128;      // a query sees itself and the 127 positions before it
inline constexpr int kAttendBlock = 64;  // entries whose probabilities are rounded against one running maximum
inline constexpr int kPageTokens = 128;  // tokens that share one KV page
inline constexpr int kHistory = 8;       // tokens before a run that a step knows; Engram looks at three

// -- weights ---------------------------------------------------------------------------------------------------------

// A weight matrix [out, in], as stored in the checkpoint; applied as y = x * W^T.
struct Matrix {
  enum class Kind : uint8_t {
    kNone,
    kFp8,   // e4m3 [out, in]; scale e8m0 [ceil(out/block), ceil(in/block)]
    kFp4,   // e2m1 pairs [out, in/2], low nibble = even k; scale e8m0 [out, in/32]
    kBf16,  // bf16 [out, in]
  };
  Kind kind = Kind::kNone;
  int out = 0;
  int in = 0;
  int block = 0;  // kFp8: edge of a scale tile, 32 or 128
  // Width of the activation blocks quantised (A.1) before the product: 32 or 128; 0 leaves activations in bf16.
  int act_block = 0;
  const std::byte* data = nullptr;
  const uint8_t* scale = nullptr;

  explicit operator bool() const { return kind != Kind::kNone; }
};

// Mixing weights of one sublayer (2.2): fn float [24, 4*D], base float [24], scale float [3].
// Of the V4 head (2.3): fn [4, 4*D], base [4], scale [1].
struct MixWeights {
  const float* fn = nullptr;
  const float* base = nullptr;
  const float* scale = nullptr;
};

// RoPE frequencies (3.2), one per adjacent pair of the 64 rope dims.
struct RopeFrequencies {
  float frequency[kRopeDim / 2];
};

// -- the step
// ----------------------------------------------------------------------------------------------------------

// Consecutive rows of one sequence: rows [first_row, first_row + count) at positions first_position, +1, ...
struct RowRun {
  int first_row = 0;
  int count = 0;
  int first_position = 0;
  int slot = 0;  // which sequence slot of the caches
};

// No token: before the beginning of a sequence, or where nobody looks.
inline constexpr int32_t kNoToken = INT32_MIN;

struct StepRows {
  int count = 0;
  const int32_t* token = nullptr;     // [count] the real input ids, or references (`later`)
  const int32_t* position = nullptr;  // [count] absolute, from 0
  const int32_t* run_of = nullptr;    // [count] index into runs
  const RowRun* runs = nullptr;
  int run_count = 0;
  // [slots, pages_per_slot] page numbers; page i holds tokens [128 i, 128 i + 128)
  const int32_t* page_table = nullptr;
  int pages_per_slot = 0;
  // [logit_count] the rows that head() is asked for, if it is.
  const int32_t* logit_row = nullptr;
  int logit_count = 0;
  // [run_count, kHistory] the tokens just before each run, most recent last, references among them; null: nobody looks.
  const int32_t* before = nullptr;
  // What the host cannot know because an earlier step that it has not read decides it: `later` lies in memory(), which
  // is not the host's, and holds it when this step's turn comes. A negative token but kNoToken is a reference: it
  // stands for later[~token], or for 0 where that is negative. Run r begins later[moved_by[r]] positions further on,
  // unless moved_by[r] is negative. begin() puts what is meant in their place: a stage meets no reference.
  const int32_t* later = nullptr;     // null: no reference, nothing moved
  const int32_t* moved_by = nullptr;  // [run_count]; null: nothing moved
};

// -- caches
// ------------------------------------------------------------------------------------------------------------

// Window rings of one layer: per slot one RecordBlock of `capacity` records; position p lies in record p % capacity.
// capacity is 128 + draft block + 1, so that rejected drafts never overwrite an entry still in a window (4.4).
struct RingCache {
  std::byte* base = nullptr;
  size_t slot_bytes = 0;
  int capacity = 0;
  RecordFormat format = RecordFormat::kV41Fp8;

  RecordBlock block(int slot) const { return {base + static_cast<size_t>(slot) * slot_bytes, format, capacity}; }
};

// The records one owner layer keeps in every page: `per_page` of them at `offset` in a page. base, offset and
// page_bytes are multiples of 16, for loads of that size.
struct PagedCache {
  std::byte* base = nullptr;  // the page pool
  size_t page_bytes = 0;
  size_t offset = 0;
  int per_page = 0;  // kPageTokens / ratio
  RecordFormat format = RecordFormat::kV41Nvfp4;

  RecordBlock block(int page) const {
    return {base + static_cast<size_t>(page) * page_bytes + offset, format, per_page};
  }
};

// Pooling rows of a compressor that later groups still need, float [slots, capacity, 2 * stored]: the row of position
// p is p % capacity and holds kv, then gate (position bias already added), Compressor::stored() values each. Indexed by
// position, so a rejected draft is simply overwritten. capacity >= lookback + draft block + 1; lookback is ratio, or 2
// * ratio.
struct CompressorState {
  float* base = nullptr;
  size_t slot_floats = 0;
  int capacity = 0;
};

// -- stage arguments
// ---------------------------------------------------------------------------------------------------

// X[r][j] = table[token[r]] for all 4 copies j. EXACT.
struct EmbedArgs {
  const bf16* table = nullptr;  // [vocab, dim]
  int dim = 0;
  bf16* stream = nullptr;  // out [rows, 4, dim]
};

// Mixing coefficients of a sublayer and its normalised input (2.2-2.4).
//   pre, post, comb from the stream as in 2.2 (comb[j][k]: the expand contracts j);
//   x = rmsnorm(round(sum_j w[j] X[j]), norm), w = `collapse_with` (V4.1: the previous sublayer's pre) or, when null,
//   own pre.
struct MixArgs {
  const bf16* stream = nullptr;  // [rows, 4, dim]
  int dim = 0;
  MixWeights weights;
  float norm_eps = 0;                    // of both the mixing statistic and the RMSNorm
  float mix_eps = 0;                     // hc_eps
  int iterations = 20;                   // hc_sinkhorn_iters; counts the first softmax + column pass
  const float* collapse_with = nullptr;  // [rows, 4] or null
  const bf16* norm = nullptr;            // [dim]
  float* pre = nullptr;                  // out [rows, 4]
  float* post = nullptr;                 // out [rows, 4]
  float* comb = nullptr;                 // out [rows, 4, 4]
  bf16* x = nullptr;                     // out [rows, dim]
};

// X[k] = round(post[k] * y + sum_j comb[j][k] * X[j]), in place (2.2).
struct ExpandArgs {
  bf16* stream = nullptr;  // in/out [rows, 4, dim]
  int dim = 0;
  const bf16* y = nullptr;      // [rows, dim]
  const float* post = nullptr;  // [rows, 4]
  const float* comb = nullptr;  // [rows, 4, 4]
};

// taps[r][column .. column + dim) = round(mean_j X[r][j]) (6.3).
struct TapArgs {
  const bf16* stream = nullptr;  // [rows, 4, dim]
  int dim = 0;
  bf16* taps = nullptr;  // out [rows, tap_width]
  int tap_width = 0;
  int column = 0;
};

// A further product of the rows' x or low-rank queries that project_qkv makes for a stage behind it. One result.
struct SideProduct {
  Matrix weights;
  float* exact = nullptr;   // out [rows, weights.out]: float(w) float(x), weights bf16
  bf16* rounded = nullptr;  // out [rows, weights.out]: round(w x)
};

// Queries and window records (3.1):
//   qr = rmsnorm(round(wq_a x)); q = round(wq_b qr); [V4: q[h] = round(q[h] rsqrt(mean q[h]^2 + eps))];
//   rope(q[h][448:]), round kv = rmsnorm(round(wkv x)); rope(kv[448:]), round; record = encode(kv).
// The draft ring (6.4) calls it with wq_a empty: then no queries are computed, and x = main_x. Of the same rows it
// makes what else the attention needs products for, so that these run beside its own. They alone are made with wkv
// empty too. Without wq_a of_qr is of the low-rank queries that the caller gives.
struct QkvArgs {
  const bf16* x = nullptr;  // [rows, dim]
  int dim = 0;
  Matrix wq_a, wq_b, wkv;
  const bf16* q_norm = nullptr;   // [q_lora]
  const bf16* kv_norm = nullptr;  // [512]
  bool q_head_norm = false;
  float norm_eps = 0;
  const RopeFrequencies* rope = nullptr;  // on the host, as everywhere
  int heads = 0;
  bf16* qr = nullptr;  // out [rows, q_lora]; in, where wq_a is empty
  bf16* q = nullptr;   // out [rows, heads, 512]
  RecordBlock kv;      // out: record r is row r's
  // Of x: kv and gate of two compressors, the indexer's weights of heads. Empty ones: none.
  static constexpr int kSides = 5;
  SideProduct of_x[kSides];
  SideProduct of_qr;  // the indexer's queries, or empty
};

// Copies each row's step-local record into its sequence's ring. Of a run longer than the ring only the last `capacity`
// rows are kept. EXACT.
struct CommitArgs {
  RecordBlock kv;  // record r is row r's
  RingCache ring;
};

// Compressed entries and index keys of one owner layer (V4: 3.3, 3.4; V4.1: 3.5). Pools every group that ends in this
// step, from this step's rows and, for what came before, from `state`; then saves the rows later groups need. The
// products of x are project_qkv's: kv = float(wkv) float(x), gate = float(wgate) float(x).
//   g = gate + ape[p mod ratio]
//   entry, per channel = sum over the group's tokens of softmax(g) * kv       (overlap: 8 rows, see 3.3)
//   latent = rmsnorm(round(entry), norm); entry record = encode(rope(latent at j * ratio), round)
// Ratio 1 has no gate: latent = rmsnorm(round(wkv x)).
// Index key, either from the latent before RoPE (V4.1: rmsnorm(round(wk latent), k_norm), rope) or from its own
// compressor (V4: `width` 128, rope, Hadamard); then encode as kIndexMxfp4.
struct Compressor {
  const float* kv = nullptr;     // [rows, stored()]
  const float* gate = nullptr;   // [rows, stored()]
  const bf16* latent = nullptr;  // ratio 1, instead of both: round(wkv x) [rows, width]
  const float* ape = nullptr;    // [ratio, stored()] or null
  const bf16* norm = nullptr;    // [width]
  int width = 0;                 // 512, or 128 for V4's index keys
  bool overlap = false;
  CompressorState state;

  // Channels of a row: with overlap two halves, for the group after the row's own and for that.
  int stored() const { return overlap ? 2 * width : width; }
};
struct CompressArgs {
  int ratio = 0;
  float norm_eps = 0;
  const RopeFrequencies* rope = nullptr;
  Compressor main;
  PagedCache entries;
  // V4.1 index keys; both null when the layer has none or makes them with `index_compressor`.
  Matrix wk;                     // kBf16 [128, 512]
  const bf16* k_norm = nullptr;  // [128]
  // V4 index keys.
  const Compressor* index_compressor = nullptr;
  PagedCache keys;  // base null: no index keys
};

// The lightning indexer (V4 3.4, V4.1 3.5): which compressed entries each row attends to. Queries and weights of heads
// are project_qkv's products of qr and x, rounded.
//   qi = rope(queries[h][64:]), round; [Hadamard, round]; fp4 in blocks of 32
//   w = round(head_weights * float(128^-0.5 * heads^-0.5))
//   S[j] = sum_h relu(sum_b dot_b(qi[h], k[j])) * w[h], b and h ascending, float: EXACT given qi and w
// relu lets a NaN pass; a score of NaN counts as -inf. Hadamard: butterflies of stride 1, 2, ... 64 in float, then
// times float(128^-0.5).
// Entries j < visible = (position + 1) / ratio. Picks: the min(topk, visible) best (entries at -inf too, when no better
// are left), ties to the lower number, ascending; the rest -1.
struct IndexArgs {
  const bf16* queries = nullptr;       // [rows, heads, 128]
  const bf16* head_weights = nullptr;  // [rows, heads]
  int heads = 0;
  int ratio = 0;
  bool hadamard = false;
  const RopeFrequencies* rope = nullptr;
  PagedCache keys;
  int topk = 0;
  int32_t* picks = nullptr;  // out [rows, topk]
  // Two-level selection (3.5). kPublish: after scoring, keep the topk_blocks best blocks of block_size entries (a
  // block's score is its best entry's, the newest visible block always stays), as a bit per block in `candidates`; the
  // layer's own picks are not masked. kApply: entries outside the candidates score -inf.
  enum class Candidates : uint8_t { kNone, kPublish, kApply };
  Candidates mode = Candidates::kNone;
  int topk_blocks = 0;
  int block_size = 0;
  uint32_t* candidates = nullptr;  // [rows, candidate_words]
  int candidate_words = 0;
};

// Sparse attention with sink (3.1): one softmax over the row's window and its compressed entries.
//   the row's list: window by position, oldest first, then compressed by entry number; nothing else counts as an entry
//   s[t] = (q[h] . KV[t]) * 512^-0.5; M = max s; m(t) = max of s over the list up to the end of t's block of 64 entries
//   p[t] = exp(s[t] - m(t)); out = round(sum_t round(p[t]) exp(m(t) - M) KV[t] / (sum_t p[t] exp(m(t) - M) +
//   exp(sink[h] - M))) rope inverse on out[448:], round
// Rounding against the running maximum of 64 entries is the published kernel's online softmax; where its blocks begin
// depends on the call there (3.7) and on the row's position alone here. The window is the ring up to the run's first
// position and the step-local records from there on. A draft block (6.4) instead sees `block_attention`: the 128 ring
// positions before the run and all of the run's rows, in both directions.
struct AttendArgs {
  const bf16* q = nullptr;  // [rows, heads, 512], roped
  int heads = 0;
  RecordBlock kv;  // step-local records; record r is row r's
  RingCache ring;
  bool block_attention = false;
  const float* sink = nullptr;  // [heads]
  const RopeFrequencies* rope = nullptr;
  // Compressed part; ratio 0: none. picks null: every visible entry (V4 ratio 128).
  int ratio = 0;
  PagedCache entries;
  const int32_t* picks = nullptr;  // [rows, topk], ascending, -1 = none
  int topk = 0;
  bf16* out = nullptr;  // [rows, heads, 512]
};

// y = round(wo_b concat_g(round(wo_a[g] out[heads of g]))) (3.1). wo_a is used as bf16 (act_block 0), in `groups` row
// blocks.
struct ProjectOutArgs {
  const bf16* attended = nullptr;  // [rows, heads, 512]
  int heads = 0;
  int groups = 0;
  Matrix wo_a;        // kFp8 [groups * o_lora, heads / groups * 512]
  Matrix wo_b;        // [dim, groups * o_lora]
  bf16* y = nullptr;  // out [rows, dim]
};

// Router (5.1): s = sqrt(softplus(float(x) float(gate)^T)); ids: topk of s + bias, best first, ties to the lower id, or
// tid2eid[token]; weights = s[ids] / (sum + norm_eps) * scale, or s[ids] * scale without `normalise`. A zero sum gives
// equal weights, scale / topk each. In the choice a NaN counts as -inf; the weights keep it.
struct RouteArgs {
  const bf16* x = nullptr;  // [rows, dim]
  int dim = 0;
  Matrix gate;                       // kBf16 [experts, dim]
  const float* bias = nullptr;       // [experts]; null for hash routing
  const int64_t* tid2eid = nullptr;  // [vocab, topk]; null for score routing
  int experts = 0;
  int topk = 0;
  bool normalise = true;
  float norm_eps = 0;        // 1e-20 for V4.1, 0 for V4
  float scale = 1;           // routed_scaling_factor
  int32_t* ids = nullptr;    // out [rows, topk]
  float* weights = nullptr;  // out [rows, topk]
};

struct ExpertWeights {
  Matrix w1, w2, w3;
};

// Mixture of experts (5.2), its router first if there is one: g = round(w1 x), u = round(w3 x); u = clamp(u, -limit,
// limit), g = min(g, limit); a = round(weight * (silu(g) * u)); y_e = round(w2 a); y = round(sum_slots y_e +
// shared(x)), shared last with weight 1.
struct ExpertsArgs {
  const RouteArgs* router = nullptr;  // makes ids and weights, as route() would; null: they are there
  const bf16* x = nullptr;            // [rows, dim]
  int dim = 0;
  int inter = 0;
  const ExpertWeights* experts = nullptr;  // [expert count], on the host
  int expert_count = 0;
  const int32_t* ids = nullptr;    // [rows, topk]
  const float* weights = nullptr;  // [rows, topk]
  int topk = 0;
  ExpertWeights shared;
  float limit = 0;
  bf16* y = nullptr;  // out [rows, dim]
};

// Which rows of an Engram layer's table a token looks up (7.1), from the token and those before it, its run's and then
// StepRows::before; `pad` before the beginning and for ids that the map lacks. Per order n = 2..max_ngram and head, one
// prime each: (xor over k < n of map[token k back] * multipliers[k]) mod prime, plus the sum of the primes before it.
// EXACT.
struct AddressArgs {
  const int32_t* token_map = nullptr;  // [map_size] to compressed ids
  int map_size = 0;
  int32_t pad = 0;                       // in the map
  const int64_t* multipliers = nullptr;  // [max_ngram], positive
  const int64_t* primes = nullptr;       // [max_ngram - 1, heads]
  int max_ngram = 0;                     // at most kHistory + 1
  int heads = 0;
  int32_t* table_rows = nullptr;  // out [rows, (max_ngram - 1) * heads]
};

// Engram write (7.1): looks up `columns` table rows per token, projects them to 4 keys and a value, gates, adds in
// place.
struct EngramArgs {
  bf16* stream = nullptr;  // in/out [rows, 4, dim]
  int dim = 0;
  // [rows, columns], offsets included; there before the run() that holds this stage begins, as address() leaves them.
  const int32_t* table_rows = nullptr;
  int columns = 0;
  const uint8_t* table = nullptr;        // e4m3 [table rows, width]
  const uint8_t* table_scale = nullptr;  // e8m0 [table rows, width / 32]
  int width = 0;
  Matrix wkv;                      // [5 * dim, columns * width]
  const bf16* q_weight = nullptr;  // [4, dim]
  const bf16* k_weight = nullptr;  // [4, dim]
  float norm_eps = 0;
};

// Final collapse, norm and logits (2.3, 2.4) of `count` chosen rows.
//   h = round(sum_j w[j] X[j]), w = `collapse_with` (V4.1) or, when null, the sigmoid mix of `mix` (V4 hc_head)
//   logits = float(rmsnorm(h, norm)) float(head)^T, float, not rounded
struct HeadArgs {
  const bf16* stream = nullptr;  // [step rows, 4, dim]
  int dim = 0;
  const int32_t* rows = nullptr;  // [count] which rows of the step, on the host: StepRows::logit_row
  int count = 0;
  const float* collapse_with = nullptr;  // [step rows, 4] or null
  MixWeights mix;
  float norm_eps = 0;
  float mix_eps = 0;
  const bf16* norm = nullptr;  // [dim]
  Matrix head;                 // kBf16 [vocab, dim]
  bf16* hidden = nullptr;      // out [count, dim]: h before the norm (the confidence head reads it); may be null
  float* logits = nullptr;     // out [count, vocab]
  int32_t* best = nullptr;     // out [count]: as choose() of the logits; may be null
};

// The input of the drafter (6.3): main_x = rmsnorm(round(main_proj taps), norm).
struct MainInputArgs {
  const bf16* taps = nullptr;  // [rows, main_proj.in]
  Matrix main_proj;
  const bf16* norm = nullptr;  // [dim]
  float norm_eps = 0;
  bf16* main_x = nullptr;  // out [rows, dim]
};

// One step of the Markov chain inside a draft block (6.4): logits += float(w2) float(w1[prev]);
// confidence = float(proj) . float([hidden; w1[prev]]).
struct MarkovArgs {
  int row = 0;                    // of the step
  const int32_t* prev = nullptr;  // [1] the token before, negative: none, embedded as zeros; null: the row's own
  const bf16* w1 = nullptr;       // [vocab, rank]
  Matrix w2;                      // kBf16 [vocab, rank]
  Matrix confidence;              // kBf16 [1, dim + rank]
  const bf16* hidden = nullptr;   // [dim]
  int dim = 0;
  int rank = 0;
  float* logits = nullptr;          // in/out [vocab]
  float* confidence_out = nullptr;  // [1]; null: not wanted
};

// The best token of each row of logits, ties to the lower id; -1 where any is NaN or infinite. EXACT.
struct ChooseArgs {
  const float* logits = nullptr;  // [count, vocab]
  int count = 0;
  int vocab = 0;
  int32_t* best = nullptr;  // out [count]
};

// That of HeadArgs::best.
inline ChooseArgs choice_of(const HeadArgs& args) { return {args.logits, args.count, args.head.out, args.best}; }

// What a step's best tokens decide about its runs, each a decided token and drafts behind it: the first row counts, and
// every row behind it whose token is the best of a row that counts. EXACT.
//   verdict of a run: how many rows count; the best token of the last of them; the kHistory tokens before that one
struct VerifyArgs {
  const int32_t* best = nullptr;  // [rows]
  int32_t* verdicts = nullptr;    // out [run_count, kVerdict]
};
inline constexpr int kVerdict = 2 + kHistory;

// What costs the host time for the device's sake, counted since the kernels were made.
struct HostCalls {
  int64_t allocations = 0;  // of device memory and of pinned host memory, and their release
  int64_t waits = 0;        // for the device, in wait()
  int64_t other_waits = 0;  // for the device, anywhere else: copies that return when done, finish(), growth
};

struct Plugin;  // device/plugin.h

class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual std::string_view name() const = 0;

  // Where the arrays lie that the arguments of stages point to, but for what is said to be the host's.
  virtual Memory& memory() { return host_memory(); }
  // The host's, so that copies to and from memory() are fast, and in reach of the kernels besides.
  virtual Memory& shared_memory() { return host_memory(); }
  // The step whose stages follow, with all its arrays on the host; an implementation may keep a copy of its own. Every
  // stage of a step is called with the StepRows that begin() got.
  virtual void begin(const StepRows& /*rows*/) {}
  // Calls `stages`, which calls stages of the step begun and does nothing else. Two calls of one owner with one key
  // differ in the contents of arrays alone, so that an implementation may record the first and repeat it afterwards.
  virtual void run(const void* /*owner*/, uint64_t /*key*/, const std::function<void()>& stages) { stages(); }
  // `owner` makes no more calls; what it recorded may go.
  virtual void forget(const void* /*owner*/) {}
  // Waits for everything that was asked for.
  virtual void finish() {}
  // Copies from memory() to shared_memory() in its place among what was asked for, and returns at once with a number;
  // wait(number) returns when the copy is made. At most kSends copies may be waited for.
  virtual uint64_t send(void* to, const void* from, size_t bytes);
  virtual void wait(uint64_t /*sent*/) {}
  static constexpr int kSends = 4;
  virtual HostCalls host_calls() const { return {}; }

  virtual void embed(const StepRows& rows, const EmbedArgs& args) = 0;
  virtual void mix_streams(const StepRows& rows, const MixArgs& args) = 0;
  virtual void expand_streams(const StepRows& rows, const ExpandArgs& args) = 0;
  virtual void tap(const StepRows& rows, const TapArgs& args) = 0;
  virtual void project_qkv(const StepRows& rows, const QkvArgs& args) = 0;
  virtual void compress(const StepRows& rows, const CompressArgs& args) = 0;
  virtual void index(const StepRows& rows, const IndexArgs& args) = 0;
  virtual void attend(const StepRows& rows, const AttendArgs& args) = 0;
  virtual void commit(const StepRows& rows, const CommitArgs& args) = 0;
  virtual void project_out(const StepRows& rows, const ProjectOutArgs& args) = 0;
  virtual void route(const StepRows& rows, const RouteArgs& args) = 0;
  virtual void experts(const StepRows& rows, const ExpertsArgs& args) = 0;
  virtual void engram(const StepRows& rows, const EngramArgs& args) = 0;
  virtual void head(const StepRows& rows, const HeadArgs& args) = 0;
  virtual void main_input(const StepRows& rows, const MainInputArgs& args) = 0;
  virtual void markov(const StepRows& rows, const MarkovArgs& args) = 0;
  virtual void choose(const StepRows& rows, const ChooseArgs& args) = 0;
  // Integers, and little work: what stands here is for all whose memory is the host's. address() is called before
  // run().
  virtual void address(const StepRows& rows, const AddressArgs& args);
  virtual void verify(const StepRows& rows, const VerifyArgs& args);

  // For measuring. A point in time behind all that was asked for before it and ahead of all that is asked for after it:
  // nothing overlaps across a mark. Marks inside a recorded run() are taken anew whenever it is repeated; at most one
  // repetition may lie between two calls of marks_us().
  virtual void mark() { marks_.push_back(std::chrono::steady_clock::now()); }
  // Waits. The marks since the last call, in order, in microseconds after the first of them.
  virtual std::vector<double> marks_us() {
    std::vector<double> us;
    for (const auto& at : marks_) us.push_back(std::chrono::duration<double, std::micro>(at - marks_.front()).count());
    marks_.clear();
    return us;
  }
  // What lies between profile(true) and profile(false) is shown to a profiler that watches this process, if one does.
  // Waits.
  virtual void profile(bool /*on*/) {}
  // How many kernels have been launched on a device; 0 for those that have none.
  virtual int64_t launches() const { return 0; }

 private:
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

// The oracle: plain loops, one thread, double accumulation, slow on purpose.
std::unique_ptr<Kernels> make_reference_kernels();

// The CUDA plugin's, on GPU number `device`. kUnsupported with the plugin's reason when it cannot run there.
Result<std::unique_ptr<Kernels>> make_cuda_kernels(const Plugin& plugin, int device);

// SIMD (Highway, chosen at run time) on a team of `threads` threads; 0 takes every processor.
std::unique_ptr<Kernels> make_cpu_kernels(int threads);

}  // namespace onelane
