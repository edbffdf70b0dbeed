#include "server/health_port.h"

#include <chrono>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/net/channel.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/listener.h"

namespace foreshard {
namespace {

// Probes are some bytes each.
constexpr int kMaxProbeBytes = 4096;
// Of the process, when connections of probes are not taken any more: workers may have more.
constexpr uint32_t kMostFiles = 1024;

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
  const auto failed = [&](absl::string_view why) {
    return absl::UnavailableError(absl::StrCat(
        "cannot answer health checks on ", address, " (", why,
        "): is the port taken? Choose another one with --health-listen, or port 0 for any"));
  };
  auto listener = Listener::Bind(address);
  if (!listener.ok()) return failed(listener.status().message());
  health->listener_ = *std::move(listener);
  health->listener_->AddTo(builder, grpc::InsecureServerCredentials());
  health->server_ = builder.BuildAndStart();
  if (health->server_ == nullptr) return failed("gRPC makes no server");
  health->listener_->Start(kMostFiles);
  health->address_ = WithPort(address, health->listener_->port());
  health->server_->GetHealthCheckService()->SetServingStatus(kLivenessService, true);
  health->SetServing(false);
  return health;
}

HealthPort::~HealthPort() {
  if (listener_ != nullptr) listener_->Stop();
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  server_->Wait();
}

void HealthPort::SetServing(bool serving) {
  // Of this service alone: without a name, that of all would be meant.
  server_->GetHealthCheckService()->SetServingStatus("", serving);
}

}  // namespace foreshard
