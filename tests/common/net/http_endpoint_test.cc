#include "common/net/http_endpoint.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/net/http_get.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

HttpPages Pages() { return {{"/a", {"text/plain", [] { return std::string("hello\n"); }}}}; }

TEST(HttpEndpoint, AnswersWhatIsThereWithItsTypeAndLetsNothingElseIn) {
  auto endpoint = HttpEndpoint::Start("127.0.0.1:0", Pages());
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string answer = HttpGet((*endpoint)->address(), "/a?query=1");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 6\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Security-Policy: default-src 'none';"));
  EXPECT_THAT(answer, HasSubstr("X-Content-Type-Options: nosniff"));
  EXPECT_THAT(answer, ::testing::EndsWith("\r\n\r\nhello\n"));
}

TEST(HttpEndpoint, SaysWhatThereIsWhereSomethingElseIsAskedFor) {
  auto endpoint = HttpEndpoint::Start("127.0.0.1:0", Pages());
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  for (const char* path : {"/", "/b", "/a/", "/../../etc/passwd", "/%2e%2e/etc/passwd", "/etc/passwd", "//a"}) {
    const std::string answer = HttpGet((*endpoint)->address(), path);
    EXPECT_THAT(answer, ::testing::AnyOf(StartsWith("HTTP/1.1 404 "), StartsWith("HTTP/1.1 400 "),
                                         HasSubstr("\r\n\r\nhello\n")))
        << path;
    EXPECT_THAT(answer, Not(HasSubstr("root:"))) << path;
  }
  EXPECT_THAT(HttpGet((*endpoint)->address(), "/b"), HasSubstr("what there is:\n/a\n"));
}

TEST(HttpEndpoint, TakesNothingButGet) {
  auto endpoint = HttpEndpoint::Start("127.0.0.1:0", Pages());
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  for (const char* method : {"POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"}) {
    const std::string answer =
        HttpAsk((*endpoint)->address(), std::string(method) + " /a HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc");
    EXPECT_THAT(answer, HasSubstr(" 405 ")) << method;
    EXPECT_THAT(answer, HasSubstr("Allow: GET")) << method;
  }
}

TEST(HttpEndpoint, SurvivesWhatIsNoHttp) {
  auto endpoint = HttpEndpoint::Start("127.0.0.1:0", Pages());
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  for (const std::string& junk :
       {std::string("\r\n\r\n"), std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), std::string(300, '\xff') + "\r\n\r\n",
        "GET " + std::string(60000, 'a') + " HTTP/1.0\r\n\r\n", std::string("GET /a\r\n\r\n"),
        std::string("GET /a HTTP/9.9\r\n\r\n"), std::string("GET * HTTP/1.0\r\n\r\n"), std::string("GET /a HTTP/1.1\r\nHost: \0\r\n\r\n", 28)}) {
    HttpAsk((*endpoint)->address(), junk);
  }
  EXPECT_THAT(HttpGet((*endpoint)->address(), "/a"), HasSubstr("hello"));
}

TEST(HttpEndpoint, AnswersManyAtOnceAndEndsWithThemUnderWay) {
  std::atomic<int> asked{0};
  auto endpoint = HttpEndpoint::Start("127.0.0.1:0", {{"/slow", {"text/plain", [&] {
                                        ++asked;
                                        std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                        return std::string(100000, 'x');
                                      }}}});
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string address = (*endpoint)->address();
  std::atomic<int> whole{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 16; ++i) {
    callers.emplace_back([&] { whole += HttpGet(address, "/slow").size() > 100000; });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(whole, 16);
  std::thread late([&] { HttpAsk(address, "GET /slow HTTP/1.0\r\n\r\n"); });
  while (asked < 17) std::this_thread::yield();
  endpoint->reset();
  late.join();
}

TEST(HttpEndpoint, NamesAnAddressItCannotHave) {
  EXPECT_EQ(HttpEndpoint::Start("127.0.0.1", Pages()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HttpEndpoint::Start("127.0.0.1:", Pages()).status().code(), absl::StatusCode::kInvalidArgument);
  auto endpoint = HttpEndpoint::Start("127.0.0.1:0", Pages());
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const auto taken = HttpEndpoint::Start((*endpoint)->address(), Pages());
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr((*endpoint)->address()));
}

}  // namespace
}  // namespace foreshard
