// SHA-256, as receipts and protocol files name what they stand on.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace onelane {

// The digest of `bytes` in 64 lower-case hexadecimal digits.
std::string sha256(std::string_view bytes);

// The digest of a file's bytes. Errors name the path.
Result<std::string> sha256_file(const std::string& path);

// 64 lower-case hexadecimal digits.
bool is_sha256(std::string_view text);

}  // namespace onelane
