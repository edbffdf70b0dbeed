#include "common/net/wire_limits.h"

#include "absl/strings/str_cat.h"
#include "utf8proc.h"

namespace foreshard {
namespace {

// Bytes of the character at the front that may be printed; 0: there is none.
size_t PrintableBytes(absl::string_view text) {
  utf8proc_int32_t character = -1;
  const utf8proc_ssize_t bytes =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(text.size()), &character);
  if (bytes <= 0 || utf8proc_category(character) == UTF8PROC_CATEGORY_CC) return 0;
  return static_cast<size_t>(bytes);
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
