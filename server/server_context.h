// What the services of one server share. Owned by ShardServer, which outlives them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "foreshard/v1/job.pb.h"
#include "server/apply_threads.h"
#include "server/figures.h"
#include "server/membership.h"
#include "server/reply_buffers.h"
#include "server/shard.h"

namespace foreshard {

class Durability;

struct ServerContext {
  // `least_incarnation`: that of an earlier start is below it.
  ServerContext(const v1::JobSpec& job_spec, uint32_t shard_index, EventSink* sink,
                uint32_t apply_thread_count, uint64_t least_incarnation = 1,
                const ProtocolRange& speaks = {});

  // What this server knows of a worker; the lead adds what it was told.
  v1::WorkerStatus Describe(const Membership::Member& member) const;
  // The worker has left or its lease is over: Shard::Release, and whoever waited for it
  // in a round is answered.
  void Release(EventKind kind, uint32_t worker, uint64_t worker_incarnation);

  // Whether a lead, on whichever machine, can have given a worker this incarnation: they begin with the
  // microsecond of the lead's start. The lead itself knows better (Lead::MayHaveGiven).
  bool MayBeGiven(uint64_t worker_incarnation) const;

  const v1::JobSpec job;
  // Microseconds since 1970 at start: rises from one start to the next.
  const uint64_t incarnation;
  const int64_t started;  // monotonic nanoseconds
  Shard shard;
  Membership members;
  Figures figures;
  ReplyBuffers buffers;
  // Null without a state directory; set before there are calls.
  Durability* durability = nullptr;
  std::atomic<bool> stopping{false};
  // Set by the parameter service before there are calls.
  std::function<void(RoundWaiter*)> resume;
  ApplyThreads threads;  // last: ends first
};

}  // namespace foreshard
