#include "common/net/retry_after.h"

#include <string>

#include "gtest/gtest.h"

namespace foreshard {
namespace {

absl::Duration Read(const std::string& key, const std::string& value) {
  return RetryAfter({{grpc::string_ref(key), grpc::string_ref(value)}});
}

TEST(RetryAfter, IsReadAndBounded) {
  EXPECT_EQ(Read("foreshard-retry-after-ms", "120"), absl::Milliseconds(120));
  EXPECT_EQ(Read("foreshard-retry-after-ms", "4000000000"), kLongestRetryAfter);
}

TEST(RetryAfter, WhatIsNoNumberIsNoWait) {
  for (const char* text : {"", "-5", "soon", "99999999999", "1.5"}) {
    EXPECT_EQ(Read("foreshard-retry-after-ms", text), absl::ZeroDuration()) << text;
  }
  EXPECT_EQ(Read("another-key", "120"), absl::ZeroDuration());
  EXPECT_EQ(RetryAfter({}), absl::ZeroDuration());
}

}  // namespace
}  // namespace foreshard
