#include "device/buffer.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"

namespace onelane {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

bool fences_on() {
  static const bool on = [] {
    const char* value = std::getenv("ONELANE_FENCE");
    return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
  }();
  return on;
}

Buffer::Buffer(size_t bytes, bool fenced) : size_(bytes) {
  if (bytes == 0) return;
  if (!fenced) {
    void* memory = nullptr;
    ONELANE_CHECK(::posix_memalign(&memory, kAlignment, bytes) == 0, "out of memory");
    data_ = static_cast<std::byte*>(memory);
    zero();
    return;
  }
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t body = (bytes + page - 1) / page * page;
  mapping_size_ = body + 2 * page;
  void* memory = ::mmap(nullptr, mapping_size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ONELANE_CHECK(memory != MAP_FAILED, "no address space for a fenced buffer");
  mapping_ = static_cast<std::byte*>(memory);
  ONELANE_CHECK(::mprotect(mapping_ + page, body, PROT_READ | PROT_WRITE) == 0, "out of memory");
  data_ = mapping_ + page + body - bytes;
  poison();
}

Buffer::~Buffer() {
  if (mapping_ != nullptr) {
    ::munmap(mapping_, mapping_size_);
  } else {
    std::free(data_);
  }
}

void Buffer::zero() {
  if (size_ > 0) std::memset(data_, 0, size_);
}

void Buffer::poison() {
  if (size_ > 0) std::memset(data_, 0xff, size_);
}

void Buffer::swap(Buffer& other) {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_size_, other.mapping_size_);
}

}  // namespace onelane
