#include "http/out_queue.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include <sys/socket.h>
#include <sys/uio.h>

#include "base/format.h"

namespace onelane {
namespace {

constexpr size_t kSegmentBytes = size_t{16} << 10;  // segments are joined up to this size
constexpr size_t kGather = 64;                      // segments of one write
constexpr size_t kForgetSegments = 64;              // sent segments kept before the list is shortened

}  // namespace

void OutQueue::add(std::string bytes, size_t payload) {
  if (bytes.empty()) return;
  bytes_ += bytes.size();
  payload_ += payload;
  if (segments_.size() > first_ && segments_.back().bytes.size() + bytes.size() <= kSegmentBytes) {
    segments_.back().bytes += bytes;
    segments_.back().payload += payload;
  } else {
    segments_.push_back({std::move(bytes), payload});
  }
}

void OutQueue::append(std::string bytes) { add(std::move(bytes), 0); }

void OutQueue::append_payload(std::string bytes) {
  const size_t payload = bytes.size();
  add(std::move(bytes), payload);
}

void OutQueue::append_chunk(std::string bytes) {
  append(format("{:x}\r\n", bytes.size()));
  append_payload(std::move(bytes));
  append("\r\n");
}

OutQueue::Progress OutQueue::send(int socket) {
  Progress progress;
  while (bytes_ > 0) {
    std::array<iovec, kGather> parts;
    const size_t count = std::min(segments_.size() - first_, kGather);
    for (size_t i = 0; i < count; ++i) {
      std::string& bytes = segments_[first_ + i].bytes;
      const size_t skip = i == 0 ? sent_ : 0;
      parts[i] = {bytes.data() + skip, bytes.size() - skip};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t n = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      progress.sent = errno == EAGAIN || errno == EWOULDBLOCK ? Sent::kBlocked : Sent::kFailed;
      return progress;
    }
    size_t left = static_cast<size_t>(n);
    bytes_ -= left;
    progress.bytes += left;
    while (left > 0) {
      Segment& segment = segments_[first_];
      const size_t here = std::min(left, segment.bytes.size() - sent_);
      const size_t settled = std::min(here, segment.payload);
      segment.payload -= settled;
      payload_ -= settled;
      progress.payload += settled;
      sent_ += here;
      left -= here;
      if (sent_ < segment.bytes.size()) break;
      sent_ = 0;
      segment.bytes = {};
      ++first_;
    }
    if (first_ == segments_.size()) {
      segments_.clear();
      first_ = 0;
    } else if (first_ >= kForgetSegments) {
      segments_.erase(segments_.begin(), segments_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
  }
  return progress;
}

void OutQueue::clear() { *this = OutQueue(); }

}  // namespace onelane
