#include "worker/acknowledged_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace foreshard {

absl::StatusOr<std::unique_ptr<AcknowledgedRecord>> AcknowledgedRecord::Open(
    const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  std::unique_ptr<AcknowledgedRecord> record(new AcknowledgedRecord(path, file));
  if (file < 0 || !record->Write(kAcknowledgedHeader)) {
    return absl::UnavailableError(
        absl::StrCat("--record-acknowledged: cannot write ", path, ": ", std::strerror(errno)));
  }
  return record;
}

AcknowledgedRecord::~AcknowledgedRecord() {
  if (file_ >= 0) close(file_);
}

void AcknowledgedRecord::Note(const SegmentAnswer& answer) {
  if (file_ < 0) return;
  if (Write(absl::StrCat(answer.segment, ",", incarnation_, ",", answer.sequence, ",",
                         answer.ticket, ",", answer.version, ",", answer.result, "\n"))) {
    return;
  }
  LOG(ERROR) << "cannot write " << path_ << ": " << std::strerror(errno) << "; answers from segment "
             << answer.segment << ", push " << answer.sequence << " on are not recorded";
  close(file_);
  file_ = -1;
}

bool AcknowledgedRecord::Write(absl::string_view line) {
  for (;;) {
    const ssize_t written = write(file_, line.data(), line.size());
    if (written == static_cast<ssize_t>(line.size())) return true;
    if (written >= 0) errno = ENOSPC;  // a file takes part of a line only where there is no room
    if (written >= 0 || errno != EINTR) return false;
  }
}

}  // namespace foreshard
