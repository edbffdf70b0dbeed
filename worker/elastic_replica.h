// A worker of elastic averaging without its network: parameters of its own, local steps
// on them, and when and by how much it exchanges with the center (EASGD, arXiv
// 1412.6651). The daemon's and the simulator's workers are this object.
//
//   ElasticReplica replica(options, plan, schema);
//   replica.Restart(center);
//   for (each ticket) {
//     gradient = ... at replica.GradientPoint(ticket);
//     replica.Step(ticket, step, gradient);            // Skip where it is not finite
//     if (!replica.due()) continue;
//     center = ...;                                    // newest; replica.set_clock
//     const bool finite = replica.Exchange(center);
//     push replica.difference() for replica.tickets();
//     replica.Exchanged();
//   }
//
// Asynchronous: due after local_steps steps, or whenever the caller finds it so.
// Synchronous: the k-th exchange is round k, and takes steps k * local_steps to
// (k + 1) * local_steps - 1 of every worker; the last one may take fewer.
#pragma once

#include <cstdint>
#include <vector>

#include "common/core/schedule.h"
#include "common/core/schema.h"
#include "common/core/shard_plan.h"
#include "kernels/local_sgd.h"

namespace foreshard {

struct ElasticOptions {
  LocalSgdSettings local;
  float elasticity = 0.1f;   // alpha
  uint32_t local_steps = 10;
  Schedule schedule;
  uint64_t synchronous_steps = 0;  // that each worker makes in all; 0: asynchronous
};

// Thread-compatible. Vectors are the whole flat one, [schema.elements()], unless said
// otherwise; the center's running statistics are copied, never moved.
class ElasticReplica {
 public:
  // `plan` outlives this object.
  ElasticReplica(const ElasticOptions& options, const ShardPlan& plan, const Schema& schema);

  // Takes the center as its own parameters, at rest.
  void Restart(const float* center);

  // The highest ticket that the segment's server is known to have seen. A step's rate is
  // the schedule's at the higher of this and its ticket. In rounds it is the ticket's:
  // when a round closed its clock was below that of the next steps, and what a faster
  // member has pushed since then would make the rate a matter of chance.
  void set_clock(uint32_t segment, uint64_t ticket) { clocks_[segment] = ticket; }

  // Where the gradient of this ticket is to be computed; valid until the next call.
  const float* GradientPoint(uint64_t ticket);

  // The local step of a finite gradient [trainable_elements]. `step` counts a worker's
  // steps in synchronous modes (RoundOfTicket) and means nothing in others.
  void Step(uint64_t ticket, uint64_t step, const float* gradient);
  // The gradient was not finite: the ticket is consumed without a step.
  void Skip(uint64_t ticket, uint64_t step) { Note(ticket, step); }

  // Tickets since the last exchange.
  const std::vector<uint64_t>& tickets() const { return tickets_; }
  // Whether the exchange is to be made before the next step.
  bool due() const;
  uint64_t round() const { return last_step_ / options_.local_steps; }

  // Moves towards the center by the difference. False: it is not finite, as the
  // parameters have run away, so nothing may be pushed; they begin anew at the center.
  bool Exchange(const float* center);
  // What the center is to move by, [trainable_elements]; until the next Exchange.
  float* difference() { return difference_.data(); }
  // The tickets are the push's now.
  void Exchanged() { tickets_.clear(); }

  const LocalSgd& local() const { return local_; }

 private:
  void Note(uint64_t ticket, uint64_t step);
  float Eta(uint32_t segment, uint64_t ticket) const;

  const ElasticOptions options_;
  std::vector<const SegmentPlan*> segments_;  // trainable
  LocalSgd local_;
  std::vector<float> difference_;
  std::vector<uint64_t> clocks_;  // by segment
  std::vector<uint64_t> tickets_;
  uint64_t last_step_ = 0;
};

}  // namespace foreshard
