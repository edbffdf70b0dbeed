#include "server/dealer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/core/bytes.h"

namespace foreshard {
namespace {

constexpr uint32_t kMagic = 0x4c445346;  // "FSDL"
constexpr uint16_t kFormat = 1;

}  // namespace

Event ToEvent(const DealerEvent& event) {
  return {.kind = static_cast<EventKind>(static_cast<uint8_t>(EventKind::kDealerJoin) +
                                         static_cast<uint8_t>(event.kind) - 1),
          .segment = kDealerSegment,
          .worker = event.worker,
          .argument = event.argument};
}

absl::StatusOr<DealerEvent> ToDealerEvent(const Event& event) {
  if (event.segment != kDealerSegment || event.kind < EventKind::kDealerJoin ||
      event.kind > EventKind::kDealerStop) {
    return absl::InvalidArgumentError(
        absl::StrCat("event kind ", static_cast<int>(event.kind), " is not a dealer's"));
  }
  return DealerEvent{static_cast<DealerEvent::Kind>(static_cast<uint8_t>(event.kind) -
                                                    static_cast<uint8_t>(EventKind::kDealerJoin) + 1),
                     event.worker, event.argument};
}

absl::Status Dealer::Check(const DealerOptions& options) {
  if (options.batches_per_epoch == 0 || options.epochs == 0 || options.max_outstanding == 0) {
    return absl::InvalidArgumentError("dealer: needs at least one batch, epoch and outstanding ticket");
  }
  if (options.synchronous_workers > options.batches_per_epoch) {
    return absl::InvalidArgumentError(
        absl::StrCat("dealer: an epoch has ", options.batches_per_epoch, " batches, too few for ",
                     options.synchronous_workers,
                     " synchronous workers; use smaller batches or fewer workers"));
  }
  return absl::OkStatus();
}

Dealer::Dealer(const DealerOptions& options) : options_(options) {
  const uint64_t workers = std::max(options.synchronous_workers, 1u);
  per_epoch_ = options.batches_per_epoch / workers * workers;
  total_ = per_epoch_ * options.epochs;
  completed_.resize(options.epochs);
}

uint64_t Dealer::Ticket(uint32_t rank, uint64_t step) const {
  const uint64_t steps = per_epoch_ / options_.synchronous_workers;
  return step / steps * options_.batches_per_epoch + step % steps * options_.synchronous_workers + rank;
}

bool Dealer::finished() const { return stopped_ || completed_total_ == total_; }

uint64_t Dealer::outstanding(uint32_t worker) const {
  const auto at = held_.find(worker);
  return at == held_.end() ? 0 : at->second.size();
}

std::vector<uint64_t> Dealer::held(uint32_t worker) const {
  const auto at = held_.find(worker);
  if (at == held_.end()) return {};
  return {at->second.begin(), at->second.end()};
}

void Dealer::Finish(uint64_t ticket) {
  ++completed_total_;
  ++completed_[ticket / options_.batches_per_epoch];
  while (completed_epochs_ < completed_.size() && completed_[completed_epochs_] == per_epoch_) {
    ++completed_epochs_;
  }
}

Deal Dealer::Apply(const DealerEvent& event) {
  Deal deal;
  switch (event.kind) {
    case DealerEvent::Kind::kJoin:
      held_.try_emplace(event.worker);
      break;
    case DealerEvent::Kind::kFetch: {
      const auto at = held_.find(event.worker);
      if (at == held_.end() || finished()) break;
      std::set<uint64_t>& held = at->second;
      for (uint64_t k = 0; k < event.argument && held.size() < options_.max_outstanding; ++k) {
        uint64_t ticket;
        if (options_.synchronous_workers > 0) {
          if (event.worker >= options_.synchronous_workers) break;
          uint64_t& step = next_step_[event.worker];
          if (step * options_.synchronous_workers >= total_) break;
          ticket = Ticket(event.worker, step++);
        } else if (!again_.empty()) {
          ticket = *again_.begin();
          again_.erase(again_.begin());
          ++redealt_;
        } else if (next_ < total_) {
          ticket = next_++;
        } else {
          break;
        }
        held.insert(ticket);
        deal.tickets.push_back(ticket);
      }
      break;
    }
    case DealerEvent::Kind::kComplete: {
      const auto at = held_.find(event.worker);
      // A worker given up for lost may yet report: where its batch was not dealt
      // again meanwhile, its push counts.
      if ((at != held_.end() && at->second.erase(event.argument) > 0) ||
          again_.erase(event.argument) > 0) {
        Finish(event.argument);
      }
      break;
    }
    case DealerEvent::Kind::kLost: {
      const auto at = held_.find(event.worker);
      if (at == held_.end()) break;
      if (options_.synchronous_workers > 0) {
        // Whoever takes the rank over goes on at the first step that is missing.
        if (event.worker < options_.synchronous_workers) {
          next_step_[event.worker] -= at->second.size();
          redealt_ += at->second.size();
        }
      } else {
        again_.merge(at->second);
      }
      held_.erase(at);
      break;
    }
    case DealerEvent::Kind::kStop:
      stopped_ = true;
      break;
  }
  deal.finished = finished();
  return deal;
}

std::string Dealer::Save() const {
  ByteWriter writer;
  writer.Put(kMagic);
  writer.Put(kFormat);
  writer.Put(options_.batches_per_epoch);
  writer.Put(options_.epochs);
  writer.Put(options_.synchronous_workers);
  writer.Put(options_.max_outstanding);
  writer.Put(next_);
  writer.Put(completed_total_);
  writer.Put(redealt_);
  writer.Put(completed_epochs_);
  writer.Put(stopped_);
  const auto put_set = [&](const std::set<uint64_t>& tickets) {
    writer.Put<uint64_t>(tickets.size());
    for (const uint64_t ticket : tickets) writer.Put(ticket);
  };
  put_set(again_);
  writer.Put<uint64_t>(held_.size());
  for (const auto& [worker, tickets] : held_) {
    writer.Put(worker);
    put_set(tickets);
  }
  writer.Put<uint64_t>(next_step_.size());
  for (const auto& [rank, step] : next_step_) {
    writer.Put(rank);
    writer.Put(step);
  }
  for (const uint64_t count : completed_) writer.Put(count);
  return writer.TakeSealed();
}

absl::Status Dealer::Load(std::string_view bytes) {
  const absl::StatusOr<std::string_view> body = Unsealed(bytes);
  if (!body.ok()) {
    return absl::DataLossError(absl::StrCat("dealer: saved state ", body.status().message()));
  }
  ByteReader reader(*body);
  if (reader.Get<uint32_t>() != kMagic) return absl::DataLossError("dealer state: wrong magic");
  if (const auto format = reader.Get<uint16_t>(); format != kFormat) {
    return absl::DataLossError(absl::StrCat("dealer state: format ", format, ", this program reads ", kFormat));
  }
  if (reader.Get<uint64_t>() != options_.batches_per_epoch || reader.Get<uint32_t>() != options_.epochs ||
      reader.Get<uint32_t>() != options_.synchronous_workers ||
      reader.Get<uint32_t>() != options_.max_outstanding) {
    return absl::InvalidArgumentError(
        "dealer state: of a job with other batches, epochs or workers than this one");
  }
  Dealer loaded(options_);
  loaded.next_ = reader.Get<uint64_t>();
  loaded.completed_total_ = reader.Get<uint64_t>();
  loaded.redealt_ = reader.Get<uint64_t>();
  loaded.completed_epochs_ = reader.Get<uint32_t>();
  loaded.stopped_ = reader.Get<bool>();
  const auto get_set = [&](std::set<uint64_t>& tickets) {
    const auto size = reader.Get<uint64_t>();
    for (uint64_t k = 0; k < size && reader.ok(); ++k) tickets.insert(reader.Get<uint64_t>());
  };
  get_set(loaded.again_);
  const auto workers = reader.Get<uint64_t>();
  for (uint64_t k = 0; k < workers && reader.ok(); ++k) {
    const auto worker = reader.Get<uint32_t>();
    get_set(loaded.held_[worker]);
  }
  const auto ranks = reader.Get<uint64_t>();
  for (uint64_t k = 0; k < ranks && reader.ok(); ++k) {
    const auto rank = reader.Get<uint32_t>();
    loaded.next_step_[rank] = reader.Get<uint64_t>();
  }
  for (uint64_t& count : loaded.completed_) count = reader.Get<uint64_t>();
  if (!reader.ok() || reader.left() != 0) return absl::DataLossError("dealer state: lengths contradict");
  *this = std::move(loaded);
  return absl::OkStatus();
}

}  // namespace foreshard
