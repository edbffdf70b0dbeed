// The Admin service: status, filled from all parts of the server, and stop.
#pragma once

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "foreshard/v1/admin.grpc.pb.h"
#include "server/lead.h"
#include "server/server_context.h"

namespace foreshard {

class AdminService final : public v1::Admin::CallbackService {
 public:
  // `lead` is null on shards other than 0. `exit` asks the process to end; it must
  // not block.
  AdminService(ServerContext& context, Lead* lead, std::function<void()> exit)
      : context_(context), lead_(lead), exit_(std::move(exit)) {}

  void set_metrics_address(const std::string& address);

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::StatusRequest* request,
                                      v1::StatusReply* reply) override;
  grpc::ServerUnaryReactor* Stop(grpc::CallbackServerContext* context,
                                 const v1::StopRequest* request, v1::StopReply* reply) override;

  grpc::ServerUnaryReactor* Checkpoint(grpc::CallbackServerContext* context,
                                       const v1::CheckpointRequest* request,
                                       v1::CheckpointReply* reply) override;

  void FillStatus(v1::StatusReply* reply) const;

 private:
  void FillSegments(v1::StatusReply* reply) const;
  void FillWorkers(v1::StatusReply* reply) const;
  void FillState(v1::StatusReply* reply) const;
  // Synchronous: the worker and round that an open round misses; "" for none.
  std::string MissingContribution() const;
  std::string MissingShares() const;

  ServerContext& context_;
  Lead* const lead_;
  const std::function<void()> exit_;
  mutable absl::Mutex mutex_;
  std::string metrics_address_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace foreshard
