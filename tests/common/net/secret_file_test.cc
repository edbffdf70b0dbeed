#include "common/net/secret_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/net/test_certificates.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SecretFileTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& content, mode_t mode = 0600) {
    const std::string path = folder_ + "/secret";
    WriteFileWithMode(path, content, mode);
    return path;
  }
  // The error of a token file with this content; "" for none.
  std::string TokenError(const std::string& content, mode_t mode = 0600) {
    const auto token = LoadJobToken(Write(content, mode));
    if (token.ok()) return "";
    EXPECT_EQ(token.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(token.status().message());
  }

  const std::string folder_ =
      ::testing::TempDir() + "secret_file_test." + std::to_string(getpid());
};

TEST_F(SecretFileTest, ATokenIsItsOneLine) {
  for (const char* end : {"", "\n", "\r\n"}) {
    const auto token = LoadJobToken(Write(std::string("0123456789abcdef") + end));
    ASSERT_TRUE(token.ok()) << token.status();
    EXPECT_EQ(*token, "0123456789abcdef");
  }
}

TEST_F(SecretFileTest, ABadTokenIsRefusedByFileWithoutAWordOfIt) {
  for (const char* bad : {"", "\n", "shorttokenxyz\n", "two words of a token", "line one of it\nline two of it",
                          "0123456789abcde\t0", "0123456789abcdef\x80"}) {
    const std::string error = TokenError(bad);
    EXPECT_THAT(error, AllOf(HasSubstr("--token-file"), HasSubstr(folder_ + "/secret"),
                             HasSubstr("openssl rand")));
    for (const char* part : {"shorttoken", "two words", "line one", "0123456789"}) {
      EXPECT_THAT(error, Not(HasSubstr(part)));
    }
  }
}

TEST_F(SecretFileTest, OthersMayNotReadIt) {
  for (const mode_t mode : {0644, 0604, 0606, 0777}) {
    EXPECT_THAT(TokenError("0123456789abcdef", mode),
                AllOf(HasSubstr("chmod 600"), Not(HasSubstr("0123456789"))))
        << mode;
  }
  for (const mode_t mode : {0600, 0400, 0640, 0440, 0660}) {
    EXPECT_EQ(TokenError("0123456789abcdef", mode), "") << mode;
  }
  // Which of a link counts is the file's.
  Write("0123456789abcdef", 0644);
  ASSERT_EQ(symlink((folder_ + "/secret").c_str(), (folder_ + "/link").c_str()), 0);
  EXPECT_FALSE(ReadSecretFile("--x", folder_ + "/link").ok());
  EXPECT_TRUE(ReadPublicFile("--x", folder_ + "/link").ok());
}

TEST_F(SecretFileTest, WhatIsNoFileIsRefused) {
  for (const std::string& path : {folder_ + "/missing", folder_, std::string("/dev/zero")}) {
    const auto read = ReadSecretFile("--tls-key", path);
    ASSERT_FALSE(read.ok()) << path;
    EXPECT_THAT(std::string(read.status().message()), AllOf(HasSubstr("--tls-key: "), HasSubstr(path)));
  }
  ASSERT_EQ(mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(ReadSecretFile("--tls-key", folder_ + "/pipe").ok());
  EXPECT_FALSE(ReadSecretFile("--tls-key", Write(std::string((1 << 20) + 1, 'x'))).ok());
  EXPECT_TRUE(ReadSecretFile("--tls-key", Write(std::string(1 << 20, 'x'))).ok());
}

TEST_F(SecretFileTest, SecretsAreComparedWhole) {
  EXPECT_TRUE(SameSecret("", ""));
  EXPECT_TRUE(SameSecret("0123456789abcdef", "0123456789abcdef"));
  for (const char* other : {"", "0123456789abcde", "0123456789abcdeg", "1123456789abcdef",
                            "0123456789abcdef0"}) {
    EXPECT_FALSE(SameSecret("0123456789abcdef", other)) << other;
  }
}

}  // namespace
}  // namespace foreshard
