#include "worker/elastic_replica.h"

#include <algorithm>

namespace foreshard {

ElasticReplica::ElasticReplica(const ElasticOptions& options, const ShardPlan& plan,
                               const Schema& schema)
    : options_(options),
      local_(options.local, schema.trainable_elements(), schema.elements()),
      difference_(schema.trainable_elements()),
      clocks_(plan.segments().size()) {
  for (const SegmentPlan& segment : plan.segments()) {
    if (segment.kind == TensorKind::kTrainable) segments_.push_back(&segment);
  }
}

void ElasticReplica::Restart(const float* center) { local_.Restart(center); }

float ElasticReplica::Eta(uint32_t segment, uint64_t ticket) const {
  const bool rounds = options_.synchronous_steps > 0;
  return options_.schedule.At(rounds ? ticket : std::max(ticket, clocks_[segment]));
}

const float* ElasticReplica::GradientPoint(uint64_t ticket) {
  for (const SegmentPlan* segment : segments_) {
    local_.LookAhead(segment->begin, segment->elements, Eta(segment->id, ticket));
  }
  return local_.gradient_point();
}

void ElasticReplica::Step(uint64_t ticket, uint64_t step, const float* gradient) {
  for (const SegmentPlan* segment : segments_) {
    local_.Step(segment->blocks, segment->begin, Eta(segment->id, ticket),
                gradient + segment->begin);
  }
  Note(ticket, step);
}

void ElasticReplica::Note(uint64_t ticket, uint64_t step) {
  tickets_.push_back(ticket);
  last_step_ = step;
}

bool ElasticReplica::due() const {
  if (options_.synchronous_steps == 0) return tickets_.size() >= options_.local_steps;
  const uint64_t done = last_step_ + 1;
  return !tickets_.empty() &&
         (done % options_.local_steps == 0 || done == options_.synchronous_steps);
}

bool ElasticReplica::Exchange(const float* center) {
  bool finite = true;
  for (const SegmentPlan* segment : segments_) {
    finite = local_.Difference(segment->begin, segment->elements, options_.elasticity,
                               center + segment->begin, difference_.data() + segment->begin) &&
             finite;
  }
  if (!finite) Restart(center);
  return finite;
}

}  // namespace foreshard
