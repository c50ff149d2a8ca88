// Weights: a checkpoint's tensors, checked and sorted into the arguments that the kernels take.
//
// On the host tensors are used in place, in the mapped file, when their alignment allows it; otherwise, and always in
// fenced builds, each is copied into a buffer of its own. For a device all are copied to it, one after another into a
// few large allocations, but for the Engram tables, which stay in host memory that it can reach. Nothing is repacked:
// the byte formats are the checkpoint's (spec/model.md B).
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_spec.h"
#include "device/buffer.h"
#include "kernels/kernels.h"

namespace onelane {

// A compressor's matrices, kBf16 [stored, hidden], wgate empty for ratio 1; and what else it is. Products and state are
// filled in by whoever runs the stage.
struct CompressorWeights {
  Matrix wkv, wgate;
  Compressor rest;
};

// One block: backbone layer or draft stage. Fields that the LayerSpec does not call for stay empty.
struct BlockWeights {
  MixWeights attn_mix, ffn_mix;
  const bf16* attn_norm = nullptr;
  const bf16* ffn_norm = nullptr;

  Matrix wq_a, wq_b, wkv, wo_a, wo_b;
  const bf16* q_norm = nullptr;
  const bf16* kv_norm = nullptr;
  const float* sink = nullptr;

  CompressorWeights compressor;
  CompressorWeights index_compressor;  // V4 index keys
  Matrix index_wk;                     // V4.1 index keys
  const bf16* index_k_norm = nullptr;
  Matrix index_wq_b, index_weights;

  Matrix gate;
  const float* gate_bias = nullptr;
  const int64_t* tid2eid = nullptr;
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;

  const uint8_t* engram_table = nullptr;
  const uint8_t* engram_table_scale = nullptr;
  Matrix engram_wkv;
  const bf16* engram_q_weight = nullptr;
  const bf16* engram_k_weight = nullptr;
};

struct DrafterWeights {
  Matrix main_proj;
  const bf16* main_norm = nullptr;
  const bf16* norm = nullptr;
  MixWeights head_mix;  // V4 only
  const bf16* markov_w1 = nullptr;
  Matrix markov_w2;
  Matrix confidence;
};

class Weights {
 public:
  // Takes the checkpoint over. It must have passed the inventory check against `spec`: a missing tensor here is a
  // mistake of ours, not of the file. `kernels`: who reads the weights, and must outlive them; null: the host.
  Weights(Checkpoint checkpoint, const ModelSpec& spec, Kernels* kernels = nullptr);

  // Most memory that this takes on a device.
  static int64_t device_bytes(const ModelSpec& spec);

  const bf16* embed = nullptr;  // [vocab, hidden]
  Matrix head;
  const bf16* norm = nullptr;
  MixWeights head_mix;  // V4 only
  std::vector<BlockWeights> layers;
  std::vector<BlockWeights> stages;
  DrafterWeights drafter;

 private:
  const std::byte* place(const std::string& name, size_t alignment);
  const std::byte* copy(std::span<const std::byte> bytes, Memory& memory);
  void upload(const ModelSpec& spec);
  void upload_together(std::span<const std::string> names, size_t bytes);
  template <class T>
  const T* vector(const std::string& name) {
    return reinterpret_cast<const T*>(place(name, alignof(T)));
  }
  Matrix plain(const std::string& name);
  Matrix quantised(const std::string& stem, const ModelSpec& spec, bool quantise_activations = true);
  MixWeights mix(const std::string& stem);
  ExpertWeights expert(const std::string& stem, const ModelSpec& spec);
  BlockWeights block(const std::string& stem, const LayerSpec& layer, const ModelSpec& spec);
  CompressorWeights compressor(const std::string& stem, int width, bool gate, bool ape, bool overlap);
  void load_drafter(const ModelSpec& spec);

  Checkpoint checkpoint_;
  Kernels* kernels_ = nullptr;
  bool shared_ = false;  // place() for the host and the device
  std::vector<Buffer> copies_;
  std::unordered_map<std::string, const std::byte*> uploaded_;  // while tensors are sorted
};

}  // namespace onelane
