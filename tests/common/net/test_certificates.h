// Certificates for tests, made in memory: also those that no tool should make.
//
//   TestAuthority authority(folder + "/ca.pem");
//   PemFiles files = authority.Issue(folder + "/server", {.names = {"IP:127.0.0.1"}});
#pragma once

#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/net/pem_files.h"
#include "gtest/gtest.h"
#include "openssl/bio.h"
#include "openssl/evp.h"
#include "openssl/pem.h"
#include "openssl/x509.h"
#include "openssl/x509v3.h"

namespace foreshard {

inline void WriteFileWithMode(const std::string& path, const std::string& content, mode_t mode) {
  // As tools do it: never half of a file under its name.
  const std::string part = path + ".part";
  std::ofstream(part, std::ios::binary) << content;
  ASSERT_EQ(chmod(part.c_str(), mode), 0);
  ASSERT_EQ(rename(part.c_str(), path.c_str()), 0);
}

struct TestCertificate {
  std::vector<std::string> names;  // "DNS:alpha", "IP:127.0.0.1"
  std::string use = "serverAuth,clientAuth";
  absl::Time from = absl::Now() - absl::Hours(1);
  absl::Time until = absl::Now() + absl::Hours(1000);
};

class TestAuthority {
 public:
  explicit TestAuthority(const std::string& path) : path_(path), key_(NewKey()) {
    certificate_ = Make(key_.get(), "test authority", {}, true);
    WriteFileWithMode(path_, Text(certificate_.get()), 0644);
  }

  // Writes FOLDER.pem and FOLDER.key.
  PemFiles Issue(const std::string& name, const TestCertificate& wanted) {
    const Key key = NewKey();
    const PemFiles files = {.certificate = name + ".pem", .key = name + ".key", .ca = path_};
    WriteFileWithMode(files.key, Text(key.get()), 0600);
    WriteFileWithMode(files.certificate, Text(Make(key.get(), "test", wanted, false).get()), 0600);
    return files;
  }

 private:
  struct Free {
    void operator()(X509* certificate) const { X509_free(certificate); }
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(BIO* bio) const { BIO_free(bio); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  static Key NewKey() { return Key(EVP_EC_gen("P-256")); }

  static std::string Read(BIO* bio) {
    char* data = nullptr;
    const long bytes = BIO_get_mem_data(bio, &data);
    return std::string(data, static_cast<size_t>(bytes));
  }
  static std::string Text(X509* certificate) {
    const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
    PEM_write_bio_X509(bio.get(), certificate);
    return Read(bio.get());
  }
  static std::string Text(EVP_PKEY* key) {
    const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
    PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
    return Read(bio.get());
  }

  void Extend(X509* certificate, int what, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, certificate_ == nullptr ? certificate : certificate_.get(), certificate,
                   nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
    ASSERT_NE(extension, nullptr) << value;
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }

  Certificate Make(EVP_PKEY* key, const char* name, const TestCertificate& wanted, bool authority) {
    Certificate certificate(X509_new());
    X509_set_version(certificate.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), ++serial_);
    ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(wanted.from));
    ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(wanted.until));
    X509_NAME* subject = X509_get_subject_name(certificate.get());
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
    X509_set_issuer_name(certificate.get(), authority ? subject
                                                      : X509_get_subject_name(certificate_.get()));
    X509_set_pubkey(certificate.get(), key);
    if (authority) {
      Extend(certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
      Extend(certificate.get(), NID_key_usage, "critical,keyCertSign");
    } else {
      Extend(certificate.get(), NID_ext_key_usage, wanted.use);
      if (!wanted.names.empty()) {
        Extend(certificate.get(), NID_subject_alt_name, absl::StrJoin(wanted.names, ","));
      }
    }
    X509_sign(certificate.get(), key_.get(), EVP_sha256());
    return certificate;
  }

  const std::string path_;
  const Key key_;
  Certificate certificate_;
  long serial_ = 0;
};

}  // namespace foreshard
