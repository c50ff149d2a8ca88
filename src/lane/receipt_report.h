// Receipts as a document for people: tables, plots, gates, comparisons and what stands behind them.
#pragma once

#include <span>
#include <string>

#include "lane/document.h"
#include "lane/receipt.h"

namespace onelane {

struct NamedReceipt {
  Receipt receipt;
  std::string digest;
};

// All receipts in one document, in the order given: a summary first, then one section each. Columns follow
// spec/operations.md 6.3; "∅" stands for a cell that was limited by capacity, "–" for what is not known.
Document receipts_document(const std::string& title, std::span<const NamedReceipt> receipts);

// Names of the figures that a receipt of a comparison carries in its cells' measures and samples (ab_receipt.h writes
// them, the report shows them).
inline constexpr const char* kAbEffect = "effect_percent";
inline constexpr const char* kAbEffectLow = "effect_low_percent";
inline constexpr const char* kAbEffectHigh = "effect_high_percent";
inline constexpr const char* kAbWorseP = "worse_p_holm";
inline constexpr const char* kAbSteps = "step_rate_percent";
inline constexpr const char* kAbAccept = "accept_percent";
inline constexpr const char* kAbQuads = "quad_effect_percent";
inline constexpr const char* kAbBlocks = "blocks";  // the cell of the blocks: samples "order", "candidate", "metric"

}  // namespace onelane
