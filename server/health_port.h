// A port that answers gRPC health checks (grpc.health.v1) and nothing that is a job's: in plain
// text and without a token, since that is all the probes of Kubernetes speak.
//
//   auto health = HealthPort::Start("0.0.0.0:8086").value();
//   health->SetServing(true);
//   ... health->SetServing(false);   // draining: probes see NOT_SERVING, the port stays
//
// Readiness is the service without a name. The service "liveness" serves as long as the port answers at
// all: a process that stands still does not, though its kernel goes on accepting connections.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace grpc {
class Server;
}

namespace foreshard {

class Listener;

// For probes of liveness.
inline constexpr char kLivenessService[] = "liveness";

// Thread-safe. Ends with its destructor, within a second.
class HealthPort {
 public:
  // "127.0.0.1:0" picks a free port. Not serving at first. INVALID_ARGUMENT: no address.
  // UNAVAILABLE: the port is taken. After the process's other gRPC server has been built,
  // which turns health checks and reflection on.
  static absl::StatusOr<std::unique_ptr<HealthPort>> Start(const std::string& address);
  ~HealthPort();

  void SetServing(bool serving);
  // "host:port" as bound.
  const std::string& address() const { return address_; }

 private:
  HealthPort();

  std::string address_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace foreshard
