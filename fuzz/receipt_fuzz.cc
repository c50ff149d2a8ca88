// Any text as a receipt: refused with a message, or one that can be verified, written again and shown.
#include <cstdlib>

#include "lane/receipt_report.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace onelane;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto as_it_is = parse_receipt(text);
  if (!as_it_is && as_it_is.error().message.empty()) std::abort();
  // Sealed, so that a changed byte does not end at the digest.
  const auto sealed = seal_receipt(text);
  if (!sealed) {
    if (sealed.error().message.empty() || as_it_is) std::abort();
    return 0;
  }
  auto receipt = parse_receipt(*sealed);
  if (!receipt) std::abort();
  verify_receipt(*sealed, "");
  if (const auto again = receipt_json(*receipt)) {
    if (!parse_receipt(*again)) std::abort();
  }
  const std::vector<NamedReceipt> shown = {{*std::move(receipt), receipt_digest(*sealed)}};
  const std::string page = render_html(receipts_document("fuzz", shown), "fuzz");
  if (page.find("<script") != std::string::npos || page.find("nan\"") != std::string::npos) std::abort();
  return 0;
}
