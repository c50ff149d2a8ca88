// OutQueue: the bytes that one client has still to take, sent with gather writes.
//
// Small pieces share a segment, so that ten thousand tokens for a slow reader cost about as much memory as they are
// long.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace onelane {

class OutQueue {
 public:
  enum class Sent { kAll, kBlocked, kFailed };
  struct Progress {
    Sent sent = Sent::kAll;
    size_t bytes = 0;    // that the socket took
    size_t payload = 0;  // that these settle, see payload()
  };

  // Bytes that are framing: heads, ends.
  void append(std::string bytes);
  // Bytes that a caller counts as queued.
  void append_payload(std::string bytes);
  // The same as one chunk of RFC 9112 7.1. `bytes` is not empty.
  void append_chunk(std::string bytes);

  // Hands the socket what it takes without blocking.
  Progress send(int socket);

  bool empty() const { return bytes_ == 0; }
  size_t bytes() const { return bytes_; }
  // Payload not settled yet. Within a segment the bytes sent settle payload first, so the figure is exact when the
  // queue is empty and at most a few dozen bytes low otherwise.
  size_t payload() const { return payload_; }
  void clear();

 private:
  struct Segment {
    std::string bytes;
    size_t payload = 0;
  };
  void add(std::string bytes, size_t payload);

  std::vector<Segment> segments_;
  size_t first_ = 0;  // segments before this one are sent
  size_t sent_ = 0;   // bytes of segments_[first_] that are sent
  size_t bytes_ = 0;
  size_t payload_ = 0;
};

}  // namespace onelane
