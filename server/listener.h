// Takes connections and hands them to a gRPC server, in place of gRPC's own listener: that one takes
// whatever comes, and once the process may open no more files (EMFILE) it stops for good (gRPC 1.51,
// tried), so that a thousand connections by anybody would end a server for all who come later.
//
//   auto listener = Listener::Bind("127.0.0.1:0").value();
//   listener->AddTo(builder, credentials.Server());
//   auto server = builder.BuildAndStart();
//   listener->Start(1024);
//   ... listener->port() ...
//   listener->Stop();  // before server->Shutdown
//
// At its bound a new connection is closed at once, and those that there are go on. The bound leaves
// files of the process's limit (RLIMIT_NOFILE) to journal, checkpoints and metrics.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/server_builder.h"

namespace foreshard {

// Thread-compatible; takes connections on a thread of its own.
class Listener {
 public:
  // "host:port", port 0: any that is free; a host of several addresses is listened to on all. The
  // wildcard 0.0.0.0, like [::], means both families. UNAVAILABLE: the port is taken, or the address
  // not of this machine.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const std::string& address);
  ~Listener();
  Listener(const Listener&) = delete;

  int port() const { return port_; }
  // Before the server is built.
  void AddTo(grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials);
  // After it. No connection is taken while about `most_files` are open in the process, or but 64 less
  // than it may have.
  void Start(uint32_t most_files);
  // Takes no more; what is there stays. The destructor calls it.
  void Stop();

  // Connections closed at the bound.
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  Listener() = default;
  absl::Status Add(int family, const void* socket_address, uint32_t bytes);
  void Run();
  void TakeAll(int listening);
  uint64_t MostFiles() const;

  std::vector<int> listening_;
  int port_ = 0;
  int wake_ = -1;
  uint32_t most_files_ = 0;
  std::atomic<uint64_t> refused_{0};
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::thread thread_;
};

// As many files as the process may have; servers hold one for each connection.
void RaiseFileLimit();

}  // namespace foreshard
