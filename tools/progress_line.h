// One line on stderr that is written over, once a second; in a log a line every half minute.
//
//   ProgressLine line;
//   while (...) line.Say([&](double seconds) { return absl::StrCat(done, " of ", all); });
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace foreshard {

// Thread-compatible. The destructor clears the line.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;

  // `text` is asked for where it is time; `seconds` since this object was made.
  void Say(absl::FunctionRef<std::string(double seconds)> text);

 private:
  const bool terminal_;
  const absl::Time start_;
  absl::Time said_;
  bool said_once_ = false;
};

}  // namespace foreshard
