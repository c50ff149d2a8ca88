#include "cache/blob_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/format.h"

namespace onelane {
namespace {

constexpr std::array<char, 8> kMagic = {'o', 'n', 'e', 'l', 'a', 'n', 'e', 'K'};
constexpr uint32_t kVersion = 1;
constexpr std::string_view kPageSuffix = ".page";
constexpr std::string_view kCheckpointSuffix = ".checkpoint";

struct RawHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t kind;
  PageKey model;
  PageKey parent;
  PageTokens tokens;
  uint64_t payload_bytes;
  PageKey checksum;  // of everything before it, then the payload
};
static_assert(sizeof(RawHeader) == kBlobHeaderBytes);
constexpr size_t kCheckedBytes = offsetof(RawHeader, checksum);

PageKey checksum(std::span<const std::byte> header, std::span<const std::byte> payload) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_128bits_reset(state.get());
  XXH3_128bits_update(state.get(), header.data(), kCheckedBytes);
  XXH3_128bits_update(state.get(), payload.data(), payload.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return {hash.high64, hash.low64};
}

// A file descriptor that closes itself.
class File {
 public:
  File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return fd_ >= 0; }
  int64_t size() const {
    struct stat info{};
    return ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode) ? info.st_size : -1;
  }
  // All of it; false with errno set, or with errno 0 at the end of the file.
  bool read(std::span<std::byte> out) {
    while (!out.empty()) {
      errno = 0;
      const ssize_t count = ::read(fd_, out.data(), out.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      out = out.subspan(static_cast<size_t>(count));
    }
    return true;
  }
  bool write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
    return true;
  }
  bool close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0;
  }

 private:
  int fd_;
};

Error io_error(const std::string& path) {
  if (errno == 0) return {ErrorCode::kCorrupt, path + ": the file ends early"};
  return {errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, format("{}: {}", path, std::strerror(errno))};
}

Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

// Reads and parses the header; leaves the file at the payload.
Result<BlobHeader> read_header(File& file, const std::string& path, BlobHeaderBytes& bytes) {
  if (!file.is_open()) return io_error(path);
  const int64_t size = file.size();
  if (size < 0) return corrupt(path + ": not a regular file");
  if (size < static_cast<int64_t>(kBlobHeaderBytes)) return corrupt(path + ": shorter than a header");
  if (!file.read(bytes)) return io_error(path);
  auto header = parse_blob_header(bytes, static_cast<uint64_t>(size));
  if (!header) return std::move(header).error().in(path);
  return header;
}

}  // namespace

std::string blob_file_name(const BlobId& id) {
  return to_hex(id.key).append(id.kind == BlobKind::kPage ? kPageSuffix : kCheckpointSuffix);
}

std::optional<BlobId> parse_blob_file_name(std::string_view name) {
  const size_t dot = name.find('.');
  const auto key = key_from_hex(name.substr(0, dot));
  if (!key) return std::nullopt;
  for (const BlobKind kind : {BlobKind::kPage, BlobKind::kCheckpoint}) {
    const BlobId id{*key, kind};
    if (name == blob_file_name(id)) return id;
  }
  return std::nullopt;
}

BlobHeaderBytes encode_blob_header(const BlobHeader& header, std::span<const std::byte> payload) {
  RawHeader raw{
      kMagic,         kVersion, static_cast<uint32_t>(header.kind), header.model, header.parent, header.tokens,
      payload.size(), {}};
  BlobHeaderBytes bytes;
  std::memcpy(bytes.data(), &raw, sizeof(raw));
  raw.checksum = checksum(bytes, payload);
  std::memcpy(bytes.data(), &raw, sizeof(raw));
  return bytes;
}

Result<BlobHeader> parse_blob_header(std::span<const std::byte> bytes, uint64_t file_bytes) {
  if (bytes.size() < kBlobHeaderBytes) return corrupt("shorter than a header");
  RawHeader raw;
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  if (raw.magic != kMagic) return corrupt("not a cache file");
  if (raw.version != kVersion) return corrupt(format("version {}, this build writes {}", raw.version, kVersion));
  if (raw.kind > static_cast<uint32_t>(BlobKind::kCheckpoint)) return corrupt(format("kind {} is unknown", raw.kind));
  if (file_bytes < kBlobHeaderBytes || raw.payload_bytes != file_bytes - kBlobHeaderBytes) {
    return corrupt(format("the header announces {} bytes of payload in a file of {}", raw.payload_bytes, file_bytes));
  }
  return BlobHeader{static_cast<BlobKind>(raw.kind), raw.model, raw.parent, raw.tokens, raw.payload_bytes};
}

Result<void> check_blob(std::span<const std::byte> header, std::span<const std::byte> payload) {
  if (header.size() < kBlobHeaderBytes) return corrupt("shorter than a header");
  RawHeader raw;
  std::memcpy(&raw, header.data(), sizeof(raw));
  if (raw.checksum != checksum(header, payload)) return corrupt("the checksum does not fit");
  return {};
}

Result<void> write_blob_file(const std::string& path, const BlobHeader& header, std::span<const std::byte> payload) {
  const std::string temporary = path + std::string(kTemporarySuffix);
  File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  // No fsync: a process that dies loses nothing the kernel has, and after a power cut the checksum tells.
  if (!file.is_open() || !file.write(encode_blob_header(header, payload)) || !file.write(payload) || !file.close() ||
      std::rename(temporary.c_str(), path.c_str()) != 0) {
    Error error = io_error(path);
    ::unlink(temporary.c_str());
    return error;
  }
  return {};
}

Result<BlobHeader> read_blob_header(const std::string& path) {
  BlobHeaderBytes bytes;
  File file(path, O_RDONLY | O_NONBLOCK);
  return read_header(file, path, bytes);
}

Result<Blob> read_blob_file(const std::string& path, const BlobHeader& expected) {
  BlobHeaderBytes bytes;
  File file(path, O_RDONLY | O_NONBLOCK);
  ONELANE_ASSIGN(const BlobHeader header, read_header(file, path, bytes));
  if (header != expected) return corrupt(path + ": of another prefix, model or size");
  Blob payload(header.payload_bytes);
  if (!file.read(payload.bytes())) return io_error(path);
  if (auto checked = check_blob(bytes, payload.bytes()); !checked) return std::move(checked).error().in(path);
  return payload;
}

}  // namespace onelane
