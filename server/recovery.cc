#include "server/recovery.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/arrivals.h"
#include "server/journal_file.h"
#include "server/journal_reader.h"

namespace foreshard {
namespace {

std::string NameOf(uint32_t machine) {
  return machine == kDealerSegment ? "the dealer" : absl::StrCat("segment ", machine);
}

// Of all machines; `numbers` are those of the last events in their states.
absl::Status LoadStates(const Checkpoint& checkpoint, RecoveryTarget* target,
                        std::map<uint32_t, uint64_t>* numbers) {
  target->Begin(checkpoint.manifest());
  for (const uint32_t machine : target->machines()) {
    const auto saved = checkpoint.ReadState(machine);
    if (machine == kDealerSegment && absl::IsNotFound(saved.status())) continue;
    if (!saved.ok()) return saved.status();
    if (absl::Status loaded = target->Load(machine, saved->state); !loaded.ok()) {
      return absl::Status(loaded.code(), absl::StrCat(checkpoint.name(), ", ", NameOf(machine), ": ",
                                                      loaded.message()));
    }
    (*numbers)[machine] = saved->number;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Recovered> Recover(const Storage& storage, const StateIdentity& identity,
                                  RecoveryTarget* target, const RecoveryOptions& options) {
  Recovered recovered;
  std::map<uint32_t, uint64_t> numbers;
  uint64_t from = 1;
  if (!options.from_start) {
    auto checkpoint = options.checkpoint.empty()
                          ? Checkpoint::OpenNewest(storage, identity, &recovered.passed_over)
                          : Checkpoint::Open(storage, options.checkpoint, identity);
    if (checkpoint.ok()) {
      if (absl::Status loaded = LoadStates(**checkpoint, target, &numbers); !loaded.ok()) return loaded;
      recovered.checkpoint = (*checkpoint)->manifest();
      recovered.checkpoint_name = (*checkpoint)->name();
      recovered.next_number = recovered.checkpoint->next_number();
      // Also of one that stands alone: later starts may have a journal behind it.
      from = recovered.checkpoint->first_number();
    } else if (!options.checkpoint.empty() || !absl::IsNotFound(checkpoint.status())) {
      return checkpoint.status();
    }
  }
  auto reader = JournalReader::Open(storage, identity, from);
  if (!reader.ok()) return reader.status();
  for (;;) {
    const auto event = (*reader)->Next();
    if (!event.ok()) return event.status();
    if (!event->has_value()) break;
    const Event& next = **event;
    if (options.until.has_value() && next.number > *options.until) break;
    const auto number = numbers.find(next.segment);
    if (number != numbers.end() && next.number <= number->second) continue;
    if (options.proceed && !options.proceed(next, recovered.replayed)) {
      return absl::CancelledError(absl::StrCat("interrupted before event ", next.number));
    }
    if (absl::Status replayed = target->Replay(next); !replayed.ok()) {
      return absl::DataLossError(absl::StrCat((*reader)->place(), ": event ", next.number, " (",
                                              ToString(next.kind), " of ", NameOf(next.segment),
                                              ") does not follow from what came before it: ",
                                              replayed.message()));
    }
    ++recovered.replayed;
    recovered.next_number = std::max(recovered.next_number, next.number + 1);
  }
  // Only a checkpoint's states can be ahead of the journal.
  if (!options.until.has_value() && from < recovered.next_number &&
      (*reader)->end().next_number < recovered.next_number) {
    const bool none = (*reader)->end().files_end <= 1;
    return absl::DataLossError(absl::StrCat(
        storage.Describe(""), none ? " has no journal" : absl::StrCat(": its journal ends with event ", (*reader)->end().next_number - 1),
        ", and ", recovered.checkpoint_name, " needs that from event ", from, " to ", recovered.next_number - 1,
        ", which its states are of: bring the files of the journal back, from ",
        NameOfJournalFile(recovered.checkpoint->about.journal_file),
        " on, which lay beside it; or take a checkpoint with its journal from a copy"));
  }
  return recovered;
}

}  // namespace foreshard
