// Blob: bytes in host memory, for pages and slot states that wait outside a KvStore.
//
// Unlike a Buffer it starts uninitialised (it is always filled by a copy) and has no fence: there may be a hundred
// thousand of them.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

namespace onelane {

class Blob {
 public:
  Blob() = default;
  explicit Blob(size_t bytes) : data_(std::make_unique_for_overwrite<std::byte[]>(bytes)), size_(bytes) {}
  Blob(Blob&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Blob& operator=(Blob&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  size_t size() const { return size_; }
  std::span<std::byte> bytes() { return {data_.get(), size_}; }
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t size_ = 0;
};

// A copy of `bytes`.
inline Blob copy_to_blob(std::span<const std::byte> bytes) {
  Blob blob(bytes.size());
  if (!bytes.empty()) std::memcpy(blob.bytes().data(), bytes.data(), bytes.size());
  return blob;
}

}  // namespace onelane
