// The whole forward pass, drafter included, against the oracle on the tiny checkpoints.
//
// Stage by stage agreement is tested in tests/kernels, and whole trained models in mini_test.cc. Here it is the wiring:
// which layer reads what, prefill against decode, taps and draft rings. Random weights make a chain of quantisers that
// amplifies last-bit differences (the oracle in single precision differs from itself by 5 % of the logits' rms), so the
// limits are wide and on the median row; the faults of invariance_test.cc move whole runs by 12 % and more.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/sampler.h"
#include "engine/session.h"
#include "support/tiny_model.h"

namespace onelane {
namespace {

using Case = std::tuple<std::string, std::string>;  // generation, kernels

class Oracle : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    model_ = load_tiny_model(std::get<0>(GetParam()));
    ASSERT_NE(model_, nullptr);
    kernels_ = std::get<1>(GetParam()) == "cpu" ? make_cpu_kernels(2) : make_reference_kernels();
  }
  Vectors vectors(const std::string& name) const {
    return Vectors(repository_path("tests/data/" + std::get<0>(GetParam()) + "/" + name + ".safetensors"));
  }
  std::unique_ptr<Model> model_;
  std::unique_ptr<Kernels> kernels_;
};

// rms of row differences over the rms of the expected row.
std::vector<double> relative_errors(std::span<const float> rows, std::span<const float> expected, size_t width) {
  std::vector<double> errors;
  for (size_t i = 0; i + width <= expected.size(); i += width) {
    const std::vector<float> zero(width, 0.0f);
    errors.push_back(rms_difference(rows.subspan(i, width), expected.subspan(i, width)) /
                     rms_difference(expected.subspan(i, width), zero));
  }
  return errors;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TEST_P(Oracle, PrefillDecodeAndDrafts) {
  const size_t vocab = static_cast<size_t>(model_->spec.vocab);
  for (const int length : {21, 250}) {
    const Vectors golden = vectors("end_to_end_" + std::to_string(length));
    const auto tokens = golden.get<int32_t>("token_ids");
    auto created = Session::create(*model_, *kernels_, {.max_tokens = 512, .chunk = 512});
    ASSERT_TRUE(created);
    Session& session = **created;

    std::vector<float> all;
    ASSERT_TRUE(session.append_rows(std::span(tokens).first(static_cast<size_t>(length)),
                                    [&](int, auto row) { all.insert(all.end(), row.begin(), row.end()); }));
    std::vector<float> chosen;
    for (const int32_t position : golden.get<int32_t>("prefill.positions")) {
      const auto row = std::span(all).subspan(static_cast<size_t>(position) * vocab, vocab);
      chosen.insert(chosen.end(), row.begin(), row.end());
    }
    const auto prefill = relative_errors(chosen, golden.floats("prefill.logits"), vocab);
    EXPECT_LT(median(prefill), 8e-2) << length;

    std::vector<float> decode;
    int equal_drafts = 0;
    const auto drafts = golden.get<int32_t>("draft_ids");
    const auto confidence = golden.floats("confidence");
    std::vector<double> confidence_errors;
    for (size_t t = 0; t < 12; ++t) {
      const auto logits = session.append(std::span(tokens).subspan(static_cast<size_t>(length) + t, 1));
      ASSERT_TRUE(logits);
      decode.insert(decode.end(), logits->begin(), logits->end());
      const auto block = session.draft(tokens[static_cast<size_t>(length) + t + 1], 5);
      ASSERT_TRUE(block);
      ASSERT_EQ(block->size(), 5u);
      for (size_t i = 0; i < 5; ++i) {
        equal_drafts += (*block)[i].token == drafts[t * 5 + i];
        confidence_errors.push_back(std::fabs((*block)[i].confidence - confidence[t * 5 + i]));
      }
    }
    const auto decoded = relative_errors(decode, golden.floats("decode.logits"), vocab);
    EXPECT_LT(median(decoded), 1e-1) << length;
    // A draft that differs changes the Markov bias of those after it, so single flips cost up to five.
    EXPECT_GE(equal_drafts, 36) << length;
    EXPECT_LT(median(confidence_errors), 0.75) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Oracle,
                         ::testing::Combine(::testing::Values("v4", "v41"), ::testing::Values("reference", "cpu")),
                         [](const auto& parameter) {
                           return std::get<0>(parameter.param) + "_" + std::get<1>(parameter.param);
                         });

}  // namespace
}  // namespace onelane
