// What `foreshard run` shows while a job trains: a few lines redrawn in place on a
// terminal, one line now and then elsewhere, and the summary at the end. All text
// is plain ASCII.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "foreshard/v1/job.pb.h"
#include "tools/live_text.h"
#include "tools/run_figures.h"

namespace foreshard {

// 1:05, 12:00, 2:03:59.
std::string FormatDuration(double seconds);
// "512 B", "1.5 KiB", "23.4 MiB".
std::string FormatBytes(double bytes);
// 1234567.8 -> "1,234,568"; below 100 with one decimal: "26.7".
std::string FormatRate(double value);
// 1234567 -> "1,234,567".
std::string FormatCount(uint64_t value);
// "12 of 96 gradients were not finite".
std::string FormatSkipped(const RunFigures& figures);
// "12 of 96 gradients came later than update.delay_threshold".
std::string FormatDiscarded(const RunFigures& figures);

// The block redrawn on a terminal, every line cut to `columns`.
std::vector<std::string> ProgressBlock(const v1::JobSpec& job, const History& history,
                                       double seconds, size_t columns);
// The line printed without a terminal.
std::string ProgressLine(const History& history, double seconds);
// The last words, several lines. `ended` says why it was not completed, or what else
// went wrong ("completed": nothing); the folder is left out where nothing could be
// written to it.
std::string Summary(const v1::JobSpec& job, const History& history, bool completed,
                    const std::string& ended, double seconds, const std::string& folder);

// Writes the above to a stream. A terminal that is not "dumb" gets the block,
// anything else lines. Thread-compatible.
class ProgressDisplay {
 public:
  ProgressDisplay(std::FILE* out, const v1::JobSpec& job) : text_(out), job_(job) {}

  // Shows where the run is at this second of it.
  void Show(const History& history, double seconds);
  // A line that stays, above the block.
  void Notice(std::string_view text) { text_.Notice(text); }
  // Leaves the block as it is and goes below it. Idempotent.
  void Close() { text_.Close(); }

 private:
  LiveText text_;
  v1::JobSpec job_;
  double next_line_seconds_ = 0;
  size_t shown_evaluations_ = 0;
};

}  // namespace foreshard
