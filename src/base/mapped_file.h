// MappedFile: a whole file, read-only, in the address space. Move-only; unmapped when it goes.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace onelane {

class MappedFile {
 public:
  // Maps `path`. An empty file gives an empty span. Errors name the path and the operating system's reason.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, void* data, size_t size) : path_(std::move(path)), data_(data), size_(size) {}
  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

// The whole of a (small) file as a string: prompts, JSON, templates.
Result<std::string> read_file(const std::string& path);

// Writes `bytes` to `path` through a temporary file beside it and a rename, so that a reader sees the old or the new.
Result<void> write_file(const std::string& path, std::string_view bytes);

}  // namespace onelane
