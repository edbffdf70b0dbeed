// How long the texts may be that small messages carry, and how many of a kind one message may have. What a
// server is told in them it keeps, logs and writes into its state, so that all of it is bounded at
// the door; texts are UTF-8 without control characters, since they appear in logs and on screens.
//
//   RETURN_IF_ERROR(CheckText("worker_name", request.worker_name(), kMostNameBytes));
//   request.set_reason(FitText(status.message(), kMostReasonBytes));      // the other side
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "foreshard/v1/admin.pb.h"
#include "foreshard/v1/exchange.pb.h"

namespace foreshard {

// Names of workers and jobs, devices, addresses.
inline constexpr size_t kMostNameBytes = 256;
// Why a worker leaves or a job is stopped.
inline constexpr size_t kMostReasonBytes = 1024;
// Evaluation.parameters.
inline constexpr size_t kMostWordBytes = 32;
// A JobSpec as text.
inline constexpr size_t kMostJobTextBytes = 256 << 10;
// The evaluator sends two at a time, a worker what it measured since it last asked (at most 256).
inline constexpr int kMostEvaluations = 64;
inline constexpr int kMostRoundFigures = 1024;

// INVALID_ARGUMENT with the field, and its length and bound, or that it is not to be printed.
absl::Status CheckText(absl::string_view field, absl::string_view text, size_t most_bytes);

// The text as CheckText takes it: what is no UTF-8 or a control character becomes a space, and the rest
// is cut behind a whole character.
std::string FitText(absl::string_view text, size_t most_bytes);

// All texts and counts of a message. The reason of a LeaveRequest is not looked at: no worker should be
// held back by it, and nobody keeps it.
absl::Status CheckLimits(const v1::HelloRequest& request);
absl::Status CheckLimits(const v1::RegisterRequest& request);
absl::Status CheckLimits(const v1::FetchTicketsRequest& request);
absl::Status CheckLimits(const v1::ReportRequest& request);
absl::Status CheckLimits(const v1::LeaveRequest& request);
absl::Status CheckLimits(const v1::StopRequest& request);

}  // namespace foreshard
