// The published shapes on a device, cut to a few layers: what tiny models cannot show of widths, numbers of experts and
// the ways that kernels choose by them. Left out where ONELANE_TEST_BACKEND does not ask for a GPU: a processor takes
// minutes for a row.
#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "base/format.h"
#include "kernels/forwarding_kernels.h"
#include "model/forward.h"
#include "model/synthetic.h"
#include "support/gpu.h"

namespace onelane {
namespace {

constexpr int kPrompt = 700;  // selection among more than index_topk / 4 entries, several pages
constexpr int kPages = 8;

// What every stage makes of one row.
struct Made {
  std::string stage;
  std::vector<std::byte> bytes;
};

// Keeps what the stages make of every step's first row.
class WatchingKernels : public ForwardingKernels {
 public:
  using ForwardingKernels::ForwardingKernels;

  std::vector<Made> take() { return std::exchange(made_, {}); }

  void embed(const StepRows& rows, const EmbedArgs& args) override {
    inner_.embed(rows, args);
    keep("embed", args.stream, kStreams * args.dim);
  }
  void mix_streams(const StepRows& rows, const MixArgs& args) override {
    inner_.mix_streams(rows, args);
    keep("mix_streams stream", args.stream, kStreams * args.dim);
    keep("mix_streams x", args.x, args.dim);
    keep("mix_streams comb", args.comb, kStreams * kStreams);
  }
  void project_qkv(const StepRows& rows, const QkvArgs& args) override {
    inner_.project_qkv(rows, args);
    if (args.qr != nullptr) keep("project_qkv qr", args.qr, args.wq_a.out);
    if (args.q != nullptr) keep("project_qkv q", args.q, args.heads * kHeadDim);
    keep("project_qkv record", args.kv.data(0), record_data_bytes(args.kv.format));
    for (const SideProduct& side : args.of_x) keep_side("project_qkv of x", side);
    keep_side("project_qkv of qr", args.of_qr);
  }
  void index(const StepRows& rows, const IndexArgs& args) override {
    inner_.index(rows, args);
    keep("index", args.picks, args.topk);
  }
  void attend(const StepRows& rows, const AttendArgs& args) override {
    inner_.attend(rows, args);
    keep("attend", args.out, args.heads * kHeadDim);
  }
  void project_out(const StepRows& rows, const ProjectOutArgs& args) override {
    inner_.project_out(rows, args);
    keep("project_out", args.y, args.wo_b.out);
  }
  void experts(const StepRows& rows, const ExpertsArgs& args) override {
    inner_.experts(rows, args);
    keep("route ids", args.ids, args.topk);
    keep("route weights", args.weights, args.topk);
    keep("experts", args.y, args.dim);
  }
  void engram(const StepRows& rows, const EngramArgs& args) override {
    inner_.engram(rows, args);
    keep("engram", args.stream, kStreams * args.dim);
  }
  void head(const StepRows& rows, const HeadArgs& args) override {
    inner_.head(rows, args);
    keep("head", args.logits, args.head.out);
  }

 private:
  template <class T>
  void keep(const char* stage, const T* data, int width) {
    Made made{format("{}: {}", made_.size(), stage), std::vector<std::byte>(static_cast<size_t>(width) * sizeof(T))};
    inner_.memory().copy(made.bytes.data(), data, made.bytes.size());
    made_.push_back(std::move(made));
  }
  void keep_side(const char* stage, const SideProduct& side) {
    if (side.exact != nullptr) keep(stage, side.exact, side.weights.out);
    if (side.rounded != nullptr) keep(stage, side.rounded, side.weights.out);
  }
  std::vector<Made> made_;
};

class TrueShapes : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (testing::model_kernels() == nullptr) GTEST_SKIP() << "for GPUs: ONELANE_TEST_BACKEND=cuda";
    kernels_ = testing::make_test_kernels(1);
    auto model = synthetic_model({.family = GetParam(), .layers = 5}, kernels_.get());
    ASSERT_TRUE(model) << model.error().message;
    model_ = std::move(*model);
    std::mt19937 generator(11);
    for (int i = 0; i < kPrompt + 64; ++i) {
      tokens_.push_back(static_cast<int32_t>(generator() % static_cast<unsigned>(model_->spec.vocab)));
    }
    for (int page = 0; page < kPages; ++page) pages_.push_back(kPages - 1 - page);
  }

  struct Sequence {
    Sequence(const Model& model, Kernels& kernels)
        : store(model.spec, 1, kPages, kernels.memory()), forward(model, kernels, store, kPrompt, 64) {}
    KvStore store;
    ForwardPass forward;
  };

  // Appends tokens [first, first + count); the logits of the last `wanted` of them.
  std::vector<float> append(Sequence& sequence, int first, int count, int wanted) {
    Step step;
    step.set_pages(pages_.data(), kPages);
    const auto text = std::span<const int32_t>(tokens_);
    step.add(0, first, text.subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
             text.first(static_cast<size_t>(first)));
    std::vector<int32_t> rows;
    for (int row = count - wanted; row < count; ++row) rows.push_back(row);
    std::vector<float> logits(rows.size() * static_cast<size_t>(model_->spec.vocab));
    sequence.forward.target(step, rows, logits.data());
    return logits;
  }

  // Where the first rows of two steps part.
  std::string first_difference(const std::vector<Made>& one, const std::vector<Made>& other) {
    for (size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
      if (one[i].bytes != other[i].bytes) return one[i].stage;
    }
    return "nowhere, stage by stage";
  }

  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> tokens_, pages_;
};

TEST_P(TrueShapes, RowsOfAStepDoNotKnowOfEachOther) {
  const auto vocab = static_cast<size_t>(model_->spec.vocab);
  WatchingKernels watching(*kernels_);
  const auto watch = [&](int rows) {
    Sequence watched(*model_, watching);
    append(watched, 0, kPrompt, 1);
    watching.take();
    append(watched, kPrompt, rows, rows);
    return watching.take();
  };
  std::vector<float> alone;
  for (const int rows : {1, 2, 3, 4, 6, 8, 9, 16, 17, 33, 48}) {
    Sequence sequence(*model_, *kernels_);
    append(sequence, 0, kPrompt, 1);
    std::vector<float> first = append(sequence, kPrompt, rows, rows);
    first.resize(vocab);
    if (alone.empty()) alone = first;
    for (const float logit : first) ASSERT_TRUE(std::isfinite(logit));
    EXPECT_EQ(first, alone) << rows << " rows change the first: at " << first_difference(watch(1), watch(rows));
  }
}

TEST_P(TrueShapes, AStepMayBeRepeated) {
  Sequence sequence(*model_, *kernels_);
  append(sequence, 0, kPrompt, 1);
  // As it is, recorded, repeated; no more rows than a rejected block of drafts has.
  for (int rows = 1; rows <= model_->spec.dspark.block_size + 1; ++rows) {
    const std::vector<float> once = append(sequence, kPrompt, rows, rows);
    for (int time = 0; time < 4; ++time) EXPECT_EQ(append(sequence, kPrompt, rows, rows), once) << rows << " " << time;
  }
}

TEST_P(TrueShapes, APromptMayBeReadInPieces) {
  Sequence whole(*model_, *kernels_);
  const std::vector<float> logits = append(whole, 0, kPrompt, 1);
  for (const int piece : {1, 6, 40, 64, 100, 256}) {
    Sequence pieces(*model_, *kernels_);
    int done = 0;
    while (kPrompt - done > piece) {
      append(pieces, done, piece, 0);
      done += piece;
    }
    EXPECT_EQ(append(pieces, done, kPrompt - done, 1), logits) << "pieces of " << piece;
  }
}

INSTANTIATE_TEST_SUITE_P(Published, TrueShapes, ::testing::Values("v4", "v41"));

}  // namespace
}  // namespace onelane
