// What the CUDA driver finds on this machine. Plain C++: host code may include
// it where the build has CUDA (FORESHARD_WITH_CUDA).
//
//   CudaProbe probe = ProbeCuda();
//   if (probe.gpus.empty()) return UnavailableError(probe.error);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

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

// Whether there is a GPU of this number, 0 or more: UNAVAILABLE where there is none at all,
// INVALID_ARGUMENT beyond those that are there.
inline absl::Status CheckGpu(const CudaProbe& probe, int number) {
  const size_t gpus = probe.gpus.size();
  if (gpus == 0) return absl::UnavailableError(probe.error);
  if (static_cast<size_t>(number) < gpus) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("there is no cuda:", number, ", the driver shows ", gpus, " GPU",
                                                 gpus == 1 ? "" : "s", " (counted from 0)"));
}

// 75 where this thread's device runs code that was compiled for compute capability 7.5, from its intermediate
// form too; 0: unknown.
int CompiledFor();

// "13.0" from 13000.
std::string CudaVersionText(int version);

}  // namespace foreshard::kernels
