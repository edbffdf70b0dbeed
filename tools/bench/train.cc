// Training on one thread of the CPU: whole steps of plain Nesterov momentum (forward,
// backward, update) on made-up images and text.
//
// train/MODEL: examples a second. The limit is what the step's convolutions and matrix
// products alone would take at the rate of a large single-precision product of the same
// library; see kernels/README.md for what that leaves out.
//
// train/MODEL/pytorch: milliseconds a step, beside those of PyTorch on the same model, batch
// and one thread. Both take turns, and the ratio is the median of the pairs'. For bert_tiny PyTorch
// wants a good BLAS (pytorch_steps.py), and says which it has.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/core/random.h"
#include "kernels/device.h"
#include "tools/bench/bench.h"
#include "tools/bench/measure.h"
#include "tools/bench/pytorch_peer.h"
#include "worker/data/random_text.h"
#include "worker/models/layered_model.h"

namespace foreshard::bench {
namespace {

constexpr uint64_t kSeed = 1;
constexpr uint32_t kClasses = 10, kVocabulary = 30522;
constexpr double kTurnSeconds = 0.2;  // of each side, at least a step
constexpr int kPairs = 11, kQuickPairs = 3;

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

struct Subject {
  const char* name;
  InputShape shape;
  uint32_t batch;
  bool beside_pytorch;
  uint32_t targets = 0;  // of a sequence of text
};

constexpr Subject kSubjects[] = {{"mlp", {28, 28, 1}, 64, false},
                                 {"cnn", {28, 28, 1}, 64, true},
                                 {"resnet20", {32, 32, 3}, 128, true},
                                 // 15 % of 126 words; dropout as everywhere 0.1.
                                 {"bert_tiny", {128, 1, 1}, 32, true, 19}};

// A model with what its steps need.
class Trainee {
 public:
  static absl::StatusOr<std::unique_ptr<Trainee>> Make(const Subject& subject,
                                                       kernels::Device& device) {
    const ModelOptions options{.name = subject.name,
                               .input = subject.shape,
                               .classes = subject.targets > 0 ? kVocabulary : kClasses,
                               .batch_size = subject.batch,
                               .text = {.targets = subject.targets}};
    auto made = MakeModel(options, device);
    if (!made.ok()) return made.status();
    return std::unique_ptr<Trainee>(new Trainee(options, *std::move(made)));
  }

  void Step() {
    auto result = model_->ForwardBackward(batch_, vector_.data(), gate_, 1, false,
                                          gradient_.data(), statistics_.data());
    if (!result.ok()) {
      status_ = result.status();
      return;
    }
    constexpr float kRate = 0.01f, kMomentum = 0.9f;
    // The vector holds the look-ahead point theta - rate * momentum * v.
    for (uint64_t i = 0; i < gradient_.size(); ++i) {
      const float v = kMomentum * momentum_[i] + gradient_[i];
      vector_[i] -= kRate * (gradient_[i] + kMomentum * v);
      momentum_[i] = v;
    }
  }

  double SecondsPerStep(uint32_t steps) {
    const double begin = Seconds();
    for (uint32_t i = 0; i < steps; ++i) Step();
    return (Seconds() - begin) / steps;
  }

  const absl::Status& status() const { return status_; }
  uint64_t flops() const {
    return kernels::TrainingFlops(dynamic_cast<const LayeredModel&>(*model_).network_spec());
  }

 private:
  Trainee(const ModelOptions& options, std::unique_ptr<Model> model)
      : model_(std::move(model)),
        vector_(model_->schema().elements()),
        gradient_(model_->schema().trainable_elements()),
        momentum_(gradient_.size()),
        statistics_(model_->schema().statistic_elements()) {
    if (options.text.targets > 0) {
      batch_ = RandomText(options, kSeed, /*full=*/true);
      for (uint64_t i = 0; i < batch_.examples; ++i) batch_.keys.push_back(RandomBits(kSeed, 5, i));
    } else {
      batch_.examples = options.batch_size;
      batch_.inputs = RandomFloats(options.batch_size * options.input.elements(), 3);
      for (uint64_t i = 0; i < batch_.examples; ++i) {
        batch_.labels.push_back(static_cast<int32_t>(RandomBits(kSeed, 4, i) % kClasses));
      }
    }
    model_->InitialValues(kSeed, vector_.data());
  }

  std::unique_ptr<Model> model_;
  Batch batch_;
  OpenGate gate_;
  std::vector<float> vector_, gradient_, momentum_, statistics_;
  absl::Status status_;
};

// Both sides in turn; who begins alternates.
absl::StatusOr<BenchResult> BesidePytorch(const Subject& subject, Trainee& ours, double step,
                                          const BenchOptions& options) {
  auto peer = PytorchPeer::Start(subject.name, subject.shape, subject.batch);
  if (!peer.ok()) return peer.status();
  const auto steps = static_cast<uint32_t>(std::max(1.0, kTurnSeconds / step));
  std::vector<double> our_seconds, their_seconds, ratios;
  for (int pair = 0; pair < (options.quick ? kQuickPairs : kPairs); ++pair) {
    if (pair % 2 == 0) our_seconds.push_back(ours.SecondsPerStep(steps));
    auto theirs = (*peer)->SecondsPerStep(steps);
    if (!theirs.ok()) return theirs.status();
    their_seconds.push_back(*theirs);
    if (pair % 2 == 1) our_seconds.push_back(ours.SecondsPerStep(steps));
    ratios.push_back(their_seconds.back() / our_seconds.back());
  }
  std::fprintf(stderr, "%s: beside %s\n", subject.name, (*peer)->description().c_str());
  return BenchResult{.name = absl::StrCat("train/", subject.name, "/pytorch"),
                     .value = 1e3 * Median(our_seconds),
                     .unit = "ms",
                     .limit = 1e3 * Median(their_seconds),
                     .ratio = Median(ratios)};
}

// Appends the subject's figures.
absl::Status BenchSubject(const Subject& subject, kernels::Device& device, double product_rate,
                          const BenchOptions& options, std::vector<BenchResult>* results) {
  auto made = Trainee::Make(subject, device);
  if (!made.ok()) return made.status();
  Trainee& trainee = **made;
  const double shortest = Shortest(options.seconds, [&] { trainee.Step(); });
  if (!trainee.status().ok()) return trainee.status();
  BenchResult result;
  result.name = absl::StrCat("train/", subject.name);
  result.value = subject.batch / shortest;
  result.unit = "examples/s";
  result.limit = product_rate / static_cast<double>(trainee.flops());
  result.ratio = result.value / result.limit;
  results->push_back(result);
  if (!subject.beside_pytorch) return absl::OkStatus();
  auto compared = BesidePytorch(subject, trainee, shortest, options);
  if (absl::IsUnavailable(compared.status())) {
    std::fprintf(stderr, "%s: not compared with PyTorch: %s\n", subject.name,
                 std::string(compared.status().message()).c_str());
    return absl::OkStatus();
  }
  if (!compared.ok()) return compared.status();
  results->push_back(*compared);
  return trainee.status();
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
  for (const Subject& subject : kSubjects) {
    const absl::Status status = BenchSubject(subject, **device, product_rate, options, &results);
    if (!status.ok()) {
      std::fprintf(stderr, "bench train: %s: %s\n", subject.name, status.ToString().c_str());
    }
  }
  return results;
}

}  // namespace foreshard::bench
