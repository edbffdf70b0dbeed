// The CPU as a device: layers by oneDNN.
#pragma once

#include <memory>
#include <string>

#include "kernels/device.h"

namespace foreshard::kernels::cpu {

// `note` is appended to the description: why this device and no other.
std::unique_ptr<Device> MakeCpuDevice(const DeviceOptions& options, std::string_view note);

}  // namespace foreshard::kernels::cpu
