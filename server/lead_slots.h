// What the lead keeps of each worker slot beside its dealer. It follows from the dealer's events
// alone, so the running lead, recovery and tools make the same of them.
//
//   LeadSlots slots(job.training().max_workers());
//   Deal deal = slots.Apply(event, incarnation, job, train_examples, &dealer);
//   slots.Save(&state);                       // a v1::LeadState
//   RETURN_IF_ERROR(slots.Load(state));
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "foreshard/v1/job.pb.h"
#include "foreshard/v1/state.pb.h"
#include "server/checkpoint_manifest.h"
#include "server/dealer.h"
#include "server/event.h"

namespace foreshard {

// Thread-compatible.
class LeadSlots {
 public:
  explicit LeadSlots(uint32_t slots) : slots_(slots) {}

  uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }
  // The incarnation that is dealt to; 0: none.
  uint64_t dealing(uint32_t worker) const { return slots_[worker].dealing; }
  // The highest that ever was, also where its lease is over; 0: none.
  uint64_t known(uint32_t worker) const { return slots_[worker].known; }
  // Completed by the newest incarnation.
  uint64_t examples(uint32_t worker) const { return slots_[worker].examples; }

  // Applies an event to the dealer. `incarnation`: of who joins. The worker is below size().
  Deal Apply(const DealerEvent& event, uint64_t incarnation, const v1::JobSpec& job, uint64_t train_examples,
             Dealer* dealer);
  // The same for an event as it was recorded. INVALID_ARGUMENT: it is none of a dealer's, or of
  // a worker beyond size().
  absl::StatusOr<Deal> Replay(const Event& event, const v1::JobSpec& job, uint64_t train_examples, Dealer* dealer);

  // The fields dealing, examples and known.
  void Save(v1::LeadState* state) const;
  // DATA_LOSS: of more slots than there are.
  absl::Status Load(const v1::LeadState& state);

 private:
  struct Slot {
    uint64_t dealing = 0;
    uint64_t known = 0;
    uint64_t examples = 0;
  };
  std::vector<Slot> slots_;
};

// The key under which a checkpoint's manifest has the lead's state, a LeadState as text.
inline constexpr char kLeadStateKey[] = "lead";
// An empty one where the checkpoint has none. DATA_LOSS: it is none.
absl::StatusOr<v1::LeadState> LeadStateOf(const CheckpointManifest& checkpoint);

}  // namespace foreshard
