#include "base/mapped_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/format.h"

namespace onelane {
namespace {

Error os_error(const std::string& path, const char* what) {
  const int code = errno;
  return {code == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
          format("{}: {}: {}", path, what, std::strerror(code))};
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return os_error(path, "cannot open");
  struct stat status{};
  if (::fstat(file.fd, &status) != 0) return os_error(path, "cannot stat");
  if (!S_ISREG(status.st_mode)) return Error{ErrorCode::kInvalidArgument, path + ": not a regular file"};
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return MappedFile(path, nullptr, 0);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return os_error(path, "cannot map");
  return MappedFile(path, data, size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Result<std::string> read_file(const std::string& path) {
  ONELANE_ASSIGN(const MappedFile file, MappedFile::open(path));
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

Result<void> write_file(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".part";
  {
    const Descriptor file{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.fd < 0) return os_error(temporary, "cannot create");
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t written = ::write(file.fd, bytes.data() + done, bytes.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return os_error(temporary, "cannot write");
      done += static_cast<size_t>(written);
    }
    if (::fsync(file.fd) != 0) return os_error(temporary, "cannot sync");
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return os_error(path, "cannot rename into place");
  return {};
}

}  // namespace onelane
