#include "http/response_parser.h"

#include <cstdint>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>

#include "base/format.h"
#include "http/lower_case.h"

namespace onelane {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using BeastError = beast::error_code;

constexpr uint32_t kMaxHeaderBytes = 64 << 10;
constexpr size_t kMaxWaitingBytes = 16 << 10;  // of a line that frames a chunk

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

Error malformed(const std::string& what) { return {ErrorCode::kCorrupt, "malformed response: " + what}; }

}  // namespace

class ResponseParser::Impl final : public http::basic_parser<false> {
 public:
  explicit Impl(const std::function<void(std::string_view)>& body) : body_(body) {
    header_limit(kMaxHeaderBytes);
    body_limit(boost::none);  // pieces are handed on; whoever keeps them has a limit
  }

  Result<size_t> feed(std::string_view bytes) {
    size_t taken = 0;
    while (taken < bytes.size() && !is_done()) {
      BeastError error;
      taken += put(boost::asio::const_buffer(bytes.data() + taken, bytes.size() - taken), error);
      if (error == http::error::need_more) {
        if (is_header_done() && bytes.size() - taken > kMaxWaitingBytes) return malformed("an endless chunk header");
        break;
      }
      if (error) return malformed(error.message());
      if (is_header_done()) eager(true);
    }
    return taken;
  }

  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;

 private:
  void on_request_impl(http::verb, beast::string_view, beast::string_view, int, BeastError&) override {}
  void on_response_impl(int code, beast::string_view, int, BeastError&) override { status = code; }
  void on_field_impl(http::field, beast::string_view name, beast::string_view value, BeastError&) override {
    if (!is_header_done()) headers.emplace_back(lower_case(view(name)), view(value));  // else a trailer
  }
  void on_header_impl(BeastError&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, BeastError&) override {}
  size_t on_body_impl(beast::string_view piece, BeastError&) override {
    if (!piece.empty()) body_(view(piece));
    return piece.size();
  }
  void on_chunk_header_impl(uint64_t, beast::string_view, BeastError&) override {}
  size_t on_chunk_body_impl(uint64_t, beast::string_view piece, BeastError& error) override {
    return on_body_impl(piece, error);
  }
  void on_finish_impl(BeastError&) override {}

  const std::function<void(std::string_view)>& body_;
};

ResponseParser::ResponseParser(std::function<void(std::string_view)> on_body) : on_body_(std::move(on_body)) {
  impl_ = std::make_unique<Impl>(on_body_);
}

ResponseParser::~ResponseParser() = default;

Result<size_t> ResponseParser::feed(std::string_view bytes) {
  size_t taken = 0;
  for (;;) {
    ONELANE_ASSIGN(const size_t n, impl_->feed(bytes.substr(taken)));
    taken += n;
    const bool informational = impl_->is_done() && impl_->status >= 100 && impl_->status < 200;
    if (!informational) return taken;
    if (impl_->status == 101) return malformed("status 101 without a request for it");
    impl_ = std::make_unique<Impl>(on_body_);
  }
}

Result<void> ResponseParser::end() {
  if (done()) return {};
  if (!head_done()) return malformed("the connection ended before the headers did");
  BeastError error;
  impl_->put_eof(error);
  if (error) return malformed("the connection ended in the middle of the body");
  return {};
}

bool ResponseParser::head_done() const { return impl_->is_header_done(); }

bool ResponseParser::done() const { return impl_->is_done(); }

int ResponseParser::status() const { return impl_->status; }

const std::vector<std::pair<std::string, std::string>>& ResponseParser::headers() const { return impl_->headers; }

}  // namespace onelane
