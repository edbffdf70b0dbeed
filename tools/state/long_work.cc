#include "tools/state/long_work.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tools/progress.h"

namespace foreshard {

bool LongWork::Proceed(const std::string& what, uint64_t done) {
  if (interrupt_.requested()) {
    Clear();
    return false;
  }
  if (!text_.terminal()) return true;
  if (const absl::Time now = absl::Now(); now >= next_) {
    next_ = now + absl::Milliseconds(200);
    text_.Draw({absl::StrCat(what, " ", FormatCount(done))});
    drawn_ = true;
  }
  return true;
}

void LongWork::Clear() {
  if (drawn_) text_.Draw({});
  drawn_ = false;
}

}  // namespace foreshard
