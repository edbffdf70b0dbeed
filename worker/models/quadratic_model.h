// Noisy quadratics: objectives whose gradient costs little more than writing it, on a
// vector of any length (internal to worker/models).
//
//   loss of every example = 0.5 sum_j h_j theta_j^2
//   g_j = h_j theta_j + noise, uniform in [-Objective::kNoise, Objective::kNoise), a hash
//   of the element's position and of the batch's labels
//
// Objective gives kName, kNoise and Curvature(j), h of an element by its position. There
// are no statistics and no hits.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/core/bytes.h"
#include "common/core/random.h"
#include "worker/models/models.h"

namespace foreshard {

template <typename Objective>
class QuadraticModel : public Model {
 public:
  QuadraticModel(Schema schema, uint32_t batch_size)
      : schema_(std::move(schema)), batch_size_(batch_size) {}

  // INVALID_ARGUMENT naming the option.
  static absl::StatusOr<std::unique_ptr<Model>> Make(const ModelOptions& options) {
    const std::string name = absl::StrCat("model ", Objective::kName);
    if (options.elements < kMinElements) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": elements is ", options.elements, "; it must be at least ", kMinElements));
    }
    if (!options.widths.empty() || options.dense_units != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": it has no widths and no dense_units, only elements"));
    }
    const auto elements = static_cast<int64_t>(options.elements);
    const int64_t first = elements / 2;
    const int64_t bias = std::min<int64_t>(kBiasElements, elements / 16);
    auto schema = Schema::Create({
        {"layer1.weight", {first}, TensorKind::kTrainable, true},
        {"layer1.bias", {bias}, TensorKind::kTrainable, false},
        {"layer2.weight", {elements - first - bias}, TensorKind::kTrainable, true},
    });
    if (!schema.ok()) return schema.status();
    return std::make_unique<QuadraticModel>(*std::move(schema), options.batch_size);
  }

  const Schema& schema() const override { return schema_; }

  void InitialValues(uint64_t seed, float* vector) const override {
    for (size_t i = 0; i < schema_.tensors().size(); ++i) {
      const std::string& name = schema_.tensors()[i].name;
      const uint64_t stream = Checksum(AsBytes(name));
      float* values = vector + schema_.offset(i);
      for (uint64_t j = 0; j < schema_.tensors()[i].elements(); ++j) {
        values[j] = static_cast<float>(RandomUniform(seed, stream, j) - 0.5);
      }
    }
  }

  absl::StatusOr<StepResult> ForwardBackward(const Batch& batch, const float* vector,
                                             ParameterGate& gate, float weight, bool accumulate,
                                             float* gradient, float* statistics) override {
    if (auto s = CheckBatch(batch); !s.ok()) return s;
    const auto key = static_cast<uint32_t>(
        Checksum(ByteSpan(reinterpret_cast<const uint8_t*>(batch.labels.data()),
                          batch.labels.size() * sizeof(int32_t))));
    double twice = 0;
    for (size_t i = 0; i < schema_.tensors().size(); ++i) {
      const uint64_t begin = schema_.offset(i), elements = schema_.tensors()[i].elements();
      if (auto s = gate.WaitFor(begin, elements); !s.ok()) return s;
      for (uint64_t at = begin; at < begin + elements; at += kRun) {
        const uint64_t run = std::min(kRun, begin + elements - at);
        twice += WeightedSquares(vector, at, run);
        float* out = gradient + at;
        for (uint64_t j = 0; j < run; ++j) {
          const float g = weight * (Objective::Curvature(at + j) * vector[at + j] +
                                    Noise(key, static_cast<uint32_t>(at + j)));
          out[j] = accumulate ? out[j] + g : g;
        }
      }
    }
    return Result(batch, twice);
  }

  absl::Status BatchStatistics(const Batch& batch, const float* vector,
                               float* statistics) override {
    return CheckBatch(batch);
  }

  absl::StatusOr<StepResult> Evaluate(const Batch& batch, const float* vector) override {
    if (auto s = CheckBatch(batch); !s.ok()) return s;
    double twice = 0;
    for (uint64_t at = 0; at < schema_.elements(); at += kRun) {
      twice += WeightedSquares(vector, at, std::min(kRun, schema_.elements() - at));
    }
    return Result(batch, twice);
  }

 private:
  static constexpr uint64_t kMinElements = 16;
  static constexpr uint64_t kBiasElements = 257;  // at most: a short tensor of odd length
  static constexpr uint64_t kRun = 4096;          // elements whose squares are summed in fp32

  // Two rounds of a 32-bit multiply-xorshift hash: enough to look like noise, and
  // the compiler makes vector code of it.
  static float Noise(uint32_t key, uint32_t position) {
    uint32_t x = (position ^ key) * 0x9E3779B9u;
    x ^= x >> 16;
    x *= 0x85EBCA6Bu;
    x ^= x >> 13;
    return static_cast<float>(static_cast<int32_t>(x)) * (Objective::kNoise / 2147483648.0f);
  }

  // Of elements [at, at + n).
  static double WeightedSquares(const float* vector, uint64_t at, uint64_t n) {
    float lanes[16] = {};
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
      for (int l = 0; l < 16; ++l) {
        const float value = vector[at + i + l];
        lanes[l] += Objective::Curvature(at + i + l) * value * value;
      }
    }
    double sum = 0;
    for (; i < n; ++i) {
      sum += double{Objective::Curvature(at + i)} * vector[at + i] * vector[at + i];
    }
    for (float lane : lanes) sum += lane;
    return sum;
  }

  absl::Status CheckBatch(const Batch& batch) const {
    if (batch.examples > 0 && batch.examples <= batch_size_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("model ", Objective::kName, ": a batch of ",
                                                   batch.examples,
                                                   " examples does not fit; it was made for 1 to ",
                                                   batch_size_));
  }

  static StepResult Result(const Batch& batch, double twice) {
    return {0.5 * twice * static_cast<double>(batch.examples), 0, batch.examples};
  }

  const Schema schema_;
  const uint32_t batch_size_;
};

}  // namespace foreshard
