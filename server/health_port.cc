#include "server/health_port.h"

#include <chrono>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/net/channel.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace foreshard {
namespace {

// Probes are some bytes each.
constexpr int kMaxProbeBytes = 4096;

}  // namespace

HealthPort::HealthPort() = default;

absl::StatusOr<std::unique_ptr<HealthPort>> HealthPort::Start(const std::string& address) {
  // Only looks whether it is an address: who may reach it is nobody's secret.
  if (const auto parsed = IsLoopbackAddress(address); !parsed.ok()) return parsed.status();
  auto health = absl::WrapUnique(new HealthPort);
  // Reflection, which every server of this process has, is the service without which gRPC does
  // not start one.
  grpc::ServerBuilder builder;
  ConfigureServer(builder, kMaxProbeBytes);
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  health->server_ = builder.BuildAndStart();
  if (health->server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot answer health checks on ", address,
        ": is the port taken? Choose another one with --health-listen, or port 0 for any"));
  }
  health->address_ = WithPort(address, port);
  health->SetServing(false);
  return health;
}

HealthPort::~HealthPort() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  server_->Wait();
}

void HealthPort::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
}

}  // namespace foreshard
