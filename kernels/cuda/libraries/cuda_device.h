// The device "cuda:n" of kernels/device.h.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace foreshard::kernels::cuda {

// What `asked` for comes to on a GPU of compute capability `major`: before 8 tf32 is fp32, and bf16
// INVALID_ARGUMENT.
absl::StatusOr<Precision> PrecisionOn(int major, Precision asked);

// `note` is added to the description. UNAVAILABLE: there is no such GPU (with how many there
// are), or its libraries cannot be loaded.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int number, const DeviceOptions& options,
                                                       std::string_view note);

}  // namespace foreshard::kernels::cuda
