// Where a server's events go: a journal, a recorder in a test, or nowhere.
#pragma once

#include "absl/status/status.h"
#include "server/event.h"

namespace foreshard {

class EventSink {
 public:
  virtual ~EventSink() = default;
  // Called for every event that changes a segment's or the dealer's state, before
  // its reply is sent, by several threads at once and not in the order of
  // Event::number, which is the order in which the events took effect and counts
  // them from 1 without holes, as long as the server runs. Returns when the event is as safe as the sink promises. The payload is valid only
  // during the call.
  virtual void Record(const Event& event) = 0;
  // Asked after Record, before anybody is told of what the event came to: an error where an
  // event whose Record has returned may be lost, so that it must not be acknowledged.
  virtual absl::Status status() const { return absl::OkStatus(); }
};

}  // namespace foreshard
