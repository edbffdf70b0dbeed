#include "common/core/batch_trace.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace foreshard {
namespace {

// Eleven days: no batch, and small enough for sums of times to keep their precision.
constexpr double kMaxBatchSeconds = 1e6;

struct Line {
  uint32_t worker = 0;
  uint64_t step = 0;
  double seconds = 0;
  size_t number = 0;
};

bool Parse(absl::string_view text, Line* line) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, ',');
  return fields.size() == 3 && absl::SimpleAtoi(fields[0], &line->worker) &&
         absl::SimpleAtoi(fields[1], &line->step) && absl::SimpleAtod(fields[2], &line->seconds);
}

}  // namespace

absl::StatusOr<BatchTrace> LoadTrace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat("can't read the trace ", path));
  std::ostringstream content;
  content << file.rdbuf();
  if (file.bad()) return absl::DataLossError(absl::StrCat("can't read the trace ", path));
  return ParseTrace(content.str(), path);
}

absl::StatusOr<BatchTrace> ParseTrace(absl::string_view text, absl::string_view name) {
  const auto bad = [&](size_t number, const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(name, ":", number, ": ", what...));
  };
  std::vector<Line> lines;
  size_t number = 0;
  for (absl::string_view piece : absl::StrSplit(text, '\n')) {
    ++number;
    piece = absl::StripSuffix(piece, "\r");
    if (number == 1 && !text.empty()) {
      if (piece != absl::StripSuffix(kTraceHeader, "\n")) {
        return bad(1, "a trace begins with the line 'worker,step,seconds', not '", piece.substr(0, 80), "'");
      }
      continue;
    }
    if (piece.empty()) continue;
    Line line;
    if (!Parse(piece, &line)) {
      return bad(number, "'", piece.substr(0, 80),
                 "' is not a worker's number, a step's number and seconds, with commas");
    }
    if (!(line.seconds > 0 && line.seconds <= kMaxBatchSeconds)) {
      return bad(number, "a batch can't take ", absl::StrFormat("%.9g", line.seconds),
                 " seconds; give a time above 0, at most 1e6");
    }
    line.number = number;
    lines.push_back(line);
  }
  if (lines.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": the trace has no batches"));
  }
  std::sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    if (a.worker != b.worker) return a.worker < b.worker;
    return a.step != b.step ? a.step < b.step : a.number < b.number;
  });
  BatchTrace trace;
  for (size_t i = 0; i < lines.size(); ++i) {
    const Line& line = lines[i];
    if (i > 0 && line.worker == lines[i - 1].worker && line.step == lines[i - 1].step) {
      return bad(line.number, "worker ", line.worker, " has step ", line.step,
                 " twice; the first is in line ", lines[i - 1].number);
    }
    if (line.worker > trace.size()) {
      return bad(line.number, "the trace has a hole: worker ", line.worker, " is there, worker ",
                 trace.size(), " is not");
    }
    if (line.worker == trace.size()) trace.emplace_back();
    if (line.step > trace.back().size()) {
      return bad(line.number, "the trace has a hole: worker ", line.worker, " has step ", line.step,
                 ", but no step ", trace.back().size());
    }
    trace.back().push_back(line.seconds);
  }
  return trace;
}

std::string PrintTrace(const BatchTrace& trace) {
  std::string text(kTraceHeader);
  for (uint32_t worker = 0; worker < trace.size(); ++worker) {
    for (uint64_t step = 0; step < trace[worker].size(); ++step) {
      text += PrintTraceLine(worker, step, trace[worker][step]);
    }
  }
  return text;
}

std::string PrintTraceLine(uint32_t worker, uint64_t step, double seconds) {
  return absl::StrFormat("%d,%d,%.9g\n", worker, step, seconds);
}

}  // namespace foreshard
