#include "common/net/wire_limits.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

std::string Refusal(const absl::Status& status) {
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(WireLimits, TextsAreShortAndCanBePrinted) {
  for (const char* text : {"", "worker-0 on cuda:1 (NVIDIA H200)", "\u00fcber \u20ac \U0001f600", "\u00a0"}) {
    EXPECT_TRUE(CheckText("name", text, 40).ok()) << text;
    EXPECT_EQ(FitText(text, 40), text);
  }
  EXPECT_TRUE(CheckText("name", std::string(256, 'n'), 256).ok());
  EXPECT_EQ(Refusal(CheckText("name", std::string(257, 'n'), 256)), "name: 257 bytes; at most 256 are taken");
  // Controls, C1 controls, what is cut, too long a form, a surrogate, beyond the last character, a byte alone.
  for (const std::string text : {"a\nb", "a\tb", "a\x7f", "a\xc2\x85", "a\xe2\x82", "a\xc0\xaf", "a\xe0\x80\xaf",
                                 "a\xed\xa0\x80", "a\xf0\x80\x80\xaf", "a\xf4\x90\x80\x80", "a\x80", "a\xff"}) {
    EXPECT_THAT(Refusal(CheckText("name", text, 256)), HasSubstr("name: byte 1 of")) << text;
    EXPECT_TRUE(CheckText("name", FitText(text, 256), 256).ok()) << text;
    EXPECT_EQ(FitText(text, 256).front(), 'a');
  }
  EXPECT_THAT(Refusal(CheckText("name", std::string("a\0b", 3), 256)), HasSubstr("control character"));
}

TEST(WireLimits, TextsAreCutBehindAWholeCharacter) {
  EXPECT_EQ(FitText("one\ntwo", 5), "one t");
  EXPECT_EQ(FitText("ab\u20ac", 5), "ab\u20ac");
  EXPECT_EQ(FitText("ab\u20ac", 4), "ab");
  EXPECT_EQ(FitText("ab", 0), "");
}

TEST(WireLimits, EveryTextOfAMessageIsLookedAt) {
  const std::string longer(kMostNameBytes + 1, 'n');
  v1::HelloRequest hello;
  EXPECT_TRUE(CheckLimits(hello).ok());
  hello.set_worker_name("a\nb");
  EXPECT_THAT(Refusal(CheckLimits(hello)), HasSubstr("worker_name"));
  hello.set_job_name(longer);
  EXPECT_THAT(Refusal(CheckLimits(hello)), HasSubstr("job_name: 257 bytes; at most 256"));
  hello = {};
  hello.set_job_text("two\nlines");
  EXPECT_TRUE(CheckLimits(hello).ok());
  hello.set_job_text(std::string(kMostJobTextBytes + 1, ' '));
  EXPECT_THAT(Refusal(CheckLimits(hello)), HasSubstr("job_text"));

  v1::RegisterRequest registration;
  EXPECT_TRUE(CheckLimits(registration).ok());
  registration.set_job_text(hello.job_text());
  EXPECT_THAT(Refusal(CheckLimits(registration)), HasSubstr("job_text"));
  registration.set_device(longer);
  EXPECT_THAT(Refusal(CheckLimits(registration)), HasSubstr("device"));
  registration.set_worker_name(longer);
  EXPECT_THAT(Refusal(CheckLimits(registration)), HasSubstr("worker_name"));
  registration.set_job_name(longer);
  EXPECT_THAT(Refusal(CheckLimits(registration)), HasSubstr("job_name"));

  v1::ReportRequest report;
  report.mutable_figures()->set_metrics_address("127.0.0.1:1");
  for (int k = 0; k < kMostEvaluations; ++k) report.add_evaluations()->set_parameters("lookahead");
  EXPECT_TRUE(CheckLimits(report).ok());
  report.add_evaluations();
  EXPECT_THAT(Refusal(CheckLimits(report)), HasSubstr("evaluations: 65 of them; at most 64"));
  report.clear_evaluations();
  report.add_evaluations();
  report.add_evaluations()->set_parameters(std::string(kMostWordBytes + 1, 'p'));
  EXPECT_THAT(Refusal(CheckLimits(report)), HasSubstr("evaluations.parameters"));
  report.mutable_figures()->set_metrics_address(longer);
  EXPECT_THAT(Refusal(CheckLimits(report)), HasSubstr("figures.metrics_address"));

  v1::LeaveRequest leave;
  leave.set_reason("two\nlines");
  EXPECT_TRUE(CheckLimits(leave).ok());
  leave.mutable_figures()->set_metrics_address(longer);
  EXPECT_THAT(Refusal(CheckLimits(leave)), HasSubstr("figures.metrics_address"));

  v1::FetchTicketsRequest fetch;
  for (int k = 0; k < kMostRoundFigures; ++k) fetch.add_round_figures();
  EXPECT_TRUE(CheckLimits(fetch).ok());
  fetch.add_round_figures();
  EXPECT_THAT(Refusal(CheckLimits(fetch)), HasSubstr("round_figures: 1025"));

  v1::StopRequest stop;
  stop.set_reason(std::string(kMostReasonBytes, 'r'));
  EXPECT_TRUE(CheckLimits(stop).ok());
  stop.set_reason(std::string(kMostReasonBytes + 1, 'r'));
  EXPECT_THAT(Refusal(CheckLimits(stop)), HasSubstr("reason: 1025 bytes; at most 1024"));
}

}  // namespace
}  // namespace foreshard
