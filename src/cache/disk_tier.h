// DiskTier: blobs in a directory, each in a file of its own, least recently used ones deleted beyond a budget.
//
// put() hands a blob to a thread of the tier's and never waits for the disk: what does not fit its queue is not
// written. Until a blob is written it is read from the queue. Nothing found on disk is trusted before its checksum was
// compared, which happens when it is read; a file that does not fit is deleted with a warning that names it.
//
// The directory belongs to one process at a time. Files whose names are not the tier's are left alone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "cache/blob_file.h"

namespace onelane {

struct DiskTierOptions {
  std::string dir;
  int64_t bytes = 0;        // of all files
  int64_t queue_bytes = 0;  // waiting to be written; a blob alone always fits
  PageKey model;
  size_t page_bytes = 0;
  size_t checkpoint_bytes = 0;
};

struct DiskStats {
  int64_t bytes = 0;
  uint64_t dropped_blobs = 0;   // damaged or foreign files
  uint64_t dropped_writes = 0;  // the queue was full, or the disk said no
};

class DiskTier {
 public:
  // What the directory held: a header that fits its name, model and length.
  struct Found {
    BlobHeader header;
    int64_t written = 0;  // modification time, ns
  };
  using Files = std::unordered_map<BlobId, Found, BlobIdHash>;

  // Creates the directory if need be, deletes what an interrupted write left, and lists the rest in `found`. Errors
  // name the directory.
  static Result<std::unique_ptr<DiskTier>> open(DiskTierOptions options, Files& found);
  // Writes what is queued, then ends the thread.
  ~DiskTier();

  // A file that open() found and that is wanted: more recently used than those adopted before. Those that are not
  // adopted are deleted by finish_adopting(), and the oldest beyond the budget.
  void adopt(const BlobId& id, int64_t file_bytes);
  void finish_adopting(const Files& found);

  // Takes a blob to write, or says no: the queue is full, or it is larger than the budget.
  bool put(const BlobHeader& header, Blob payload);
  // The payload; nothing when it is not there or not what `expected` says (then it is gone).
  std::optional<Blob> read(const BlobHeader& expected);
  // Marks as used, the last of `ids` most recently. Unknown ones are passed over.
  void touch(std::span<const BlobId> ids);
  // Blobs put or adopted earlier that are no longer there, each told once. A failed read() is not repeated here.
  std::vector<BlobId> take_lost();
  void clear();
  // Returns when everything put so far has been written or given up.
  void flush();
  DiskStats stats() const;

 private:
  struct Job {
    BlobHeader header;
    BlobId id;
    Blob payload;
    int64_t file_bytes() const { return static_cast<int64_t>(kBlobHeaderBytes + payload.size()); }
  };
  struct Entry {
    int64_t file_bytes = 0;
    std::list<BlobId>::iterator at;
    std::shared_ptr<const Job> pending;  // until written
    bool counted = false;                // in bytes_
  };
  using Index = std::unordered_map<BlobId, Entry, BlobIdHash>;

  explicit DiskTier(DiskTierOptions options, int lock_fd);
  Result<void> scan(Files& found);
  Result<Found> examine(const std::string& path, const BlobId& id) const;
  std::string path_of(const BlobId& id) const;

  void write_loop();
  // Under mutex_:
  void erase(Index::iterator entry, bool lost);
  bool make_room(const Job& job);
  void count_dropped_write(const std::string& why);

  const DiskTierOptions options_;
  const int lock_fd_;

  mutable std::mutex mutex_;
  std::condition_variable work_, idle_;
  Index index_;
  std::list<BlobId> order_;  // most recently used first
  std::deque<std::shared_ptr<const Job>> queue_;
  std::vector<BlobId> doomed_;  // files to delete
  std::vector<BlobId> lost_;
  int64_t bytes_ = 0;
  int64_t queued_bytes_ = 0;
  uint64_t dropped_blobs_ = 0;
  uint64_t dropped_writes_ = 0;
  bool busy_ = false;
  bool stop_ = false;
  std::thread writer_;
};

}  // namespace onelane
