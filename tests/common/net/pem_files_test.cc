#include "common/net/pem_files.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/net/test_certificates.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PemFilesTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::string Read(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::string Error(const PemFiles& files, TlsSide side = TlsSide::kBoth,
                    absl::Time now = absl::Now()) {
    const auto end = CheckPemFiles(files, side, now);
    if (end.ok()) return "";
    EXPECT_EQ(end.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(end.status().message());
  }

  const std::string folder_ = ::testing::TempDir() + "pem_files_test." + std::to_string(getpid());
};

TEST_F(PemFilesTest, GoodFilesSayWhenTheyEnd) {
  TestAuthority authority(folder_ + "/ca.pem");
  const absl::Time until = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()) + 5000);
  const PemFiles files =
      authority.Issue(folder_ + "/a", {.names = {"DNS:alpha"}, .until = until});
  const auto end = CheckPemFiles(files, TlsSide::kBoth);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(*end, until);
}

TEST_F(PemFilesTest, DatesAreThoseOfNow) {
  TestAuthority authority(folder_ + "/ca.pem");
  const absl::Time from = absl::Now() - absl::Hours(2);
  const absl::Time until = absl::Now() + absl::Hours(2);
  const PemFiles files = authority.Issue(folder_ + "/a", {.from = from, .until = until});
  EXPECT_THAT(Error(files, TlsSide::kClient, until + absl::Minutes(1)),
              AllOf(HasSubstr("--tls-certificate"), HasSubstr(files.certificate), HasSubstr("expired on"),
                    HasSubstr("--renew")));
  EXPECT_THAT(Error(files, TlsSide::kClient, from - absl::Minutes(1)),
              AllOf(HasSubstr(files.certificate), HasSubstr("not valid before"), HasSubstr("clock")));
  EXPECT_EQ(Error(files, TlsSide::kClient, until - absl::Minutes(1)), "");
}

TEST_F(PemFilesTest, AnExpiredAuthorityIsNamedUnlessItsSuccessorIsThere) {
  TestAuthority authority(folder_ + "/ca.pem");
  const PemFiles files = authority.Issue(folder_ + "/a", {.until = absl::Now() + absl::Hours(5000)});
  const absl::Time later = absl::Now() + absl::Hours(2000);  // the authority has 1000
  EXPECT_THAT(Error(files, TlsSide::kBoth, later),
              AllOf(HasSubstr("--tls-ca"), HasSubstr(files.ca), HasSubstr("expired")));
  WriteFileWithMode(files.ca, Read(files.ca) + Read(files.certificate), 0644);
  EXPECT_EQ(Error(files, TlsSide::kBoth, later), "");
}

TEST_F(PemFilesTest, EachSideNeedsItsPurpose) {
  TestAuthority authority(folder_ + "/ca.pem");
  const PemFiles server = authority.Issue(folder_ + "/s", {.use = "serverAuth"});
  const PemFiles client = authority.Issue(folder_ + "/c", {.use = "clientAuth"});
  EXPECT_EQ(Error(server, TlsSide::kServer), "");
  EXPECT_EQ(Error(client, TlsSide::kClient), "");
  EXPECT_THAT(Error(server, TlsSide::kClient), HasSubstr("not for clients"));
  EXPECT_THAT(Error(server, TlsSide::kBoth), HasSubstr("not for clients"));
  EXPECT_THAT(Error(client, TlsSide::kServer), HasSubstr("not for servers"));
  EXPECT_THAT(Error(client, TlsSide::kBoth), HasSubstr("not for servers"));
}

TEST_F(PemFilesTest, WhatIsWrongIsSaidByFile) {
  TestAuthority authority(folder_ + "/ca.pem");
  const PemFiles good = authority.Issue(folder_ + "/a", {});
  const PemFiles other = authority.Issue(folder_ + "/b", {});
  ASSERT_EQ(Error(good), "");

  PemFiles files = good;
  files.key = other.key;
  EXPECT_THAT(Error(files), AllOf(HasSubstr("--tls-key"), HasSubstr(other.key), HasSubstr("not the key"),
                                  HasSubstr(good.certificate)));
  for (std::string PemFiles::* const which :
       {&PemFiles::certificate, &PemFiles::key, &PemFiles::ca}) {
    files = good;
    files.*which = folder_ + "/missing";
    EXPECT_THAT(Error(files), AllOf(HasSubstr(folder_ + "/missing"), HasSubstr("No such file")));
    files.*which = folder_ + "/junk";
    WriteFileWithMode(files.*which, "no PEM at all", 0600);
    EXPECT_THAT(Error(files), AllOf(HasSubstr(folder_ + "/junk"), HasSubstr("in PEM form")));
    const std::string text = Read(good.*which);
    WriteFileWithMode(files.*which, text.substr(0, text.size() / 2), 0600);
    EXPECT_THAT(Error(files), HasSubstr(folder_ + "/junk"));
  }
  files = good;
  WriteFileWithMode(good.key, Read(good.key), 0644);
  EXPECT_THAT(Error(files), AllOf(HasSubstr(good.key), HasSubstr("chmod 600")));
}

TEST_F(PemFilesTest, AKeyWithAPassPhraseIsRefusedWithoutAsking) {
  TestAuthority authority(folder_ + "/ca.pem");
  PemFiles files = authority.Issue(folder_ + "/a", {});
  BIO* in = BIO_new_file(files.key.c_str(), "r");
  EVP_PKEY* key = PEM_read_bio_PrivateKey(in, nullptr, nullptr, nullptr);
  BIO_free(in);
  ASSERT_NE(key, nullptr);
  files.key = folder_ + "/protected.key";
  WriteFileWithMode(files.key, "", 0600);
  BIO* out = BIO_new_file(files.key.c_str(), "w");
  ASSERT_EQ(PEM_write_bio_PKCS8PrivateKey(out, key, EVP_aes_128_cbc(), "secret", 6, nullptr, nullptr), 1);
  BIO_free(out);
  EVP_PKEY_free(key);
  EXPECT_THAT(Error(files), AllOf(HasSubstr(files.key), HasSubstr("pass phrase")));
}

}  // namespace
}  // namespace foreshard
