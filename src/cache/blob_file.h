// One page or checkpoint in a file of its own.
//
// A fixed header, then the payload (docs/cache.md has the table). The checksum covers the rest of the header and the
// payload; the file's name is the key that parent and tokens hash to. Numbers are little-endian, as in memory. Files
// appear whole: they are written beside their place and renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cache/blob.h"
#include "cache/page_key.h"

namespace onelane {

enum class BlobKind : uint32_t { kPage = 0, kCheckpoint = 1 };

struct BlobId {
  PageKey key;
  BlobKind kind = BlobKind::kPage;
  bool operator==(const BlobId&) const = default;
};

struct BlobIdHash {
  size_t operator()(const BlobId& id) const { return PageKeyHash()(id.key) ^ static_cast<size_t>(id.kind); }
};

struct BlobHeader {
  BlobKind kind = BlobKind::kPage;
  PageKey model;   // root_key() of the model's identity
  PageKey parent;  // of the page before, or `model`
  PageTokens tokens{};
  uint64_t payload_bytes = 0;

  BlobId id() const { return {page_key(parent, tokens), kind}; }
  bool operator==(const BlobHeader&) const = default;
};

inline constexpr size_t kBlobHeaderBytes = 584;
using BlobHeaderBytes = std::array<std::byte, kBlobHeaderBytes>;

// "<32 hex digits>.page" or ".checkpoint", and back. A name with kTemporarySuffix is a file that was being written.
inline constexpr std::string_view kTemporarySuffix = ".tmp";
std::string blob_file_name(const BlobId& id);
std::optional<BlobId> parse_blob_file_name(std::string_view name);

// `payload` of header.payload_bytes; the checksum is computed.
BlobHeaderBytes encode_blob_header(const BlobHeader& header, std::span<const std::byte> payload);
// `bytes`: the beginning of a file of `file_bytes`. Checks everything but the checksum. Errors say what is wrong.
Result<BlobHeader> parse_blob_header(std::span<const std::byte> bytes, uint64_t file_bytes);
Result<void> check_blob(std::span<const std::byte> header, std::span<const std::byte> payload);

// Errors of all three name the path. kNotFound: no such file; kIo: the system's reason; kCorrupt: its content.
Result<void> write_blob_file(const std::string& path, const BlobHeader& header, std::span<const std::byte> payload);
// The header alone; the payload was not looked at.
Result<BlobHeader> read_blob_header(const std::string& path);
// The payload, if the file's header is `expected` and the checksum fits.
Result<Blob> read_blob_file(const std::string& path, const BlobHeader& expected);

}  // namespace onelane
