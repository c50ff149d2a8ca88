// Where the receipt of a command that measured goes.
#pragma once

#include <string>

#include "base/result.h"
#include "lane/receipt.h"

namespace onelane {

// How this program was called, with `secret` (an API key; empty: none) as "***".
std::string command_line(const std::string& secret);

// Writes the receipt to `file` and adds it to the store `db`; empty is nowhere.
Result<void> keep_receipt(const Receipt& receipt, const std::string& file, const std::string& db);

}  // namespace onelane
