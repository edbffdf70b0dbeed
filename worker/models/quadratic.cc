// quadratic: an analytic objective on which rules differ as on a network's hard
// directions, and whose stability can be computed. Options: elements.
//
//   loss of every example = 0.5 sum_j h_j theta_j^2,  h_j = 10^(-3 (j mod 256) / 255)
//   g_j = h_j theta_j + noise, noise uniform in [-0.01, 0.01)
//
// Curvatures reach from 1 down to 1/1000, in every piece of the vector alike. Plain
// asynchronous SGD with a constant delay tau is stable up to the learning rate
// 2 sin(pi / (4 tau + 2)).
#include <array>

#include "worker/models/quadratic_model.h"

namespace foreshard {
namespace {

struct Quadratic {
  static constexpr char kName[] = "quadratic";
  static constexpr float kNoise = 0.01f;
  static constexpr size_t kCurvatures = 256;
  static float Curvature(uint64_t position) { return table[position % kCurvatures]; }

  static const std::array<float, kCurvatures> table;
};

const std::array<float, Quadratic::kCurvatures> Quadratic::table = [] {
  std::array<float, kCurvatures> curvatures;
  for (size_t j = 0; j < kCurvatures; ++j) {
    curvatures[j] = static_cast<float>(
        std::pow(10.0, -3.0 * static_cast<double>(j) / (kCurvatures - 1)));
  }
  return curvatures;
}();

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeQuadratic(const ModelOptions& options,
                                                     kernels::Device& device) {
  return QuadraticModel<Quadratic>::Make(options);
}

}  // namespace foreshard
