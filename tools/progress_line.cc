#include "tools/progress_line.h"

#include <unistd.h>

#include <cstdio>

#include "absl/time/clock.h"

namespace foreshard {
namespace {

constexpr absl::Duration kSayEvery = absl::Seconds(1);
constexpr absl::Duration kSayEveryInLogs = absl::Seconds(30);

}  // namespace

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) != 0), start_(absl::Now()), said_(start_) {}

ProgressLine::~ProgressLine() {
  if (terminal_ && said_once_) std::fprintf(stderr, "\r\033[K");
}

void ProgressLine::Say(absl::FunctionRef<std::string(double seconds)> text) {
  const absl::Time now = absl::Now();
  if (now - said_ < (terminal_ ? kSayEvery : kSayEveryInLogs)) return;
  said_ = now;
  said_once_ = true;
  const std::string line = text(absl::ToDoubleSeconds(now - start_));
  std::fprintf(stderr, "%s%s%s", terminal_ ? "\r" : "", line.c_str(), terminal_ ? "\033[K" : "\n");
}

}  // namespace foreshard
