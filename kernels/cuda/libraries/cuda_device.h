// The device "cuda:n" of kernels/device.h.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace foreshard::kernels::cuda {

// `note` is added to the description. UNAVAILABLE: there is no such GPU (with how many there
// are), or its libraries cannot be loaded.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int number, const DeviceOptions& options,
                                                       std::string_view note);

}  // namespace foreshard::kernels::cuda
