#include "lane/receipt.h"

#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/mapped_file.h"
#include "lane/sample_receipt.h"

namespace onelane {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

std::string sealed() {
  const auto text = receipt_json(sample_receipt());
  EXPECT_TRUE(text) << text.error().message;
  return text ? *text : "";
}

std::string refusal(const json& document) {
  const auto receipt = parse_receipt(document.dump());
  return receipt ? "" : receipt.error().message;
}

TEST(Sha256, KnownAnswers) {
  // FIPS 180-4's own examples.
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_TRUE(is_sha256(sha256("")));
  EXPECT_FALSE(is_sha256(std::string(64, 'A')));
}

TEST(Receipt, ReadsWhatItWroteToTheByte) {
  const std::string text = sealed();
  const auto receipt = parse_receipt(text);
  ASSERT_TRUE(receipt) << receipt.error().message;
  EXPECT_EQ(*receipt_json(*receipt), text);
  EXPECT_EQ(receipt->cells[1].tokens, 24000);
  EXPECT_EQ(receipt->gates[0].items[1].detail, "said 12 instead of 21");
  EXPECT_EQ(receipt->arm.role, ArmRole::kCandidate);
  EXPECT_EQ(receipt->gates[0].null_arm, Verdict::kPass);
  EXPECT_TRUE(verify_receipt(text, "").empty());
}

TEST(Receipt, SummariesFollowFromSamples) {
  const auto receipt = parse_receipt(sealed());
  const ReceiptCell& cell = receipt->cells[0];
  EXPECT_DOUBLE_EQ(*cell.tok_s, 6000 / 29.97);
  EXPECT_DOUBLE_EQ(*cell.ttft_ms.p50, 11.875);
  EXPECT_DOUBLE_EQ(*cell.itl_ms.p95, 4.975);
}

TEST(Receipt, UnknownIsNullAndAbsentIsUnknown) {
  Receipt bare;
  bare.reasons = {"nothing was asked"};
  json document = json::parse(*receipt_json(bare));
  EXPECT_TRUE(document["machine"]["gpu"].is_null());
  EXPECT_TRUE(document["resolved"]["sampling"]["temperature"].is_null());
  document["machine"].erase("gpu");
  const auto again = seal_receipt(document.dump());
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_FALSE(parse_receipt(*again)->machine.gpu);
}

// Every leaf of the document, changed alone, must be noticed.
TEST(Receipt, AnySingleChangeIsDetected) {
  const json document = json::parse(sealed());
  const json flat = document.flatten();
  ASSERT_GT(flat.size(), 120u);
  for (const auto& [pointer, value] : flat.items()) {
    json changed = value;
    if (value.is_boolean()) {
      changed = !value.get<bool>();
    } else if (value.is_number_integer()) {
      changed = value.get<int64_t>() + 1;
    } else if (value.is_number()) {
      changed = std::nextafter(value.get<double>(), 1e9);
    } else if (value.is_string()) {
      changed = value.get<std::string>() + "x";
    } else {
      changed = 1;  // null, an empty array or object
    }
    json tampered = document;
    tampered[json::json_pointer(pointer)] = changed;
    EXPECT_FALSE(verify_receipt(tampered.dump(), "").empty()) << pointer;
    tampered = document;
    auto& parent = tampered[json::json_pointer(pointer).parent_pointer()];
    if (parent.is_object()) {
      parent.erase(json::json_pointer(pointer).back());
      EXPECT_FALSE(verify_receipt(tampered.dump(), "").empty()) << "removed " << pointer;
    }
  }
}

TEST(Receipt, ADigestMadeNewDoesNotHideAnEditedSummary) {
  json document = json::parse(sealed());
  document["cells"][0]["ttft_ms"]["p95"] = 10.0;
  document["cells"][1]["tok_s"] = 2000.0;
  const auto problems = verify_receipt(*seal_receipt(document.dump()), "");
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_THAT(problems[0], HasSubstr("prose/C1/ctx0: ttft_ms.p95 is 10"));
  EXPECT_THAT(problems[1], HasSubstr("prose/C4/ctx0: tok_s is 2000"));
}

TEST(Receipt, AVerdictIsNeverBetterThanItsGates) {
  json document = json::parse(sealed());
  document["verdict"] = "PASS";
  EXPECT_THAT(verify_receipt(*seal_receipt(document.dump()), "").at(0), HasSubstr("allow FAIL only"));
  Receipt receipt = sample_receipt();
  receipt.void_reasons = {"the power limit changed"};
  EXPECT_EQ(allowed_verdict(receipt), Verdict::kVoid);
  EXPECT_THAT(receipt_json(receipt).error().message, HasSubstr("verdict: is FAIL"));
  receipt.void_reasons.clear();
  receipt.reasons.clear();
  EXPECT_THAT(receipt_json(receipt).error().message, HasSubstr("FAIL without a reason"));
}

TEST(Receipt, RefusalsNameTheField) {
  const json document = json::parse(sealed());
  const auto with = [&](const char* pointer, const json& value) {
    json changed = document;
    changed[json::json_pointer(pointer)] = value;
    return refusal(changed);
  };
  EXPECT_EQ(with("/cells/1/tok_s", "fast"), "cells[1].tok_s: must be a number, not a string");
  EXPECT_EQ(with("/kind", "party"), "kind: must be one of bench, gate, soak, ab, drill, promotion");
  EXPECT_EQ(with("/gates/0/bounds", 3), "gates[0].bounds: is not a field of lane-receipt/1");
  EXPECT_EQ(with("/cells/0/errors", 1.5), "cells[0].errors: must be a whole number of 64 bits, not a number");
  EXPECT_EQ(with("/resolved/settings/max_seqs", 16), "resolved.settings.max_seqs: must be a string, not a number");
  EXPECT_EQ(with("/schema", "lane-receipt/2"), "schema: must be \"lane-receipt/1\"");
  EXPECT_THAT(with("/title", "other"), HasSubstr("digest: does not fit"));
  json without = document;
  without.erase("digest");
  EXPECT_THAT(refusal(without), HasSubstr("digest: is missing"));
  without = document;
  without["protocol"].erase("file");
  EXPECT_EQ(refusal(without), "protocol.file: is missing");
  EXPECT_THAT(refusal(json::array()), HasSubstr("must be a JSON object"));
  EXPECT_THAT(parse_receipt("{\"schema\": 1, \"schema\": 2}").error().message, HasSubstr("given twice"));
  EXPECT_THAT(load_receipt(testing::TempDir() + "/no-such-receipt").error().message, HasSubstr("no-such-receipt"));
}

TEST(Receipt, NumbersMustBeFinite) {
  Receipt receipt = sample_receipt();
  receipt.cells[1].measures["jain"] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(receipt_json(receipt).error().message, HasSubstr("cells[1].measures.jain: is not a finite number"));
}

TEST(Receipt, IsScrubbedWhenItIsWritten) {
  Receipt receipt = sample_receipt();
  receipt.command = "bench http://10.1.2.3:8000 --api-key sk-abcdefghijkl\xff";
  receipt.resolved.settings["api_key"] = "anything";
  const auto back = parse_receipt(*receipt_json(receipt));
  EXPECT_EQ(back->command, "bench http://[address]:8000 --api-key [key]\xEF\xBF\xBD");
  EXPECT_EQ(back->resolved.settings.at("api_key"), "[key]");
}

TEST(Receipt, ArtifactsAreHashedAndStayInTheFolder) {
  const fs::path folder = fs::path(testing::TempDir()) / (std::to_string(::getpid()) + "_receipt");
  fs::create_directories(folder / "raw");
  ASSERT_TRUE(write_file((folder / "raw/stream.jsonl").string(), "raw"));
  Receipt receipt = sample_receipt();
  const auto problems = [&] { return verify_receipt(*receipt_json(receipt), folder.string()); };
  EXPECT_TRUE(problems().empty());
  receipt.artifacts[0].bytes = 4;
  EXPECT_THAT(problems().at(0), HasSubstr("another size"));
  ASSERT_TRUE(write_file((folder / "raw/stream.jsonl").string(), "rax"));
  EXPECT_THAT(problems().at(0), HasSubstr("its SHA-256 is"));
  receipt.artifacts[0].path = "../stream.jsonl";
  EXPECT_THAT(problems().at(0), HasSubstr("must be a path below"));
  fs::remove_all(folder);
}

TEST(Receipt, RunIdsSortByTimeAndDiffer) {
  const std::string a = new_run_id(), b = new_run_id();
  EXPECT_NE(a, b);
  EXPECT_EQ(a.size(), 25u);
  EXPECT_EQ(a[8], 'T');
}

}  // namespace
}  // namespace onelane
