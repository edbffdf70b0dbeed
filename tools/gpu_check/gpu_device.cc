// MakeDevice of kernels/device.h for programs that have a GPU's layers alone: "cuda".
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/libraries/cuda_device.h"
#include "kernels/device.h"

namespace foreshard::kernels {

absl::StatusOr<std::unique_ptr<Device>> MakeDevice(std::string_view spec, const DeviceOptions& options) {
  if (spec == "cuda") return cuda::MakeCudaDevice(0, options, "");
  return absl::InvalidArgumentError(absl::StrCat("device '", std::string(spec), "' is not in this program: use cuda"));
}

}  // namespace foreshard::kernels
