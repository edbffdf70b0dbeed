// gpu_bench kernels | layers PRECISION BATCH | model NAME PRECISION BATCH: what tools/gpu-check
// measures of ours, as lines of JSON. Exit status: 0, 1 failed, 2 arguments, 3 no GPU or not enough
// of its memory.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "kernels/device_failure.h"
#include "tools/gpu_check/measure.h"

int main(int argc, char** argv) {
  using namespace foreshard;  // one program, one namespace
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  uint32_t batch = 0;
  const bool sized = arguments.size() > 1 && absl::SimpleAtoi(arguments.back(), &batch) && batch > 0;
  absl::Status status;
  if (arguments.size() == 1 && arguments[0] == "kernels") {
    status = gpu_check::BenchKernels();
  } else if (arguments.size() == 3 && arguments[0] == "layers" && sized) {
    status = gpu_check::BenchLayers(arguments[1], batch);
  } else if (arguments.size() == 4 && arguments[0] == "model" && sized) {
    status = gpu_check::BenchModel(arguments[1], arguments[2], batch);
  } else {
    std::fprintf(stderr, "gpu_bench: kernels, layers PRECISION BATCH, or model NAME PRECISION BATCH\n");
    return 2;
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "gpu_bench: %s\n", std::string(status.message()).c_str());
  if (kernels::IsDeviceFailure(status)) return 3;
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}
