// What servers have acknowledged to this worker, written down as it comes: what a test that
// kills servers compares their journals with.
//
//   auto record = AcknowledgedRecord::Open("acknowledged.csv").value();
//   record->SetIncarnation(incarnation);
//   options.answered = [&](const SegmentAnswer& answer) { record->Note(answer); };
//
// The file: the line kAcknowledgedHeader, then one line an answer. Each is with the kernel
// before the worker acts upon the answer, so a worker that is killed leaves at most one
// answer out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/parameter_client.h"

namespace foreshard {

inline constexpr absl::string_view kAcknowledgedHeader =
    "segment,incarnation,sequence,ticket,version,result\n";

// Thread-compatible.
class AcknowledgedRecord {
 public:
  // UNAVAILABLE: the file cannot be made.
  static absl::StatusOr<std::unique_ptr<AcknowledgedRecord>> Open(const std::string& path);
  ~AcknowledgedRecord();
  AcknowledgedRecord(const AcknowledgedRecord&) = delete;
  AcknowledgedRecord& operator=(const AcknowledgedRecord&) = delete;

  // Of this start of the worker; before the first answer.
  void SetIncarnation(uint64_t incarnation) { incarnation_ = incarnation; }

  // One line, by one write(). A full disk ends the record with an error in the log, and
  // nothing else.
  void Note(const SegmentAnswer& answer);

 private:
  AcknowledgedRecord(std::string path, int file) : path_(std::move(path)), file_(file) {}
  bool Write(absl::string_view line);

  const std::string path_;
  int file_;
  uint64_t incarnation_ = 0;
};

}  // namespace foreshard
