// synthetic: a parameter vector of any length whose gradient costs little more
// than writing it, to load servers and networks. Options: elements.
//
//   loss of every example = 0.005 ||theta||^2
//   g = 0.01 theta + noise, noise uniform in [-0.001, 0.001)
//
// So training decays the vector towards a small ball around zero, whatever the
// order of pushes.
#include "worker/models/quadratic_model.h"

namespace foreshard {
namespace {

struct Synthetic {
  static constexpr char kName[] = "synthetic";
  static constexpr float kNoise = 0.001f;
  static constexpr float Curvature(uint64_t) { return 0.01f; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeSynthetic(const ModelOptions& options,
                                                     kernels::Device& device) {
  return QuadraticModel<Synthetic>::Make(options);
}

}  // namespace foreshard
