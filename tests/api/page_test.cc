#include "api/page.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "base/mapped_file.h"

namespace onelane {
namespace {

HttpRequest get(std::string path) { return {.method = "GET", .path = std::move(path)}; }

std::map<std::string, std::string> headers_of(const HttpResponse& response) {
  return {response.headers.begin(), response.headers.end()};
}

// Path -> file it comes from and type.
const std::map<std::string, std::pair<std::string, std::string>> kExpected = {
    {"/", {"ui/index.html", "text/html; charset=utf-8"}},
    {"/ui/style.css", {"ui/style.css", "text/css; charset=utf-8"}},
    {"/ui/icon.svg", {"ui/icon.svg", "image/svg+xml"}},
    {"/ui/main.js", {"ui/main.js", "text/javascript; charset=utf-8"}},
    {"/ui/chat.js", {"ui/chat.js", "text/javascript; charset=utf-8"}},
    {"/ui/charts.js", {"ui/charts.js", "text/javascript; charset=utf-8"}},
    {"/ui/metrics.js", {"ui/metrics.js", "text/javascript; charset=utf-8"}},
    {"/ui/server.js", {"ui/server.js", "text/javascript; charset=utf-8"}},
    {"/ui/settings.js", {"ui/settings.js", "text/javascript; charset=utf-8"}},
    {"/ui/stream.js", {"ui/stream.js", "text/javascript; charset=utf-8"}},
    {"/ui/view.js", {"ui/view.js", "text/javascript; charset=utf-8"}},
    {"/ui/uplot/uPlot.iife.min.js", {"third_party/uplot/uPlot.iife.min.js", "text/javascript; charset=utf-8"}},
    {"/ui/uplot/uPlot.min.css", {"third_party/uplot/uPlot.min.css", "text/css; charset=utf-8"}},
};

TEST(Page, ServesEveryFileByteForByteWithItsType) {
  EXPECT_EQ(page_files().size(), kExpected.size());
  for (const auto& [path, source] : kExpected) {
    SCOPED_TRACE(path);
    const auto response = page_response(get(path));
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->content_type, source.second);
    EXPECT_EQ(response->body, *read_file(std::string(ONELANE_ROOT) + "/" + source.first));
  }
}

TEST(Page, HasNothingElse) {
  for (const char* path : {"", "/ui", "/ui/", "/index.html", "/ui/index.html", "/ui/MAIN.JS", "/ui/main.js/", "//",
                           "/ui/../ui/main.js", "/ui/../../etc/passwd", "/ui//main.js", "/ui/main.js%00", "ui/main.js",
                           "/ui/uplot/", "/ui/uplot/LICENSE", "/etc/passwd"}) {
    EXPECT_FALSE(page_response(get(path))) << path;
  }
  EXPECT_FALSE(page_response(get(std::string("/ui/main.js\0", 12))));
}

TEST(Page, ForbidsForeignCodeAndDestinations) {
  for (const EmbeddedFile& file : page_files()) {
    auto headers = headers_of(*page_response(get(std::string(file.path))));
    const std::string policy = headers["content-security-policy"];
    EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"));
    for (const char* rule : {"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"}) {
      EXPECT_NE(policy.find(rule), std::string::npos) << rule;
    }
    EXPECT_EQ(policy.find("unsafe"), std::string::npos);
    EXPECT_EQ(headers["x-content-type-options"], "nosniff");
    EXPECT_EQ(headers["referrer-policy"], "no-referrer");
    EXPECT_EQ(headers["cache-control"], "no-cache");
  }
}

TEST(Page, SaysWhenTheClientHasTheBytes) {
  std::map<std::string, int> tags;
  for (const EmbeddedFile& file : page_files()) {
    HttpRequest request = get(std::string(file.path));
    const std::string etag = headers_of(*page_response(request))["etag"];
    EXPECT_EQ(etag.size(), 18) << etag;
    EXPECT_EQ(++tags[etag], 1) << file.path << " has another file's tag";
    for (const std::string& known : {etag, "W/" + etag, "\"other\", " + etag}) {
      request.headers = {{"if-none-match", known}};
      const auto response = page_response(request);
      EXPECT_EQ(response->status, 304);
      EXPECT_EQ(response->body, "");
      EXPECT_EQ(headers_of(*response)["etag"], etag);
    }
    request.headers = {{"if-none-match", "\"0123456789abcdef\""}};
    EXPECT_EQ(page_response(request)->status, 200);
  }
}

// What the policy would block, and what the page would miss without a network.
TEST(Page, HoldsNothingInlineAndNothingExternal) {
  for (const EmbeddedFile& file : page_files()) {
    const std::string_view text = file.bytes;
    if (file.path == "/") {
      for (const char* inline_code :
           {" onclick", " onload", " onerror", " onsubmit", " style=", "<style", "javascript:"}) {
        EXPECT_EQ(text.find(inline_code), std::string_view::npos) << inline_code;
      }
      EXPECT_EQ(text.find("<script>"), std::string_view::npos);
    }
    for (const char* markup :
         {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"}) {
      EXPECT_EQ(text.find(markup), std::string_view::npos) << file.path << ": " << markup;
    }
    for (size_t at = text.find("//"); at != std::string_view::npos; at = text.find("//", at + 2)) {
      const bool url = at > 0 && text[at - 1] == ':';
      const bool name_space = text.substr(at).starts_with("//www.w3.org/2000/svg");
      const bool home_page = text.substr(at).starts_with("//github.com/leeoniya/uPlot");  // in a comment
      EXPECT_TRUE(!url || name_space || home_page) << file.path << ": " << text.substr(at, 40);
    }
  }
}

}  // namespace
}  // namespace onelane
