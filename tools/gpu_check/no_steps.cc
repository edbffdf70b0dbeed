// In place of steps.cc where there is no cuDNN to build layers with.
#include "tools/gpu_check/measure.h"

namespace foreshard::gpu_check {
namespace {

absl::Status WithoutLayers() {
  return absl::UnimplementedError("built without cudnn.h: there are no layers to measure");
}

}  // namespace

absl::Status BenchLayers(std::string_view, uint32_t) { return WithoutLayers(); }
absl::Status BenchModel(std::string_view, std::string_view, uint32_t) { return WithoutLayers(); }

}  // namespace foreshard::gpu_check
