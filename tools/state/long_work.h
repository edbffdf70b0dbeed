// Long work of a command: what it is at, on stderr where that is a terminal, and whether
// somebody has asked for its end.
//
//   LongWork work;
//   if (!work.Proceed("shard-0: replaying, event", number)) return work.Cancelled();
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/interrupt.h"
#include "tools/live_text.h"

namespace foreshard {

// What libraries ask from time to time: what they are at, and how far. False: end now.
class WorkWatch {
 public:
  virtual ~WorkWatch() = default;
  virtual bool Proceed(const std::string& what, uint64_t done) = 0;
  static absl::Status Cancelled() { return absl::CancelledError("interrupted"); }
};

// Takes Ctrl-C while it lives. Thread-compatible.
class LongWork final : public WorkWatch {
 public:
  LongWork() : text_(stderr) {}
  // Draws five times a second at most.
  bool Proceed(const std::string& what, uint64_t done) override;
  bool interrupted() const { return interrupt_.requested(); }
  // Takes what was drawn away, for other output.
  void Clear();

 private:
  Interrupt interrupt_;
  LiveText text_;
  absl::Time next_ = absl::InfinitePast();
  bool drawn_ = false;
};

}  // namespace foreshard
