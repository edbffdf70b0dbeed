// Which errors say that the device itself has failed: it is not there, was lost, or has not the
// memory. UNAVAILABLE and RESOURCE_EXHAUSTED alone would not tell, since servers answer with them
// too. A worker ends with kExitDeviceLost on these.
//
//   return DeviceFailure(absl::UnavailableError("GPU 0 is lost"));
//   if (IsDeviceFailure(status)) return kExitDeviceLost;
#pragma once

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace foreshard::kernels {

inline constexpr char kDeviceFailurePayload[] = "foreshard/device-failure";

inline bool IsDeviceFailure(const absl::Status& status) {
  return status.GetPayload(kDeviceFailurePayload).has_value();
}

// The status, marked; those of other codes than UNAVAILABLE and RESOURCE_EXHAUSTED as they are.
inline absl::Status DeviceFailure(absl::Status status) {
  if (status.code() == absl::StatusCode::kUnavailable ||
      status.code() == absl::StatusCode::kResourceExhausted) {
    status.SetPayload(kDeviceFailurePayload, absl::Cord());
  }
  return status;
}

}  // namespace foreshard::kernels
