#include "http/request_parser.h"

#include <algorithm>
#include <cstdint>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>

#include "base/format.h"
#include "http/lower_case.h"
#include "http/target.h"

namespace onelane {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using BeastError = beast::error_code;

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

// Beast splits lines and chunks and calls back with the parts.
class RequestParser::Impl final : public http::basic_parser<true> {
 public:
  Impl(size_t max_header_bytes, size_t max_body_bytes)
      : max_header_bytes_(max_header_bytes), max_body_bytes_(max_body_bytes) {
    header_limit(static_cast<uint32_t>(std::min<size_t>(max_header_bytes, UINT32_MAX)));
    body_limit(max_body_bytes);
  }

  size_t feed(std::string_view bytes) {
    size_t taken = 0;
    while (state_ == State::kHeader || state_ == State::kBody) {
      if (taken == bytes.size()) break;
      // Beast's own limit is on what one call sees; a header that trickles in is counted here.
      const bool in_header = state_ == State::kHeader;
      BeastError error;
      const size_t n = put(boost::asio::const_buffer(bytes.data() + taken, bytes.size() - taken), error);
      taken += n;
      if (in_header) {
        header_bytes_ += n;
        const size_t waiting = is_header_done() ? 0 : bytes.size() - taken;
        if (failure_.message.empty() && header_bytes_ + waiting > max_header_bytes_) error = http::error::header_limit;
      }
      if (error && error != http::error::need_more) {
        fail(error);
        break;
      }
      if (is_done()) {
        state_ = State::kDone;
      } else if (is_header_done()) {
        state_ = State::kBody;
        eager(true);
      }
      if (error == http::error::need_more) {
        if (!in_header && bytes.size() - taken > max_header_bytes_) fail(http::error::bad_chunk_extension);
        break;
      }
    }
    return taken;
  }

  void fail(const BeastError& error) {
    state_ = State::kFailed;
    if (!failure_.message.empty()) return;  // a callback of ours knew better
    if (error == http::error::header_limit) {
      refuse(431,
             format("the request line and headers are longer than {} bytes (max_header_bytes)", max_header_bytes_));
    } else if (error == http::error::body_limit) {
      refuse(413, format("the request body is longer than {} bytes (max_body_bytes)", max_body_bytes_));
    } else if (error == http::error::multiple_content_length || error == http::error::bad_content_length) {
      refuse(400,
             "malformed request: Content-Length must be given once, as a decimal number, without Transfer-Encoding");
    } else {
      refuse(400, "malformed request: " + error.message());
    }
  }

  void refuse(int status, std::string message) { failure_ = {status, std::move(message)}; }

  State state() const { return state_; }

  HttpRequest request_;
  RequestFailure failure_;
  bool expects_continue_ = false;
  bool is_http10_ = false;

 private:
  void on_request_impl(http::verb, beast::string_view method, beast::string_view target, int version,
                       BeastError& error) override {
    is_http10_ = version == 10;
    request_.method = std::string(view(method));
    auto parsed = onelane::parse_target(view(target));  // Beast has one of that name
    if (!parsed) {
      refuse(400, parsed.error().message);
      error = http::error::bad_target;
      return;
    }
    request_.path = std::move(parsed->path);
    request_.query = std::move(parsed->query);
  }

  void on_field_impl(http::field field, beast::string_view name, beast::string_view value, BeastError& error) override {
    if (state_ != State::kHeader) return;  // a trailer
    if (field == http::field::content_length) {
      const bool digits = std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (!digits || !request_.header("content-length").empty()) error = http::error::bad_content_length;
    } else if (field == http::field::transfer_encoding) {
      if (!beast::iequals(value, "chunked")) {
        refuse(501, "Transfer-Encoding: only \"chunked\" is supported");
        error = http::error::bad_transfer_encoding;
      } else if (is_http10_) {
        refuse(400, "malformed request: Transfer-Encoding needs HTTP/1.1");
        error = http::error::bad_transfer_encoding;
      }
    } else if (field == http::field::host) {
      if (++hosts_ > 1) {
        refuse(400, "malformed request: more than one Host header");
        error = http::error::bad_field;
      }
    } else if (field == http::field::expect && !is_http10_) {
      expects_continue_ = beast::iequals(value, "100-continue");
      if (!expects_continue_) {
        refuse(417, "Expect: only \"100-continue\" is supported");
        error = http::error::bad_value;
      }
    }
    request_.headers.emplace_back(lower_case(view(name)), view(value));
  }

  void on_header_impl(BeastError& error) override {
    if (hosts_ == 0 && !is_http10_) {
      refuse(400, "malformed request: HTTP/1.1 needs a Host header");
      error = http::error::bad_field;
    }
  }

  void on_body_init_impl(const boost::optional<uint64_t>& length, BeastError&) override {
    // A promise of a large body reserves little until bytes come.
    if (length) request_.body.reserve(static_cast<size_t>(std::min<uint64_t>(*length, size_t{1} << 20)));
  }

  size_t on_body_impl(beast::string_view part, BeastError&) override {
    request_.body.append(part.data(), part.size());
    return part.size();
  }

  void on_chunk_header_impl(uint64_t, beast::string_view, BeastError&) override {}

  size_t on_chunk_body_impl(uint64_t, beast::string_view part, BeastError& error) override {
    return on_body_impl(part, error);
  }

  void on_finish_impl(BeastError&) override {}
  void on_response_impl(int, beast::string_view, int, BeastError&) override {}

  const size_t max_header_bytes_;
  const size_t max_body_bytes_;
  size_t header_bytes_ = 0;
  State state_ = State::kHeader;
  int hosts_ = 0;
};

RequestParser::RequestParser(size_t max_header_bytes, size_t max_body_bytes)
    : impl_(std::make_unique<Impl>(max_header_bytes, max_body_bytes)) {}

RequestParser::~RequestParser() = default;

size_t RequestParser::feed(std::string_view bytes) { return impl_->feed(bytes); }

RequestParser::State RequestParser::state() const { return impl_->state(); }

bool RequestParser::expects_continue() const { return state() == State::kBody && impl_->expects_continue_; }

HttpRequest RequestParser::take() { return std::move(impl_->request_); }

bool RequestParser::keep_alive() const { return impl_->keep_alive(); }

bool RequestParser::is_http10() const { return impl_->is_http10_; }

const RequestFailure& RequestParser::failure() const { return impl_->failure_; }

}  // namespace onelane
