// Who may talk to whom: mutual TLS, job tokens, and plain text on loopback only.
//
//   auto credentials = Credentials::Load({.pem = {...}, .token = "alpha/token"}, TlsSide::kClient);
//   RETURN_IF_ERROR(credentials->CheckCall({"alpha:7000", "beta:7000"}));
//   auto channel = MakeChannel("alpha:7000", *credentials);
//
// A server takes only calls with its job's token, whatever they call, before anything of
// theirs is read. Certificates and keys that are replaced on disk serve new connections
// within kReloadSeconds, once they are whole and fit each other (pem_watcher.h); tokens are read
// once.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/pem_files.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/support/client_interceptor.h"

namespace foreshard {

inline constexpr unsigned kReloadSeconds = 2;

struct CredentialFiles {
  PemFiles pem;           // all three, or none: plain text
  std::string token;      // empty: none
  bool insecure = false;  // plain text may leave this machine
};

// Cheap to copy; thread-safe.
class Credentials {
 public:
  // Plain text on loopback, without a token.
  Credentials() = default;

  // Errors: those of CheckPemFiles and LoadJobToken; INVALID_ARGUMENT for some of the three
  // PEM files without the others. Warns of a certificate that ends soon.
  static absl::StatusOr<Credentials> Load(const CredentialFiles& files, TlsSide side);

  bool tls() const;
  bool insecure() const;
  // "mutual TLS, job token required".
  std::string Describe() const;
  // Why the files for TLS as they are now are not served; OK where they are, or without TLS.
  absl::Status reload_status() const;

  // OK where this program may listen on, or call, the address: it has TLS, the address is
  // loopback, or it is insecure, which is logged as a warning. INVALID_ARGUMENT says what to do.
  absl::Status CheckListen(const std::string& address) const;
  absl::Status CheckCall(const std::vector<std::string>& addresses) const;

  // For ServerBuilder::AddListeningPort: as CheckListen allows; every call must bear the token.
  std::shared_ptr<grpc::ServerCredentials> Server() const;
  // For channels, whose calls bear the token. The name in the server's certificate must be
  // that of the address.
  std::shared_ptr<grpc::ChannelCredentials> Channel() const;
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
  Interceptors() const;

  // Looks at a server that is UNAVAILABLE: why TLS with it fails (tls_probe.h), or "". Takes
  // up to some seconds.
  std::string Explain(const std::string& address) const;
  // Explain of this address, to be called later.
  std::function<std::string()> Explainer(const std::string& address) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;  // null: as by default
};

}  // namespace foreshard
