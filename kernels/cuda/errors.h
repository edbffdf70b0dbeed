// CUDA's errors as statuses (internal to kernels/cuda; includes CUDA's headers).
#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/device_failure.h"

namespace foreshard::kernels::cuda {

// What a call that was to do `what` came to: Ok; UNAVAILABLE where there is no device, or it
// is lost to this process; RESOURCE_EXHAUSTED without memory, both marked (device_failure.h); INTERNAL otherwise.
inline absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // it is reported here; later calls start clean
  const std::string text = absl::StrCat(what, ": ", cudaGetErrorString(error), " (CUDA error ",
                                        static_cast<int>(error), ")");
  switch (error) {
    case cudaErrorMemoryAllocation: return DeviceFailure(absl::ResourceExhaustedError(text));
    // There is none that this program can use: the driver, or what was compiled.
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorInitializationError:
    case cudaErrorStartupFailure:
    case cudaErrorDeviceUninitialized:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    // It was there.
    case cudaErrorContextIsDestroyed:
    case cudaErrorECCUncorrectable:
#if CUDART_VERSION >= 13000
    case cudaErrorContained:
#endif
    case cudaErrorHardwareStackError:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    // It is there, and this process can do nothing with it any more.
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorUnknown: return DeviceFailure(absl::UnavailableError(text));
    default: return absl::InternalError(text);
  }
}

}  // namespace foreshard::kernels::cuda
