#include <cuda_runtime.h>

#include "kernels/cuda/probe.h"

namespace foreshard::kernels {

namespace {
__global__ void Nothing() {}
}  // namespace

int CompiledFor() {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, Nothing) == cudaSuccess) return attributes.ptxVersion;
  cudaGetLastError();
  return 0;
}

std::string CudaVersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

CudaProbe ProbeCuda() {
  CudaProbe probe;
  if (cudaRuntimeGetVersion(&probe.runtime_version) != cudaSuccess) {
    probe.runtime_version = CUDART_VERSION;
  }
  if (cudaDriverGetVersion(&probe.driver_version) != cudaSuccess || probe.driver_version == 0) {
    probe.driver_version = 0;
    probe.error = "no NVIDIA driver is loaded";
    return probe;
  }
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    probe.error = "the NVIDIA driver (CUDA " + CudaVersionText(probe.driver_version) +
                  ") shows no GPU to this program (CUDA " + CudaVersionText(probe.runtime_version) +
                  "): " + cudaGetErrorString(status);
    cudaGetLastError();  // the failure is reported; later calls start clean
    return probe;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    status = cudaGetDeviceProperties(&properties, i);
    if (status != cudaSuccess) {
      probe.gpus.clear();
      probe.error = "GPU " + std::to_string(i) + " does not answer: " + cudaGetErrorString(status);
      cudaGetLastError();
      return probe;
    }
    probe.gpus.push_back({properties.name, properties.major, properties.minor,
                          static_cast<uint64_t>(properties.totalGlobalMem)});
  }
  if (count == 0) probe.error = "the NVIDIA driver is loaded, but there is no GPU";
  return probe;
}

}  // namespace foreshard::kernels
