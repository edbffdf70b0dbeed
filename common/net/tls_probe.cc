#include "common/net/tls_probe.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "openssl/err.h"
#include "openssl/ssl.h"
#include "openssl/x509v3.h"

namespace foreshard {
namespace {

constexpr int kWaitMilliseconds = 1000;  // of each step
constexpr unsigned char kHttp2[] = {2, 'h', '2'};

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
};

// OpenSSL writes to sockets without MSG_NOSIGNAL: no SIGPIPE from this thread meanwhile.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoBrokenPipe() {
    const timespec at_once = {};
    if (!was_pending_) {
      while (sigtimedwait(&signal_, nullptr, &at_once) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t signal_, before_;
  bool was_pending_ = false;
};

// "host", without the brackets of IPv6.
std::string HostOf(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return host;
}

// A connected, blocking socket whose reads and writes end after a while; -1: nobody there.
int Connect(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return -1;
  addrinfo hints = {}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(HostOf(address).c_str(), address.c_str() + colon + 1, &hints, &list) != 0) {
    return -1;
  }
  const std::unique_ptr<addrinfo, Free> found(list);
  for (const addrinfo* to = found.get(); to != nullptr; to = to->ai_next) {
    const int descriptor = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    // The time-out of sending is that of connecting, too.
    const timeval wait = {.tv_sec = kWaitMilliseconds / 1000, .tv_usec = 0};
    setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (connect(descriptor, to->ai_addr, to->ai_addrlen) == 0) return descriptor;
    close(descriptor);
  }
  return -1;
}

bool IsIp(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// "alpha, 10.0.0.7".
std::string NamesOf(const X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, Free> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> texts;
  for (int k = 0; k < sk_GENERAL_NAME_num(names.get()); ++k) {
    int type = 0;
    const auto* value = static_cast<const ASN1_STRING*>(
        GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names.get(), k), &type));
    const unsigned char* data = nullptr;
    int bytes = 0;
    if (type == GEN_DNS || type == GEN_IPADD) {
      data = ASN1_STRING_get0_data(value);
      bytes = ASN1_STRING_length(value);
    }
    char text[INET6_ADDRSTRLEN] = {};
    if (type == GEN_DNS) {
      // Whatever a stranger wrote into it: only what may be in a name.
      std::string name(reinterpret_cast<const char*>(data), static_cast<size_t>(bytes));
      std::replace_if(name.begin(), name.end(), [](char c) { return c <= ' ' || c > '~'; }, '?');
      texts.push_back(name);
    } else if (type == GEN_IPADD && (bytes == 4 || bytes == 16) &&
               inet_ntop(bytes == 4 ? AF_INET : AF_INET6, data, text, sizeof text) != nullptr) {
      texts.push_back(text);
    }
  }
  return texts.empty() ? "nobody" : absl::StrJoin(texts, ", ");
}

std::string EndOf(const X509* certificate) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &parts) != 1) return "date unknown";
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::FromTM(parts, absl::UTCTimeZone()),
                          absl::UTCTimeZone());
}

// Why OpenSSL does not take the server's certificate.
std::string ExplainRefusal(SSL* ssl, const std::string& host, const PemFiles& files) {
  const std::unique_ptr<X509, Free> certificate(SSL_get1_peer_certificate(ssl));
  const long error = SSL_get_verify_result(ssl);
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return absl::StrCat("its certificate has expired",
                          certificate == nullptr ? "" : absl::StrCat(" (", EndOf(certificate.get()), ")"),
                          "; renew it there: tools/make-certificates --renew");
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "its certificate is not valid yet; are the clocks of both machines right?";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return absl::StrCat("its certificate is for ",
                          certificate == nullptr ? "others" : NamesOf(certificate.get()), ", not for ",
                          host, "; call it by one of its names, or make it a certificate with this one: "
                          "tools/make-certificates DIR --server NAME,", host);
    default:
      return absl::StrCat("its certificate is not signed by an authority in --tls-ca ", files.ca, " (",
                          X509_verify_cert_error_string(error),
                          "); do both sides have certificates of one make-certificates folder?");
  }
}

// Without TLS: whether the server would have it.
std::string ProbeWithoutFiles(SSL* ssl) {
  if (SSL_connect(ssl) != 1) return "";
  return "it speaks TLS and this program does not: give --tls-certificate, --tls-key and --tls-ca";
}

std::string ProbeWithFiles(SSL* ssl, const std::string& host, const PemFiles& files) {
  if (IsIp(host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str());
  } else {
    SSL_set1_host(ssl, host.c_str());
    SSL_set_tlsext_host_name(ssl, host.c_str());
  }
  const int connected = SSL_connect(ssl);
  if (SSL_get_verify_result(ssl) != X509_V_OK) return ExplainRefusal(ssl, host, files);
  char byte;
  // A server that takes us says something first, as HTTP/2 has it.
  const int got = connected == 1 ? SSL_read(ssl, &byte, 1) : connected;
  if (got > 0) return "";
  const int error = SSL_get_error(ssl, got);
  const bool silent = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ||
                      (error == SSL_ERROR_SYSCALL && (errno == EAGAIN || errno == EWOULDBLOCK));
  if (silent) return "";
  if (connected == 1) {
    return absl::StrCat("it ends the connection once it has seen this program's certificate, ",
                        files.certificate, "; is that signed by an authority in the server's --tls-ca, "
                        "and valid by the server's clock? The server's log says more");
  }
  // With its certificate seen, the question is not whether it speaks TLS.
  const std::unique_ptr<X509, Free> certificate(SSL_get1_peer_certificate(ssl));
  if (certificate != nullptr) return "";
  return "it does not speak TLS; was it started with --tls-certificate, --tls-key and --tls-ca?";
}

}  // namespace

std::string ProbeTls(const std::string& address, const PemFiles* files) {
  const NoBrokenPipe no_broken_pipe;
  const Socket connection(Connect(address));
  if (connection.descriptor() < 0) return "";
  const std::unique_ptr<SSL_CTX, Free> context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return "";
  // A certificate that fails is looked at rather than turned away.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return -1; });
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof kHttp2);
  if (files != nullptr &&
      (SSL_CTX_load_verify_locations(context.get(), files->ca.c_str(), nullptr) != 1 ||
       SSL_CTX_use_certificate_chain_file(context.get(), files->certificate.c_str()) != 1 ||
       SSL_CTX_use_PrivateKey_file(context.get(), files->key.c_str(), SSL_FILETYPE_PEM) != 1)) {
    ERR_clear_error();
    return "the files of --tls-certificate, --tls-key and --tls-ca cannot be used any more; have "
           "they been replaced by others?";
  }
  const std::unique_ptr<SSL, Free> ssl(SSL_new(context.get()));
  if (ssl == nullptr || SSL_set_fd(ssl.get(), connection.descriptor()) != 1) return "";
  const std::string explained = files == nullptr ? ProbeWithoutFiles(ssl.get())
                                                 : ProbeWithFiles(ssl.get(), HostOf(address), *files);
  ERR_clear_error();
  return explained;
}

}  // namespace foreshard
