// What the CUDA driver finds on this machine. Plain C++: host code may include
// it where the build has CUDA (FORESHARD_WITH_CUDA).
//
//   CudaProbe probe = ProbeCuda();
//   if (probe.gpus.empty()) return UnavailableError(probe.error);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace foreshard::kernels {

struct CudaGpu {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  uint64_t memory_bytes = 0;
};

struct CudaProbe {
  int driver_version = 0;   // as 13000 for 13.0; 0: no driver
  int runtime_version = 0;  // that this program was built with
  std::vector<CudaGpu> gpus;
  std::string error;  // why there are no GPUs; empty when there are some
};

// Never fails, creates no context, changes no setting. Thread-safe.
CudaProbe ProbeCuda();

// "13.0" from 13000.
std::string CudaVersionText(int version);

}  // namespace foreshard::kernels
