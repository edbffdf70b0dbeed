#include "common/net/pem_files.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/secret_file.h"
#include "openssl/bio.h"
#include "openssl/err.h"
#include "openssl/evp.h"
#include "openssl/pem.h"
#include "openssl/x509.h"
#include "openssl/x509v3.h"

namespace foreshard {
namespace {

constexpr char kCertificate[] = "--tls-certificate";
constexpr char kKey[] = "--tls-key";
constexpr char kCa[] = "--tls-ca";

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Certificate = std::unique_ptr<X509, Free>;

absl::Status Refuse(const std::string& flag, const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": ", why));
}

std::string Format(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

// Nobody is asked for a pass phrase; `asked` is told that one would be needed.
int NoPassPhrase(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

std::unique_ptr<BIO, Free> Memory(const std::string& text) {
  return std::unique_ptr<BIO, Free>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::StatusOr<std::vector<Certificate>> ReadCertificates(const std::string& flag,
                                                          const std::string& path) {
  const absl::StatusOr<std::string> text = ReadPublicFile(flag, path);
  if (!text.ok()) return text.status();
  const auto bio = Memory(*text);
  std::vector<Certificate> certificates;
  bool asked = false;
  while (X509* read = PEM_read_bio_X509(bio.get(), nullptr, NoPassPhrase, &asked)) {
    certificates.emplace_back(read);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!at_end) {
    return Refuse(flag, path, absl::StrCat("certificate ", certificates.size() + 1,
                                           " of this PEM file is damaged"));
  }
  if (certificates.empty()) {
    return Refuse(flag, path, "holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)");
  }
  return certificates;
}

absl::StatusOr<absl::Time> TimeOf(const ASN1_TIME* time, const std::string& flag,
                                  const std::string& path) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return Refuse(flag, path, "has a damaged date");
  return absl::FromTM(parts, absl::UTCTimeZone());
}

// When it ends.
absl::StatusOr<absl::Time> CheckDates(const std::string& flag, const std::string& path,
                                      const X509* certificate, absl::Time now) {
  const auto from = TimeOf(X509_get0_notBefore(certificate), flag, path);
  if (!from.ok()) return from.status();
  const auto until = TimeOf(X509_get0_notAfter(certificate), flag, path);
  if (!until.ok()) return until.status();
  if (now > *until) {
    return Refuse(flag, path, absl::StrCat("the certificate expired on ", Format(*until),
                                           "; make a new one: tools/make-certificates --renew"));
  }
  if (now < *from) {
    return Refuse(flag, path, absl::StrCat("the certificate is not valid before ", Format(*from),
                                           ", and it is ", Format(now),
                                           " here; is this machine's clock right?"));
  }
  return until;
}

absl::Status CheckPurpose(const std::string& path, X509* certificate, TlsSide side) {
  const auto allows = [&](int purpose) { return X509_check_purpose(certificate, purpose, 0) == 1; };
  if (side != TlsSide::kClient && !allows(X509_PURPOSE_SSL_SERVER)) {
    return Refuse(kCertificate, path,
                  "is not for servers, workers would refuse it; make one with: "
                  "tools/make-certificates DIR --server NAME");
  }
  if (side != TlsSide::kServer && !allows(X509_PURPOSE_SSL_CLIENT)) {
    return Refuse(kCertificate, path,
                  "is not for clients, servers would refuse it; make one with: "
                  "tools/make-certificates DIR --worker NAME");
  }
  return absl::OkStatus();
}

absl::Status CheckKey(const PemFiles& files, X509* certificate) {
  absl::StatusOr<std::string> text = ReadSecretFile(kKey, files.key);
  if (!text.ok()) return text.status();
  bool asked = false;
  std::unique_ptr<EVP_PKEY, Free> key;
  {
    const auto bio = Memory(*text);
    key.reset(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassPhrase, &asked));
  }
  OPENSSL_cleanse(text->data(), text->size());
  ERR_clear_error();
  if (asked) {
    return Refuse(kKey, files.key,
                  "is protected by a pass phrase, and there is nobody to ask; take it off with: "
                  "openssl pkey");
  }
  if (key == nullptr) {
    return Refuse(kKey, files.key, "holds no private key in PEM form (-----BEGIN PRIVATE KEY-----)");
  }
  const bool same = X509_check_private_key(certificate, key.get()) == 1;
  ERR_clear_error();
  if (same) return absl::OkStatus();
  return Refuse(kKey, files.key,
                absl::StrCat("is not the key of the certificate in ", files.certificate));
}

}  // namespace

absl::StatusOr<absl::Time> CheckPemFiles(const PemFiles& files, TlsSide side, absl::Time now) {
  const auto own = ReadCertificates(kCertificate, files.certificate);
  if (!own.ok()) return own.status();
  absl::Time first_end = absl::InfiniteFuture();
  for (const Certificate& certificate : *own) {
    const auto until = CheckDates(kCertificate, files.certificate, certificate.get(), now);
    if (!until.ok()) return until.status();
    first_end = std::min(first_end, *until);
  }
  if (absl::Status status = CheckPurpose(files.certificate, own->front().get(), side);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckKey(files, own->front().get()); !status.ok()) return status;
  const auto authorities = ReadCertificates(kCa, files.ca);
  if (!authorities.ok()) return authorities.status();
  // An old authority may lie beside its successor.
  absl::Status expired;
  for (const Certificate& certificate : *authorities) {
    const auto until = CheckDates(kCa, files.ca, certificate.get(), now);
    if (until.ok()) return first_end;
    expired = until.status();
  }
  return expired;
}

}  // namespace foreshard
