#include "lane/sha256.h"

#include <algorithm>
#include <array>

#include <openssl/evp.h>

#include "base/format.h"
#include "base/mapped_file.h"

namespace onelane {

std::string sha256(std::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  const int done = EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr);
  ONELANE_CHECK(done == 1 && size == 32, "the crypto library has no SHA-256");
  return format("{:02x}", fmt::join(digest.begin(), digest.begin() + size, ""));
}

Result<std::string> sha256_file(const std::string& path) {
  ONELANE_ASSIGN(const MappedFile file, MappedFile::open(path));
  return sha256({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
}

bool is_sha256(std::string_view text) {
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == 64 && std::all_of(text.begin(), text.end(), hex);
}

}  // namespace onelane
