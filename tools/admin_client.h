// The operator's view of running servers: status of all of them at once, checkpoints, and stop.
//
//   AdminClient admin({"127.0.0.1:7001", "127.0.0.1:7002"});
//   for (const absl::StatusOr<v1::StatusReply>& reply : admin.GetStatus(absl::Seconds(2))) ...
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/credential_flags.h"
#include "common/net/credentials.h"
#include "foreshard/v1/admin.grpc.pb.h"

namespace foreshard {

// Thread-safe. Channels connect lazily and again after a failure.
class AdminClient {
 public:
  explicit AdminClient(std::vector<std::string> addresses, Credentials credentials = {});
  // From a command's --servers and its credentials. INVALID_ARGUMENT and the errors of
  // CredentialFlags::Load and Credentials::CheckCall.
  static absl::StatusOr<std::unique_ptr<AdminClient>> Connect(const std::string& servers,
                                                              const CredentialFlags& credentials);

  const std::vector<std::string>& addresses() const { return addresses_; }

  // One entry an address, in order; all are asked at once and none longer than
  // `timeout`. Errors name the server.
  std::vector<absl::StatusOr<v1::StatusReply>> GetStatus(absl::Duration timeout);

  // Tells every server to end the job (and, with `exit_process`, itself); one
  // entry an address, as above.
  std::vector<absl::Status> Stop(const std::string& reason, bool exit_process,
                                 absl::Duration timeout);

  // Has every server write a checkpoint; one entry an address, as above.
  std::vector<absl::StatusOr<v1::CheckpointReply>> Checkpoint(absl::Duration timeout);

 private:
  // Asks all servers at once; `start` begins the call of one.
  template <typename Reply, typename Request, typename Start>
  std::vector<absl::StatusOr<Reply>> AskAll(const Request& request, absl::Duration timeout, Start start);
  absl::Status Named(size_t server, const grpc::Status& status) const;

  std::vector<std::string> addresses_;
  Credentials credentials_;
  std::vector<std::unique_ptr<v1::Admin::Stub>> stubs_;
};

}  // namespace foreshard
