// Which device a word means. In a file of its own, so that what brings its own device needs none of
// the others' libraries.
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"
#include "kernels/device_failure.h"
#ifdef FORESHARD_WITH_CUDA
#include "kernels/cuda/probe.h"
#endif
#ifdef FORESHARD_WITH_CUDNN
#include "kernels/cuda/libraries/cuda_device.h"
#endif

namespace foreshard::kernels {
namespace {

// The GPU, or in words why it cannot be used.
absl::StatusOr<std::unique_ptr<Device>> TryGpu(int number, const DeviceOptions& options) {
#ifdef FORESHARD_WITH_CUDA
  const CudaProbe probe = ProbeCuda();
  if (const absl::Status there = CheckGpu(probe, number); !there.ok()) return there;
#ifdef FORESHARD_WITH_CUDNN
  return cuda::MakeCudaDevice(number, options, "");
#else
  const CudaGpu& gpu = probe.gpus[number];
  return absl::UnavailableError(absl::StrCat(
      "found ", gpu.name, " (compute capability ", gpu.major, ".", gpu.minor, ", ",
      gpu.memory_bytes >> 20, " MiB, driver CUDA ", CudaVersionText(probe.driver_version),
      ", built with CUDA ", CudaVersionText(probe.runtime_version),
      "), but this program was built without cuDNN, and computes layers on the CPU only"));
#endif
#else
  static_cast<void>(number);
  static_cast<void>(options);
  return absl::UnavailableError(
      "this program was built without CUDA (configure with -DFORESHARD_CUDA=ON)");
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeDevice(std::string_view spec,
                                                   const DeviceOptions& options) {
  if (options.threads == 0) {
    return absl::InvalidArgumentError("device: threads is 0; say how many, 1 is usual");
  }
  if (spec == "cpu") return cpu::MakeCpuDevice(options, "");
  if (spec == "auto") {
    auto gpu = TryGpu(0, options);
    if (gpu.ok()) return gpu;
    return cpu::MakeCpuDevice(options, absl::StrCat("no GPU used: ", gpu.status().message()));
  }
  int number = 0;
  const std::string asked(spec);
  absl::string_view rest = asked;
  if (!absl::ConsumePrefix(&rest, "cuda") ||
      !(rest.empty() ||
        (absl::ConsumePrefix(&rest, ":") && absl::SimpleAtoi(rest, &number) && number >= 0))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "device '", asked, "' is not known: use auto, cpu, cuda or cuda:n (n counts from 0)"));
  }
  auto gpu = TryGpu(number, options);
  if (gpu.ok()) return gpu;
  return DeviceFailure(absl::Status(
      gpu.status().code(), absl::StrCat("device '", asked, "' cannot be used: ",
                                        gpu.status().message(), "; use --device=cpu or auto")));
}

}  // namespace foreshard::kernels
