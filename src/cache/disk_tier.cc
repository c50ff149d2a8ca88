#include "cache/disk_tier.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/format.h"
#include "base/log.h"

namespace onelane {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = "/lock";
constexpr int kNamedAtStart = 8;  // files; a directory of another model holds thousands

Error io_error(const std::string& path, const std::string& reason) {
  return {ErrorCode::kIo, format("cache directory {}: {}", path, reason)};
}

}  // namespace

// -- opening

Result<std::unique_ptr<DiskTier>> DiskTier::open(DiskTierOptions options, Files& found) {
  std::error_code failure;
  fs::create_directories(options.dir, failure);
  if (failure) return io_error(options.dir, failure.message());
  const int lock = ::open((options.dir + kLockName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0) return io_error(options.dir, std::strerror(errno));
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock);
    return io_error(options.dir, "in use by another process; give each server a directory of its own");
  }
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(options), lock));
  ONELANE_TRY(tier->scan(found));
  return tier;
}

DiskTier::DiskTier(DiskTierOptions options, int lock_fd)
    : options_(std::move(options)), lock_fd_(lock_fd), writer_([this] { write_loop(); }) {}

DiskTier::~DiskTier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  writer_.join();
  ::close(lock_fd_);
}

std::string DiskTier::path_of(const BlobId& id) const { return options_.dir + "/" + blob_file_name(id); }

Result<void> DiskTier::scan(Files& found) {
  std::error_code failure;
  fs::directory_iterator entries(options_.dir, failure);
  for (; !failure && entries != fs::directory_iterator(); entries.increment(failure)) {
    const std::string path = entries->path().string();
    std::string name = entries->path().filename().string();
    const bool temporary = name.ends_with(kTemporarySuffix);
    if (temporary) name.resize(name.size() - kTemporarySuffix.size());
    const auto id = parse_blob_file_name(name);
    if (!id) continue;
    if (temporary) {
      ::unlink(path.c_str());
      continue;
    }
    auto file = examine(path, *id);
    if (file) {
      found.emplace(*id, *std::move(file));
      continue;
    }
    if (++dropped_blobs_ <= kNamedAtStart) log_warning("{}: deleted", file.error().message);
    ::unlink(path.c_str());
  }
  if (failure) return io_error(options_.dir, failure.message());
  if (dropped_blobs_ > kNamedAtStart) {
    log_warning("cache directory {}: {} files deleted in all", options_.dir, dropped_blobs_);
  }
  return {};
}

Result<DiskTier::Found> DiskTier::examine(const std::string& path, const BlobId& id) const {
  ONELANE_ASSIGN(const BlobHeader header, read_blob_header(path));
  const size_t bytes = id.kind == BlobKind::kPage ? options_.page_bytes : options_.checkpoint_bytes;
  if (header.model != options_.model) return Error{ErrorCode::kCorrupt, path + ": written for another model"};
  if (header.id() != id) return Error{ErrorCode::kCorrupt, path + ": the name is not that of its tokens"};
  if (header.payload_bytes != bytes) {
    return Error{ErrorCode::kCorrupt,
                 format("{}: {} bytes where this model has {}", path, header.payload_bytes, bytes)};
  }
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return io_error(path, std::strerror(errno));
  return Found{header, int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

void DiskTier::adopt(const BlobId& id, int64_t file_bytes) {
  const std::lock_guard lock(mutex_);
  order_.push_front(id);
  index_[id] = {.file_bytes = file_bytes, .at = order_.begin(), .pending = nullptr, .counted = true};
  bytes_ += file_bytes;
}

void DiskTier::finish_adopting(const Files& found) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, file] : found) {
      if (!index_.contains(id)) doomed_.push_back(id);
    }
    while (bytes_ > options_.bytes) erase(index_.find(order_.back()), /*lost=*/true);
  }
  work_.notify_one();
}

// -- the caller's side

bool DiskTier::put(const BlobHeader& header, Blob payload) {
  auto job = std::make_shared<const Job>(Job{header, header.id(), std::move(payload)});
  const int64_t bytes = job->file_bytes();
  {
    const std::lock_guard lock(mutex_);
    if (index_.contains(job->id)) return true;
    if (bytes > options_.bytes) return false;
    if (!queue_.empty() && queued_bytes_ + bytes > options_.queue_bytes) {
      count_dropped_write("the disk does not keep up");
      return false;
    }
    order_.push_front(job->id);
    index_[job->id] = {.file_bytes = bytes, .at = order_.begin(), .pending = job, .counted = false};
    queue_.push_back(std::move(job));
    queued_bytes_ += bytes;
  }
  work_.notify_one();
  return true;
}

std::optional<Blob> DiskTier::read(const BlobHeader& expected) {
  const BlobId id = expected.id();
  {
    std::unique_lock lock(mutex_);
    const auto entry = index_.find(id);
    if (entry == index_.end()) return std::nullopt;
    if (const std::shared_ptr<const Job> job = entry->second.pending) {
      lock.unlock();
      if (job->header != expected) return std::nullopt;
      return copy_to_blob(job->payload.bytes());
    }
  }
  Result<Blob> payload = read_blob_file(path_of(id), expected);
  if (payload) return *std::move(payload);
  {
    const std::lock_guard lock(mutex_);
    const auto entry = index_.find(id);
    if (entry == index_.end()) return std::nullopt;  // deleted for room since we looked
    erase(entry, /*lost=*/false);
    ++dropped_blobs_;
  }
  log_warning("{}: dropped", payload.error().message);
  work_.notify_one();
  return std::nullopt;
}

void DiskTier::touch(std::span<const BlobId> ids) {
  const std::lock_guard lock(mutex_);
  for (const BlobId& id : ids) {
    if (const auto entry = index_.find(id); entry != index_.end()) {
      order_.splice(order_.begin(), order_, entry->second.at);
    }
  }
}

std::vector<BlobId> DiskTier::take_lost() {
  const std::lock_guard lock(mutex_);
  return std::exchange(lost_, {});
}

void DiskTier::clear() {
  {
    const std::lock_guard lock(mutex_);
    while (!index_.empty()) erase(index_.begin(), /*lost=*/false);
    lost_.clear();
  }
  work_.notify_one();
}

void DiskTier::flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return queue_.empty() && doomed_.empty() && !busy_; });
}

DiskStats DiskTier::stats() const {
  const std::lock_guard lock(mutex_);
  return {bytes_, dropped_blobs_, dropped_writes_};
}

// -- the writer's side

void DiskTier::write_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stop_ || !queue_.empty() || !doomed_.empty(); });
    if (queue_.empty() && doomed_.empty()) return;
    busy_ = true;
    std::shared_ptr<const Job> job;
    if (!queue_.empty()) {
      job = queue_.front();
      queue_.pop_front();
      if (!make_room(*job)) job = nullptr;
    }
    // Deletions first: what was deleted and put again since is written by this or a later job.
    const std::vector<BlobId> doomed = std::exchange(doomed_, {});
    lock.unlock();
    for (const BlobId& id : doomed) ::unlink(path_of(id).c_str());
    Result<void> written;
    if (job != nullptr) written = write_blob_file(path_of(job->id), job->header, job->payload.bytes());
    lock.lock();
    busy_ = false;
    if (job != nullptr) {
      const auto entry = index_.find(job->id);
      const bool wanted = entry != index_.end() && entry->second.pending == job;
      if (wanted && written) entry->second.pending = nullptr;
      if (wanted && !written) {
        erase(entry, /*lost=*/true);
        count_dropped_write(written.error().message);
      }
      if (!wanted) doomed_.push_back(job->id);  // cleared while it was being written
    }
    idle_.notify_all();
  }
}

// Takes the job's bytes off the queue and onto the disk's account, deleting the oldest entries for it. False when the
// job is the oldest itself, or has been given up meanwhile.
bool DiskTier::make_room(const Job& job) {
  const int64_t bytes = job.file_bytes();
  queued_bytes_ -= bytes;
  auto entry = index_.find(job.id);
  if (entry == index_.end() || entry->second.pending.get() != &job) return false;
  while (bytes_ + bytes > options_.bytes) {
    const BlobId oldest = order_.back();
    erase(index_.find(oldest), /*lost=*/true);
    if (oldest == job.id) return false;
  }
  entry->second.counted = true;
  bytes_ += bytes;
  return true;
}

void DiskTier::erase(Index::iterator entry, bool lost) {
  const auto& [id, blob] = *entry;
  if (blob.counted) bytes_ -= blob.file_bytes;
  if (blob.pending == nullptr) doomed_.push_back(id);
  if (lost) lost_.push_back(id);
  order_.erase(blob.at);
  index_.erase(entry);
}

void DiskTier::count_dropped_write(const std::string& why) {
  // Said at the first, the second, the fourth, ...: a full disk should be seen, not fill the log as well.
  if (std::has_single_bit(++dropped_writes_)) {
    log_warning("cache directory {}: {} ({} blobs not written so far)", options_.dir, why, dropped_writes_);
  }
}

}  // namespace onelane
