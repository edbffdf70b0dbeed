#include "server/server_context.h"

#include <algorithm>
#include <chrono>

#include "server/monotonic_time.h"

namespace foreshard {
namespace {

uint64_t MicrosecondsSinceEpoch() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

// For as much the lead's clock may be ahead of another server's.
constexpr uint64_t kMostSkewMicroseconds = 24 * 3600 * uint64_t{1'000'000};

}  // namespace

ServerContext::ServerContext(const v1::JobSpec& job_spec, uint32_t shard_index, EventSink* sink,
                             uint32_t apply_thread_count, uint64_t least_incarnation,
                             const ProtocolRange& speaks)
    : job(job_spec),
      incarnation(std::max(MicrosecondsSinceEpoch(), least_incarnation)),
      started(MonotonicNanoseconds()),
      shard(job, shard_index, sink, speaks),
      members(job.training().max_workers(),
              static_cast<int64_t>(job.timeouts().lease_seconds() * 1e9)),
      figures(job.name(), job.update().rule(), shard_index, job.training().max_workers()),
      buffers(job.servers().inflight_bytes()),
      threads(apply_thread_count) {}

bool ServerContext::MayBeGiven(uint64_t worker_incarnation) const {
  return worker_incarnation <= std::max(incarnation, MicrosecondsSinceEpoch()) + kMostSkewMicroseconds;
}

void ServerContext::Release(EventKind kind, uint32_t worker, uint64_t worker_incarnation) {
  for (RoundWaiter* waiter : shard.Release(kind, worker, worker_incarnation)) resume(waiter);
}

v1::WorkerStatus ServerContext::Describe(const Membership::Member& member) const {
  v1::WorkerStatus status;
  status.set_worker(member.worker);
  status.set_name(member.name);
  status.set_state(ToString(member.state));
  status.set_incarnation(member.incarnation);
  status.set_device(member.device);
  status.set_seconds_since_seen(
      std::max(0.0, SecondsBetween(member.last_seen, MonotonicNanoseconds())));
  figures.FillWorker(member.worker, &status);
  return status;
}

}  // namespace foreshard
