// The LayerLibrary of a real GPU: cuDNN 9 and cuBLASLt.
//
//   ASSIGN(auto library, MakeNvidiaLibrary(Precision::kTf32));
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/layer_library.h"
#include "kernels/device.h"

namespace foreshard::kernels::cuda {

// For the device that the calling thread uses. UNAVAILABLE: a library is not there or does not
// fit, with its name.
absl::StatusOr<std::unique_ptr<LayerLibrary>> MakeNvidiaLibrary(Precision precision);

}  // namespace foreshard::kernels::cuda
