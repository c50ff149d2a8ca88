// The parts of the server that need no socket of its own: targets, requests, heads, the queue.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/out_queue.h"
#include "http/request_parser.h"
#include "http/response_text.h"
#include "http/target.h"

namespace onelane {
namespace {

using Query = std::vector<std::pair<std::string, std::string>>;

TEST(RequestTarget, IsTakenApart) {
  struct Case {
    std::string target, path;
    Query query;
  };
  for (const Case& c :
       {Case{"/", "/", {}}, Case{"/v1/models", "/v1/models", {}}, Case{"/a%2Fb%c3%A4", "/a/b\xc3\xa4", {}},
        Case{"/a+b", "/a+b", {}}, Case{"/a?", "/a", {}}, Case{"/a?x", "/a", {{"x", ""}}},
        Case{"/a?x=1&y=%3D+%26&&x=2&=z&q=a=b?c",
             "/a",
             {{"x", "1"}, {"y", "= &"}, {"x", "2"}, {"", "z"}, {"q", "a=b?c"}}},
        Case{"/a?n=%0a", "/a", {{"n", "\n"}}}, Case{"http://host:80/p?q=1", "/p", {{"q", "1"}}},
        Case{"https://host", "/", {}}, Case{"http://host?q=1", "/", {{"q", "1"}}}, Case{"*", "*", {}},
        Case{"//double/../up", "//double/../up", {}}}) {
    const auto parsed = parse_target(c.target);
    ASSERT_TRUE(parsed) << c.target << ": " << parsed.error().message;
    EXPECT_EQ(parsed->path, c.path) << c.target;
    EXPECT_EQ(parsed->query, c.query) << c.target;
  }
}

TEST(RequestTarget, RefusesWhatIsNotOne) {
  for (const std::string target :
       {"",     "a",    "?a",   "%2f",   "/%",   "/%4",         "/%g0",    "/%0g",      "/a?%",    "/a?b=%1",
        "/%00", "/%7f", "/%1b", "/?%00", "/a#b", "ftp://host/", "http://", "http:///a", "host:80", "**"}) {
    const auto parsed = parse_target(target);
    ASSERT_FALSE(parsed) << target;
    EXPECT_EQ(parsed.error().message.find("request target: "), 0u) << target;
  }
}

TEST(RequestParser, StopsBehindTheLastByte) {
  RequestParser parser(1000, 1000);
  const std::string first = "POST /p HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc";
  EXPECT_EQ(parser.feed(first + "GET / HT"), first.size());
  ASSERT_EQ(parser.state(), RequestParser::State::kDone);
  EXPECT_TRUE(parser.keep_alive());
  EXPECT_EQ(parser.take().body, "abc");
}

TEST(RequestParser, KeepsWhatItIsDoneWith) {
  const std::string request = "GET /p?a=b HTTP/1.1\r\nHost: t\r\nLong: 1\r\nA: \t spaces  \r\nA: again\r\n\r\n";
  RequestParser parser(1000, 1000);
  std::string waiting;
  for (const char c : request) {
    ASSERT_EQ(parser.state(), RequestParser::State::kHeader);
    waiting += c;
    waiting.erase(0, parser.feed(waiting));
  }
  ASSERT_EQ(parser.state(), RequestParser::State::kDone);
  EXPECT_EQ(waiting, "");
  const HttpRequest whole = parser.take();
  EXPECT_EQ(whole.method, "GET");
  EXPECT_EQ(whole.path, "/p");
  EXPECT_EQ(whole.query, (Query{{"a", "b"}}));
  EXPECT_EQ(whole.headers, (Query{{"host", "t"}, {"long", "1"}, {"a", "spaces"}, {"a", "again"}}));
}

TEST(ResponseText, NamesWhatTheServerDecides) {
  const std::string head =
      response_head({.status = 599, .headers = {{"Connection", "x"}, {"date", "y"}, {"Retry-After", "5"}}},
                    {.http10 = true, .keep_alive = true, .content_length = 7});
  EXPECT_EQ(head.find("HTTP/1.1 599 \r\nDate: "), 0u) << head;
  EXPECT_EQ(head.substr(head.find("Content-Type")),
            "Content-Type: application/json\r\nRetry-After: 5\r\nContent-Length: 7\r\nConnection: keep-alive\r\n\r\n");
}

TEST(ResponseText, QuotesErrorMessages) {
  EXPECT_EQ(
      error_response(400, "a \"b\" \\ \n \xff").body,
      R"({"error":{"message":"a \"b\" \\ \u000a \u00ff","type":"invalid_request_error","param":null,"code":null}})");
}

TEST(OutQueue, GathersAndSettles) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  OutQueue queue;
  std::string expected;
  size_t payload = 0;
  for (int i = 0; i < 500; ++i) {
    const std::string piece(static_cast<size_t>(1 + i * 37 % 20000), static_cast<char>('a' + i % 26));
    queue.append_chunk(piece);
    payload += piece.size();
    char size[32];
    expected.append(size, static_cast<size_t>(std::snprintf(size, sizeof(size), "%zx\r\n", piece.size())));
    expected += piece + "\r\n";
  }
  EXPECT_EQ(queue.payload(), payload);
  EXPECT_EQ(queue.bytes(), expected.size());
  std::string received;
  size_t settled = 0;
  OutQueue::Progress progress;
  do {
    progress = queue.send(pair[0]);
    settled += progress.payload;
    EXPECT_EQ(settled + queue.payload(), payload);
    char buffer[65536];
    for (ssize_t n; (n = ::recv(pair[1], buffer, sizeof(buffer), MSG_DONTWAIT)) > 0;) {
      received.append(buffer, static_cast<size_t>(n));
    }
  } while (progress.sent == OutQueue::Sent::kBlocked);
  EXPECT_EQ(progress.sent, OutQueue::Sent::kAll);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(settled, payload);
  EXPECT_TRUE(received == expected);

  ::close(pair[1]);
  queue.append("x");
  EXPECT_EQ(queue.send(pair[0]).sent, OutQueue::Sent::kFailed);
  queue.clear();
  EXPECT_TRUE(queue.empty());
  ::close(pair[0]);
}

}  // namespace
}  // namespace onelane
