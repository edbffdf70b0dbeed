#include "worker/batch_times.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace foreshard {
namespace {

// What a trace can say of a step that was quicker than the clock.
constexpr double kShortest = 1e-9;

}  // namespace

absl::StatusOr<std::unique_ptr<BatchTimes>> BatchTimes::Open(const BatchTimesOptions& options) {
  std::unique_ptr<BatchTimes> times(new BatchTimes);
  if (!options.pace.empty()) {
    auto trace = LoadTrace(options.pace);
    if (!trace.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--pace: ", trace.status().message()));
    }
    times->pace_ = *std::move(trace);
    times->pace_path_ = options.pace;
  }
  if (options.record.empty()) return times;
  times->path_ = options.record;
  times->file_ =
      open(options.record.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (times->file_ < 0 || !times->Write(kTraceHeader)) {
    return absl::UnavailableError(
        absl::StrCat("--record-batches: cannot write ", options.record, ": ", std::strerror(errno)));
  }
  return times;
}

BatchTimes::~BatchTimes() {
  if (file_ >= 0) close(file_);
}

absl::Status BatchTimes::SetWorker(uint32_t worker) {
  worker_ = worker;
  if (pace_.empty() || worker < pace_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--pace: ", pace_path_, " has times for ", pace_.size(),
                   " workers, counted from 0, and this is worker ", worker,
                   "; start fewer workers or give a longer trace"));
}

double BatchTimes::LeastSeconds() const {
  if (pace_.empty()) return 0;
  const std::vector<double>& steps = pace_[worker_];
  return steps[step_ % steps.size()];
}

void BatchTimes::Note(double seconds) {
  if (file_ >= 0 && !Write(PrintTraceLine(worker_, step_, std::max(seconds, kShortest)))) {
    LOG(ERROR) << "cannot write " << path_ << ": " << std::strerror(errno)
               << "; the times of batches from step " << step_ << " on are not recorded";
    // What is there stays a trace, without a torn line.
    if (ftruncate(file_, whole_bytes_) != 0) LOG(ERROR) << "nor cut " << path_;
    close(file_);
    file_ = -1;
  }
  ++step_;
}

bool BatchTimes::Write(absl::string_view text) {
  const auto bytes = static_cast<off_t>(text.size());
  while (!text.empty()) {
    const ssize_t written = write(file_, text.data(), text.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) text.remove_prefix(written);
  }
  whole_bytes_ += bytes;
  return true;
}

}  // namespace foreshard
