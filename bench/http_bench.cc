// Many event streams on one server thread: is any lost, how late are events, what do they cost?
//
//   http_bench [STREAMS=2000] [SECONDS=5]
//
// Each stream carries 20 events a second; every tenth client hangs up after one second. The server has its I/O thread
// and one thread that writes, as the engine would; the clients are another process, so that memory and CPU of the
// server are its own.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "http/server.h"

namespace onelane {
namespace {

using Clock = std::chrono::steady_clock;  // one clock for all processes of a machine

constexpr int kEventsPerSecond = 20;
constexpr int kSlots = 10;  // a period's events are spread over so many moments
constexpr int kHangUpEvery = 10;
constexpr size_t kPieceBytes = 200;  // about a chat chunk
constexpr char kMark = '@';          // before an event's time

int64_t now_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

// --- the clients' process ---

struct ClientReport {
  int connected = 0;
  int done = 0;     // streams with every event and their end
  int hung_up = 0;  // by us
  int lost = 0;     // streams that ended otherwise
  int64_t events = 0;
  double p50_ms = 0, p99_ms = 0, max_ms = 0;
};

struct Client {
  int socket = -1;
  std::string input;  // an incomplete event
  int events = 0;
  bool closed = false;
};

void connect_client(Client& client, int port) {
  client.socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(client.socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return;
  const char* request = "GET /events HTTP/1.1\r\nHost: bench\r\n\r\n";
  (void)!::write(client.socket, request, std::strlen(request));
}

ClientReport run_clients(int port, int streams, int expected_events) {
  ClientReport report;
  std::vector<Client> clients(static_cast<size_t>(streams));
  std::vector<double> late_ms;
  late_ms.reserve(clients.size() * static_cast<size_t>(expected_events));
  const int poll = ::epoll_create1(0);
  for (size_t i = 0; i < clients.size(); ++i) {
    connect_client(clients[i], port);
    ++report.connected;
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    ::epoll_ctl(poll, EPOLL_CTL_ADD, clients[i].socket, &event);
  }
  const auto close_client = [&](Client& client, int& counter) {
    ++counter;
    client.closed = true;
    ::close(client.socket);
  };
  int open = streams;
  std::vector<char> buffer(size_t{1} << 16);
  std::vector<epoll_event> events(512);
  while (open > 0) {
    const int ready = ::epoll_wait(poll, events.data(), static_cast<int>(events.size()), 10000);
    if (ready <= 0) break;  // what is still open is lost
    for (int e = 0; e < ready; ++e) {
      const size_t index = events[static_cast<size_t>(e)].data.u64;
      Client& client = clients[index];
      const ssize_t n = ::recv(client.socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (n <= 0) {
        close_client(client, report.lost);
        --open;
        continue;
      }
      const int64_t now = now_ns();
      client.input.append(buffer.data(), static_cast<size_t>(n));
      size_t used = 0;
      for (;;) {
        const size_t end = client.input.find("\n\n\r\n", used);
        if (end == std::string::npos) break;
        const size_t mark = client.input.rfind(kMark, end);
        late_ms.push_back(static_cast<double>(now - std::atoll(client.input.c_str() + mark + 1)) / 1e6);
        ++client.events;
        used = end + 4;
      }
      client.input.erase(0, used);
      if (index % kHangUpEvery == 0 && client.events >= kEventsPerSecond) {
        close_client(client, report.hung_up);
        --open;
      } else if (client.input.find("0\r\n\r\n") == 0) {
        close_client(client, client.events == expected_events ? report.done : report.lost);
        --open;
      }
    }
  }
  report.lost += open;
  report.events = static_cast<int64_t>(late_ms.size());
  if (!late_ms.empty()) {
    std::sort(late_ms.begin(), late_ms.end());
    report.p50_ms = late_ms[late_ms.size() / 2];
    report.p99_ms = late_ms[late_ms.size() * 99 / 100];
    report.max_ms = late_ms.back();
  }
  return report;
}

// --- the server's process ---

double cpu_seconds(int who) {
  rusage usage{};
  ::getrusage(who, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double resident_mb() {
  long pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

struct Stream {
  std::shared_ptr<HttpExchange> exchange;
  std::atomic<bool> closed{false};
};

int bench(int streams, int seconds) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);

  int port_pipe[2], report_pipe[2];
  if (::pipe(port_pipe) != 0 || ::pipe(report_pipe) != 0) return 1;
  const int events = kEventsPerSecond * seconds;
  const pid_t child = ::fork();
  if (child == 0) {
    int port = 0;
    if (::read(port_pipe[0], &port, sizeof(port)) != sizeof(port)) ::_exit(1);
    const ClientReport report = run_clients(port, streams, events);
    ::_exit(::write(report_pipe[1], &report, sizeof(report)) == sizeof(report) ? 0 : 1);
  }

  std::mutex mutex;
  std::vector<std::shared_ptr<Stream>> live;
  std::atomic<int> cancelled{0};
  auto created = HttpServer::create({.port = 0, .max_connections = streams + 16},
                                    [&](const HttpRequest&, std::shared_ptr<HttpExchange> exchange) {
                                      const auto stream = std::make_shared<Stream>();
                                      exchange->on_close([&cancelled, stream] {
                                        stream->closed = true;
                                        ++cancelled;
                                      });
                                      exchange->start({.content_type = "text/event-stream"});
                                      stream->exchange = std::move(exchange);
                                      std::lock_guard lock(mutex);
                                      live.push_back(stream);
                                    });
  if (!created) {
    std::fprintf(stderr, "http_bench: %s\n", created.error().message.c_str());
    return 1;
  }
  HttpServer& server = **created;
  const double empty_mb = resident_mb();
  double io_cpu = 0;
  std::thread io([&] {
    server.run();
    io_cpu = cpu_seconds(RUSAGE_THREAD);
  });
  const int port = server.port();
  (void)!::write(port_pipe[1], &port, sizeof(port));
  for (size_t opened = 0; opened < static_cast<size_t>(streams);) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::lock_guard lock(mutex);
    opened = live.size();
  }

  const double open_mb = resident_mb();
  const double cpu_before = cpu_seconds(RUSAGE_SELF);
  const auto period = std::chrono::nanoseconds(1000000000 / kEventsPerSecond);
  const auto start = Clock::now();
  for (int event = 0; event < events; ++event) {
    for (int slot = 0; slot < kSlots; ++slot) {
      std::this_thread::sleep_until(start + event * period + slot * period / kSlots);
      for (size_t i = static_cast<size_t>(slot); i < live.size(); i += kSlots) {
        if (live[i]->closed) continue;
        std::string piece = "data: {\"text\":\"";
        piece.append(kPieceBytes - piece.size() - 28, 'x');
        piece += "\"}" + std::string(1, kMark) + std::to_string(now_ns()) + "\n\n";
        live[i]->exchange->write(std::move(piece));
        if (event + 1 == events) live[i]->exchange->finish();
      }
    }
  }
  ClientReport report;
  const bool reported = ::read(report_pipe[0], &report, sizeof(report)) == sizeof(report);
  const double cpu = cpu_seconds(RUSAGE_SELF) - cpu_before;
  const double end_mb = resident_mb();
  ::waitpid(child, nullptr, 0);
  live.clear();
  server.stop();
  io.join();
  if (!reported) {
    std::fprintf(stderr, "http_bench: the clients' process gave no report\n");
    return 1;
  }

  const double per_event_us = 1e6 / static_cast<double>(std::max<int64_t>(report.events, 1));
  std::printf("streams  done  hung up  seen as cancelled  lost   events  p50 ms  p99 ms  max ms\n");
  std::printf("%7d %5d %8d %18d %5d %8lld %7.2f %7.2f %7.1f\n", report.connected, report.done, report.hung_up,
              cancelled.load(), report.lost, static_cast<long long>(report.events), report.p50_ms, report.p99_ms,
              report.max_ms);
  std::printf("\nRSS MB: empty %.1f, all streams open %.1f (%.1f KB a stream), end %.1f\n", empty_mb, open_mb,
              (open_mb - empty_mb) * 1e3 / streams, end_mb);
  std::printf("CPU us an event: %.1f server process, of them %.1f the I/O thread\n", cpu * per_event_us,
              io_cpu * per_event_us);
  return report.lost == 0 ? 0 : 1;
}

}  // namespace
}  // namespace onelane

int main(int argc, char** argv) {
  const int streams = argc > 1 ? std::atoi(argv[1]) : 2000;
  const int seconds = argc > 2 ? std::atoi(argv[2]) : 5;
  if (streams < 1 || seconds < 2) {
    std::fprintf(stderr, "usage: http_bench [STREAMS >= 1] [SECONDS >= 2]\n");
    return 2;
  }
  return onelane::bench(streams, seconds);
}
