// See multiply.h: which kernel makes which product.
#include <vector>

#include "base/check.h"
#include "cuda/linear/multiply.h"
#include "cuda/linear/piece.h"

namespace onelane::cuda {
namespace {

int log2_of(int block) {
  ONELANE_CHECK(block == 32 || block == 128, "blocks of scales are 32 or 128 wide");
  return block == 32 ? 5 : 7;
}

Piece piece_of(const Product& product) {
  const Matrix& w = *product.weights;
  Piece piece = {};
  piece.data = w.data;
  piece.scale = w.scale;
  piece.x = product.x;
  piece.x_stride = product.x_stride;
  piece.rounded = product.rounded;
  piece.exact = product.exact;
  piece.add = product.add;
  piece.y_stride = product.y_stride;
  piece.in = w.in;
  piece.first_out = product.first_out;
  piece.outs = product.outs > 0 ? product.outs : w.out - product.first_out;
  piece.rows = product.rows;
  if (w.kind == Matrix::Kind::kFp8) piece.row_shift = piece.k_shift = log2_of(w.block);
  if (w.kind == Matrix::Kind::kFp4) piece.k_shift = log2_of(32);
  piece.scale_width = (w.in + (1 << piece.k_shift) - 1) >> piece.k_shift;
  if (w.act_block > 0) piece.act_shift = log2_of(w.act_block);
  piece.segments = segments_of(w.in);
  ONELANE_CHECK(piece.first_out >= 0 && piece.first_out + piece.outs <= w.out, "weight rows out of range");
  ONELANE_CHECK(w.act_block == 0 || w.in % w.act_block == 0, "activations are quantised in whole blocks");
  ONELANE_CHECK((product.rounded != nullptr) != (product.exact != nullptr), "a product has one result");
  return piece;
}

// A function of the matrix alone, as is everything that decides on the order of sums.
bool in_whole_blocks(const Matrix& w) { return w.in % kBlock == 0 && reinterpret_cast<uintptr_t>(w.data) % 16 == 0; }
int unit_of(const Matrix& w) {
  const bool wide = w.kind == Matrix::Kind::kFp8 && w.block == 128 && w.act_block != 32 && w.in % 128 == 0;
  return wide ? 128 : kBlock;
}
PieceKind kind_of(const Matrix& w) { return {w.kind, w.act_block > 0, unit_of(w)}; }

// Up to here weights are read again for each kFewRows rows, mostly from the cache.
constexpr int kMostFewRows = 3 * kFewRows;

void multiply_pieces(const Stage& stage, const PieceKind& kind, Pieces& pieces) {
  bool few = true;
  for (int i = 0; i < pieces.count; ++i) few = few && pieces.piece[i].rows <= kFewRows;
  if (few && multiply_few_rows(stage, kind, pieces)) return;
  for (int i = 0; i < pieces.count && kind.quantised; ++i) {
    Piece& piece = pieces.piece[i];
    const Piece& before = pieces.piece[std::max(0, i - 1)];
    if (i > 0 && before.x == piece.x && before.x_stride == piece.x_stride && before.rows == piece.rows &&
        before.in == piece.in && before.act_shift == piece.act_shift) {
      piece.codes = before.codes;
      piece.code_scales = before.code_scales;
      piece.scale_stride = before.scale_stride;
    } else {
      quantise_rows(stage, piece);
    }
  }
  multiply_many_rows(stage, kind, pieces);
}

// The pieces of one kind, in launches of Pieces::kMost.
void multiply_alike(const Stage& stage, const PieceKind& kind, const std::vector<Piece>& all) {
  Pieces pieces = {};
  for (const Piece& piece : all) {
    pieces.piece[pieces.count++] = piece;
    if (pieces.count == Pieces::kMost) {
      multiply_pieces(stage, kind, pieces);
      pieces.count = 0;
    }
  }
  if (pieces.count > 0) multiply_pieces(stage, kind, pieces);
}

// Rows [first, first + count) of a piece.
Piece rows_of(Piece piece, int first, int count) {
  piece.x += first * piece.x_stride;
  if (piece.rounded != nullptr) piece.rounded += first * piece.y_stride;
  if (piece.exact != nullptr) piece.exact += first * piece.y_stride;
  piece.rows = count;
  return piece;
}

}  // namespace

int shared_memory_limit() {
  int device = 0, limit = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return limit;
}

void multiply_all(const Stage& stage, std::span<const Product> products) {
  struct Alike {
    PieceKind kind;
    std::vector<Piece> pieces;
  };
  std::vector<Alike> launches;
  for (const Product& product : products) {
    if (product.rows == 0) continue;
    const Matrix& w = *product.weights;
    Piece piece = piece_of(product);
    if (!in_whole_blocks(w)) {
      if (w.act_block > 0) quantise_rows(stage, piece);
      multiply_any_shape(stage, w.kind, piece);
      continue;
    }
    if (reinterpret_cast<uintptr_t>(piece.x) % 16 != 0 || piece.x_stride % 8 != 0) align_rows(stage, piece);
    const PieceKind kind = kind_of(w);
    auto alike = std::find_if(launches.begin(), launches.end(), [&](const Alike& other) {
      return other.kind.kind == kind.kind && other.kind.quantised == kind.quantised && other.kind.unit == kind.unit;
    });
    if (alike == launches.end()) alike = launches.insert(launches.end(), {kind, {}});
    const int step = piece.rows <= kMostFewRows ? kFewRows : piece.rows;
    for (int first = 0; first < piece.rows; first += step) {
      alike->pieces.push_back(rows_of(piece, first, std::min(step, piece.rows - first)));
    }
  }
  for (const Alike& alike : launches) multiply_alike(stage, alike.kind, alike.pieces);
}

}  // namespace onelane::cuda
