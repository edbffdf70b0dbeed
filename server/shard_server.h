// One server of a job, as an object: what foreshard-server runs, and what tests and
// benchmarks start in their own process.
//
//   auto server = ShardServer::Start({.job = job, .shard = 0}).value();
//   ... MakeChannel(server->address()) ...
//   server->Shutdown();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/credentials.h"
#include "foreshard/v1/admin.pb.h"
#include "foreshard/v1/job.pb.h"
#include "server/event_sink.h"

namespace foreshard {

struct ShardServerOptions {
  v1::JobSpec job;  // as LoadJobSpec gives it
  uint32_t shard = 0;
  std::string listen = "127.0.0.1:0";  // port 0: any that is free
  Credentials credentials;             // of all calls; also where it may listen
  std::string metrics_listen;          // empty: no metrics endpoint
  // A port more, for gRPC health checks alone, in plain text and without a token, as the probes
  // of Kubernetes speak it; empty: none.
  std::string health_listen;
  EventSink* events = nullptr;         // outlives the server; may be null
  // Where journal and checkpoints lie (server/durability.h); what is there is gone on with.
  // Empty: nothing is kept.
  std::string state_directory;
  // Called once when the server must end because its journal has failed; must not block. May
  // be empty.
  std::function<void(const absl::Status&)> failed;
  uint32_t apply_threads = 0;          // 0: as many as there are cores
  // Called when the admin asks the process to end; must not block. May be empty.
  std::function<void()> exit_requested;
};

class ShardServer {
 public:
  // INVALID_ARGUMENT: a shard the job does not have, an address that may not be
  // bound. UNAVAILABLE: a port that is taken. With a state directory also the errors of
  // Durability::Open and Begin. It listens when it has its state.
  static absl::StatusOr<std::unique_ptr<ShardServer>> Start(const ShardServerOptions& options);
  virtual ~ShardServer() = default;

  // As bound: "127.0.0.1:43210".
  virtual const std::string& address() const = 0;
  // Empty without a metrics endpoint.
  virtual const std::string& metrics_address() const = 0;
  // Empty without a health port.
  virtual const std::string& health_address() const = 0;
  // What the admin RPC answers.
  virtual v1::StatusReply status() const = 0;
  // Payload buffers ever allocated for replies: does not grow in a steady state.
  virtual uint64_t reply_allocations() const = 0;

  // The state of this shard's segments, in order, each as Segment::Save gives it
  // under its own lock.
  virtual std::vector<std::string> SaveSegments() const = 0;

  // Stops taking calls, answers those in flight (at most 10 s), writes a last checkpoint, ends.
  // Calling it again does nothing. The destructor calls it. An error: of the checkpoint or
  // the journal.
  virtual absl::Status Shutdown() = 0;
};

}  // namespace foreshard
