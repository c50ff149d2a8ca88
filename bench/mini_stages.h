// The stages of one step of mini-v41, with random weights and full caches, as calls that a benchmark can repeat.
#pragma once

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/kernels.h"
#include "kernels/rope.h"
#include "numerics/formats.h"

namespace onelane::bench {

// Shapes of models/mini-v41.
struct Shapes {
  int dim = 256, heads = 4, q_lora = 128, o_lora = 64, groups = 2;
  int inter = 128, experts = 8, topk = 2;
  int index_heads = 8, picks = 128, block_size = 8, topk_blocks = 32;
  int columns = 12, engram_width = 32, table_rows = 6748;
  int vocab = 2560;
};

// One stage as the benchmark calls it.
struct StageCall {
  std::string name;
  std::function<void(Kernels&)> call;
  double per_step;      // how often a whole step runs it
  double macs;          // multiply-adds of one call
  double weight_bytes;  // stored weights one call reads, each once
};

// Rows [position, position + rows) of each of `streams` sequences whose caches are full up to there.
class MiniStages {
 public:
  MiniStages(int position, int rows, int streams = 1);
  const std::vector<StageCall>& calls() const { return calls_; }

 private:
  template <class T>
  T* make(size_t count, const std::function<T()>& value);
  template <class T>
  T* zeros(size_t count);
  bf16* normals(size_t count, float scale = 1);
  float* floats(size_t count, float scale = 1);
  Matrix fp8(int out, int in, bool activations = true);
  Matrix fp4(int out, int in);
  Matrix plain(int out, int in);
  RingCache ring();
  PagedCache pages(RecordFormat format, int ratio, int count);
  void fill_records(const RecordBlock& block);
  void add(const std::string& name, double per_step, double macs, double weight_bytes,
           std::function<void(Kernels&)> call);
  void add_stream_stages();
  void add_attention_stages();
  void add_compressed_stages(int ratio, int owners, int indexers, int readers);
  void add_feed_forward_stages();
  void add_head();
  double matrix_bytes(const Matrix& m) const;

  Shapes s_;
  std::mt19937 engine_{1};
  std::vector<Buffer> buffers_;
  std::vector<int32_t> token_, position_, run_of_, page_table_, logit_row_;
  std::vector<RowRun> runs_;
  StepRows rows_;
  RopeFrequencies rope_;
  std::vector<ExpertWeights> experts_;
  bf16 *stream_, *x_, *y_, *qr_, *q_, *attended_;
  RecordBlock kv_;
  RingCache ring_;
  std::vector<StageCall> calls_;
};

}  // namespace onelane::bench
