// Training on one thread of the CPU: examples a second of whole steps of plain
// Nesterov momentum (forward, backward, update) on made-up 28 x 28 images. The
// limit is what the step's convolutions and matrix products alone would take at
// the rate of a large single-precision product of the same library; see
// kernels/README.md for what that leaves out.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "common/core/random.h"
#include "kernels/device.h"
#include "tools/bench/bench.h"
#include "worker/models/layered_model.h"

namespace foreshard::bench {
namespace {

constexpr uint32_t kBatch = 64;
constexpr uint64_t kSeed = 1;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Calls `step` until the time is over, at least three times; shortest call in
// seconds. The first call, which plans, is not counted.
template <typename Step>
double Shortest(double seconds, Step step) {
  step();
  double shortest = 1e30;
  const double begin = Seconds();
  for (int i = 0; i < 3 || Seconds() - begin < seconds; ++i) {
    const double before = Seconds();
    step();
    shortest = std::min(shortest, Seconds() - before);
  }
  return shortest;
}

std::vector<float> RandomFloats(uint64_t elements, uint64_t stream) {
  std::vector<float> values(elements);
  for (uint64_t i = 0; i < elements; ++i) {
    values[i] = static_cast<float>(RandomUniform(kSeed, stream, i) - 0.5);
  }
  return values;
}

// Floating-point operations a second of a square product.
double ProductRate(kernels::Device& device, const BenchOptions& options) {
  const uint64_t n = options.quick ? 384 : 768;
  const std::vector<float> a = RandomFloats(n * n, 1), b = RandomFloats(n * n, 2);
  std::vector<float> c(n * n);
  const double shortest = Shortest(options.seconds, [&] {
    const absl::Status status = device.MatrixMultiply(n, n, n, a.data(), b.data(), c.data());
    if (!status.ok()) std::fprintf(stderr, "bench train: %s\n", status.ToString().c_str());
  });
  return 2.0 * static_cast<double>(n * n * n) / shortest;
}

absl::StatusOr<BenchResult> BenchModel(const std::string& name, kernels::Device& device,
                                       double product_rate, const BenchOptions& options) {
  auto made = MakeModel({.name = name, .input = {28, 28, 1}, .classes = 10, .batch_size = kBatch},
                        device);
  if (!made.ok()) return made.status();
  Model& model = **made;
  Batch batch{.examples = kBatch, .inputs = RandomFloats(kBatch * 28 * 28, 3)};
  for (uint64_t i = 0; i < kBatch; ++i) {
    batch.labels.push_back(static_cast<int32_t>(RandomBits(kSeed, 4, i) % 10));
  }
  const uint64_t trainable = model.schema().trainable_elements();
  std::vector<float> vector(model.schema().elements()), gradient(trainable), momentum(trainable);
  std::vector<float> statistics(model.schema().statistic_elements());
  model.InitialValues(kSeed, vector.data());
  OpenGate gate;
  absl::Status status;
  constexpr float kRate = 0.01f, kMomentum = 0.9f;
  const double shortest = Shortest(options.seconds, [&] {
    auto result = model.ForwardBackward(batch, vector.data(), gate, 1, false, gradient.data(),
                                        statistics.data());
    if (!result.ok()) {
      status = result.status();
      return;
    }
    // The vector holds the look-ahead point theta - rate * momentum * v.
    for (uint64_t i = 0; i < trainable; ++i) {
      const float v = kMomentum * momentum[i] + gradient[i];
      vector[i] -= kRate * (gradient[i] + kMomentum * v);
      momentum[i] = v;
    }
  });
  if (!status.ok()) return status;
  const auto& spec = dynamic_cast<const LayeredModel&>(model).network_spec();
  BenchResult result;
  result.name = "train/" + name;
  result.value = kBatch / shortest;
  result.unit = "examples/s";
  result.limit = product_rate / static_cast<double>(kernels::TrainingFlops(spec));
  result.ratio = result.value / result.limit;
  return result;
}

}  // namespace

std::vector<BenchResult> BenchTrain(const BenchOptions& options) {
  std::vector<BenchResult> results;
  auto device = kernels::MakeDevice("cpu");
  if (!device.ok()) {
    std::fprintf(stderr, "bench train: %s\n", device.status().ToString().c_str());
    return results;
  }
  const double product_rate = ProductRate(**device, options);
  for (const char* name : {"mlp", "cnn"}) {
    auto result = BenchModel(name, **device, product_rate, options);
    if (result.ok()) {
      results.push_back(*result);
    } else {
      std::fprintf(stderr, "bench train: %s: %s\n", name, result.status().ToString().c_str());
    }
  }
  return results;
}

}  // namespace foreshard::bench
