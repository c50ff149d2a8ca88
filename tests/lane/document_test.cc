#include "lane/document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lane/plot.h"
#include "lane/receipt_report.h"
#include "lane/sample_receipt.h"

namespace onelane {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Document, ThreeDigits) {
  EXPECT_EQ(three_digits(0), "0");
  EXPECT_EQ(three_digits(12), "12");
  EXPECT_EQ(three_digits(12345.6), "12300");
  EXPECT_EQ(three_digits(123.4), "123");
  EXPECT_EQ(three_digits(9.999), "10.0");
  EXPECT_EQ(three_digits(0.98765), "0.988");
  EXPECT_EQ(three_digits(-0.00123), "-0.00123");
  EXPECT_EQ(three_digits(2.5e7), "2.50e+07");
  EXPECT_EQ(three_digits(999.9), "1000");
}

TEST(Document, MarkdownKeepsItsTables) {
  const Document document = {Heading{1, "T"}, Paragraph{"words"}, TextList{{"a", "b"}},
                             Table{{"x", "y"}, {{"1|2", "3\n4"}, {"5"}}, 1, "said below"}, Figure{"<svg/>", "c"}};
  EXPECT_EQ(render_markdown(document),
            "# T\n\nwords\n\n- a\n- b\n\n| x | y |\n|---|---:|\n| 1\\|2 | 3 4 |\n| 5 |  |\n\nsaid below\n\n");
}

// Whatever a server or a prompt says about itself, it is text on the page.
TEST(Document, NothingInAReceiptBecomesMarkup) {
  const std::string hostile = "</title><script>alert(1)</script>\"'&";
  Receipt receipt = sample_receipt();
  receipt.title = receipt.command = receipt.build.id = receipt.cells[0].id = hostile;
  receipt.reasons = {hostile};
  receipt.gates[0].items[0].detail = hostile;
  receipt.gates[0].range = hostile;
  receipt.resolved.settings[hostile] = hostile;
  const std::vector<NamedReceipt> receipts = {{receipt, "digest"}};
  const std::string page = render_html(receipts_document(hostile, receipts), hostile);
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script")), HasSubstr("&lt;script&gt;")));
}

TEST(Document, ThePageStandsAlone) {
  const std::vector<NamedReceipt> receipts = {{sample_receipt(), "digest"}};
  const std::string page = render_html(receipts_document("Receipts", receipts), "Receipts");
  EXPECT_THAT(page, AllOf(HasSubstr("default-src 'none'"), HasSubstr("prefers-color-scheme: dark"), HasSubstr("<svg")));
  EXPECT_THAT(page, AllOf(Not(HasSubstr(" src=")), Not(HasSubstr("@import")), Not(HasSubstr("url("))));
}

TEST(Document, ReportSaysWhatTheReceiptSays) {
  Receipt receipt = *parse_receipt(*receipt_json(sample_receipt()));
  receipt.cells[1].flags = {"capacity_limited"};
  const std::vector<NamedReceipt> receipts = {{receipt, "0123abcd"}};
  const std::string text = render_markdown(receipts_document("Receipts", receipts));
  EXPECT_THAT(text, HasSubstr("| prose/C1/ctx0 | 1 | 0 | 200 | 70.5 | 1.84 | 11.9 / 13.7 | 4.75 / 5.00 |"));
  EXPECT_THAT(text, HasSubstr("| prose/C4/ctx0 | 4 | 0 | ∅ |"));
  EXPECT_THAT(text, HasSubstr("| needle/1 | FAIL | lengths 512-4096, 12 prompts | PASS | caught | 11 of 12 found |"));
  EXPECT_THAT(text, HasSubstr("| 4096/50% | wrong | said 12 instead of 21 |"));
  EXPECT_THAT(text, HasSubstr("| digest | 0123abcd |"));
  EXPECT_THAT(text, HasSubstr("temperature 0.6, top_p 0.95, seed 7, max_tokens 256, EOS ignored"));
}

TEST(Plot, DrawsWhatItIsGiven) {
  const std::string bars = bar_plot("T & t", "tok/s", {{"a<b", 10, 0}, {"zero", 0, 1}});
  EXPECT_THAT(bars,
              AllOf(HasSubstr("T &amp; t"), HasSubstr("a&lt;b"), HasSubstr("role=\"img\""), Not(HasSubstr("nan"))));
  EXPECT_EQ(distribution_plot("t", "ms", {{"none", {}}}), "");
  EXPECT_THAT(distribution_plot("t", "ms", {{"one", {3}}, {"same", {3, 3}}}),
              AllOf(HasSubstr("<path"), Not(HasSubstr("nan"))));
  EXPECT_THAT(forest_plot("t", "%", {{"x", {1, 0.5, 1.5}}}, {1.5}), HasSubstr("stroke-dasharray"));
  EXPECT_THAT(forest_plot("t", "%", {{"x", {0, 0, 0}}}), AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  for (const double value : {0.0, 5e-324, 1e-300, 1e16, 1.7e308}) {
    EXPECT_THAT(point_plot("t", "x", "y", {{value, -value, 0}, {value, value, 1}}, {"a", "b"}),
                AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))))
        << value;
  }
  EXPECT_EQ(point_plot("t", "block", "tok/s", {}, {}), "");
  EXPECT_THAT(point_plot("t", "block", "tok/s", {{1, 5, 0}, {2, 5, 1}}, {"a", "b"}),
              AllOf(HasSubstr("fill-b"), Not(HasSubstr("nan"))));
}

}  // namespace
}  // namespace onelane
