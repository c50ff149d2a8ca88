// Load: a number of chat streams at once, each of which starts its next request as soon as the last has ended, and a
// trace of what every stream got and when.
//
// A stream whose request fails stops: failures stay in the trace and do not turn into a storm of retries.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "http/client.h"
#include "lane/chat_stream.h"

namespace onelane {

// An event of a stream that brought text or tokens.
struct TokenEvent {
  HttpClock::time_point at;
  int32_t tokens = 0;  // increase of usage
  bool text = false;
};

struct StreamTrace {
  std::vector<TokenEvent> events;
  std::vector<ChatResult> requests;     // in their order; those that stop() ended are kCancelled
  std::vector<std::string> prompt_ids;  // of `requests`
};

struct LoadRequest {
  std::string json;  // chat_request_json
  std::string prompt_id = {};
};

struct LoadOptions {
  int streams = 1;
  int64_t requests = 0;  // of all streams together; 0: until stop()
  bool continuous_usage = true;
  ChatOptions chat;  // on_delta is the load's own
  // The request of stream `stream` that is its `turn`-th (from 0), `index` being the number of requests begun before.
  // On an I/O thread, one call at a time.
  std::function<LoadRequest(int stream, int64_t turn, int64_t index)> next;
};

class Load {
 public:
  // Starts at once. Streams are dealt to the clients in turn; each client is an I/O thread.
  Load(std::vector<HttpClient*> clients, LoadOptions options);
  ~Load();
  Load(const Load&) = delete;

  struct Now {
    int active = 0;     // streams with a request under way
    int with_text = 0;  // streams that have produced text, at any time
    int64_t completed = 0, failed = 0;
    int64_t tokens = 0;  // increases of usage
    int64_t text_chunks = 0;
    HttpClock::time_point last_event;  // of the latest text or tokens; the clock's zero before
  };
  Now now() const;

  // Waits until no stream is active: with `requests`, or when all have failed.
  void wait();
  // Cancels what is under way, waits, and gives the traces by stream. Once.
  std::vector<StreamTrace> stop();

 private:
  struct Stream;
  void begin(Stream& stream);
  void on_delta(Stream& stream, const ChatDelta& delta);
  void on_end(Stream& stream, const ChatResult& result);

  const LoadOptions options_;
  std::vector<std::unique_ptr<Stream>> streams_;
  mutable std::mutex mutex_;  // of what follows and of the streams' calls
  std::condition_variable idle_;
  bool stopping_ = false;
  int active_ = 0;
  int64_t begun_ = 0;
  std::atomic<int> with_text_ = 0;
  std::atomic<int64_t> completed_ = 0, failed_ = 0, tokens_ = 0, text_chunks_ = 0;
  std::atomic<HttpClock::rep> last_event_ = 0;
};

}  // namespace onelane
