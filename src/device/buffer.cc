#include "device/buffer.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"

namespace onelane {
namespace {

Memory* host_buffers = nullptr;

// On both sides of a fenced buffer that is not plain host memory. Its own alignment stays.
constexpr size_t kBorder = 256;
constexpr int kBorderByte = 0xa5;

void check_border(Memory& memory, const std::byte* border) {
  std::array<std::byte, kBorder> bytes;
  memory.copy(bytes.data(), border, kBorder);
  ONELANE_CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{kBorderByte}; }),
                "something wrote beside a buffer of a device");
}

}  // namespace

void set_host_buffers(Memory& memory) { host_buffers = &memory; }

bool fences_on() {
  static const bool on = [] {
    const char* value = std::getenv("ONELANE_FENCE");
    return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
  }();
  return on;
}

Buffer::Buffer(size_t bytes, Memory& memory) : size_(bytes) {
  if (bytes == 0) return;
  if (&memory == &host_memory() && fences_on()) {
    *this = Buffer(bytes, true);
    return;
  }
  memory_ = &memory;
  if (fences_on()) {
    mapping_ = memory.allocate(bytes + 2 * kBorder);
    ONELANE_CHECK(mapping_ != nullptr, "out of memory");
    memory.fill(mapping_, kBorderByte, kBorder);
    data_ = mapping_ + kBorder;
    memory.fill(data_ + bytes, kBorderByte, kBorder);
    poison();
    return;
  }
  data_ = memory.allocate(bytes);
  ONELANE_CHECK(data_ != nullptr, "out of memory");
  zero();
}

Buffer::Buffer(size_t bytes, bool fenced) : size_(bytes) {
  if (bytes == 0) return;
  if (!fenced) {
    memory_ = host_buffers != nullptr ? host_buffers : &host_memory();
    data_ = memory_->allocate(bytes);
    ONELANE_CHECK(data_ != nullptr, "out of memory");
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
  if (mapping_ != nullptr && memory_ != nullptr) {
    check_border(*memory_, mapping_);
    check_border(*memory_, data_ + size_);
    memory_->release(mapping_);
  } else if (mapping_ != nullptr) {
    ::munmap(mapping_, mapping_size_);
  } else if (data_ != nullptr) {
    memory_->release(data_);
  }
}

void Buffer::zero() { fill(0); }

void Buffer::poison() { fill(0xff); }

void Buffer::fill(int byte) {
  if (size_ > 0) (memory_ != nullptr ? *memory_ : host_memory()).fill(data_, byte, size_);
}

void Buffer::swap(Buffer& other) {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(memory_, other.memory_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_size_, other.mapping_size_);
}

}  // namespace onelane
