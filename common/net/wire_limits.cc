#include "common/net/wire_limits.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace foreshard {
namespace {

// Bytes of the character at the front that may be printed; 0: there is none.
// Well-formed sequences: the Unicode Standard, table 3-7.
size_t PrintableBytes(absl::string_view text) {
  const auto byte = [&](size_t at) { return at < text.size() ? static_cast<uint8_t>(text[at]) : uint8_t{0}; };
  const auto follows = [&](size_t at) { return (byte(at) & 0xc0) == 0x80; };
  const uint8_t first = byte(0), second = byte(1);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  if (first >= 0xc2 && first <= 0xdf) {
    // U+0080 to U+009f are controls.
    return follows(1) && (first != 0xc2 || second >= 0xa0) ? 2 : 0;
  }
  if (first >= 0xe0 && first <= 0xef) {
    const bool fits = (first != 0xe0 || second >= 0xa0) && (first != 0xed || second <= 0x9f);
    return follows(1) && follows(2) && fits ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const bool fits = (first != 0xf0 || second >= 0x90) && (first != 0xf4 || second <= 0x8f);
    return follows(1) && follows(2) && follows(3) && fits ? 4 : 0;
  }
  return 0;
}

absl::Status CheckBytes(absl::string_view field, size_t bytes, size_t most_bytes) {
  if (bytes <= most_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", bytes, " bytes; at most ", most_bytes, " are taken"));
}

absl::Status CheckCount(absl::string_view field, int count, int most) {
  if (count <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", count, " of them; at most ", most, " are taken in one message"));
}

absl::Status CheckFigures(const v1::WorkerFigures& figures) {
  return CheckText("figures.metrics_address", figures.metrics_address(), kMostNameBytes);
}

}  // namespace

absl::Status CheckText(absl::string_view field, absl::string_view text, size_t most_bytes) {
  if (absl::Status status = CheckBytes(field, text.size(), most_bytes); !status.ok()) return status;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = PrintableBytes(text.substr(at));
    if (bytes == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, ": byte ", at, " of ", text.size(),
          " is a control character or no UTF-8; use text that can be printed, of at most ", most_bytes, " bytes"));
    }
    at += bytes;
  }
  return absl::OkStatus();
}

std::string FitText(absl::string_view text, size_t most_bytes) {
  std::string fit;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = PrintableBytes(text.substr(at));
    const absl::string_view next = bytes == 0 ? absl::string_view(" ") : text.substr(at, bytes);
    if (fit.size() + next.size() > most_bytes) break;
    absl::StrAppend(&fit, next);
    at += bytes == 0 ? 1 : bytes;
  }
  return fit;
}

absl::Status CheckLimits(const v1::HelloRequest& request) {
  absl::Status status = CheckText("job_name", request.job_name(), kMostNameBytes);
  status.Update(CheckText("worker_name", request.worker_name(), kMostNameBytes));
  status.Update(CheckBytes("job_text", request.job_text().size(), kMostJobTextBytes));
  return status;
}

absl::Status CheckLimits(const v1::RegisterRequest& request) {
  absl::Status status = CheckText("job_name", request.job_name(), kMostNameBytes);
  status.Update(CheckText("worker_name", request.worker_name(), kMostNameBytes));
  status.Update(CheckText("device", request.device(), kMostNameBytes));
  status.Update(CheckBytes("job_text", request.job_text().size(), kMostJobTextBytes));
  return status;
}

absl::Status CheckLimits(const v1::FetchTicketsRequest& request) {
  return CheckCount("round_figures", request.round_figures_size(), kMostRoundFigures);
}

absl::Status CheckLimits(const v1::ReportRequest& request) {
  absl::Status status = CheckFigures(request.figures());
  status.Update(CheckCount("evaluations", request.evaluations_size(), kMostEvaluations));
  for (const v1::Evaluation& evaluation : request.evaluations()) {
    status.Update(CheckText("evaluations.parameters", evaluation.parameters(), kMostWordBytes));
  }
  return status;
}

absl::Status CheckLimits(const v1::LeaveRequest& request) { return CheckFigures(request.figures()); }

absl::Status CheckLimits(const v1::StopRequest& request) {
  return CheckText("reason", request.reason(), kMostReasonBytes);
}

}  // namespace foreshard
