// A small model whose every value can be followed: linear regression on the
// inputs with squared loss, whose statistics are the inputs' means.
#pragma once

#include <vector>

#include "worker/data/dataset.h"
#include "worker/models/model.h"

namespace foreshard {

// loss of an example = (w . x - label)^2 / 2; a hit is |w . x - label| < 1/2.
class RegressionModel : public Model {
 public:
  explicit RegressionModel(uint32_t inputs)
      : inputs_(inputs),
        schema_(Schema::Create({{"w", {inputs}, TensorKind::kTrainable, true},
                                {"mean", {inputs}, TensorKind::kStatistic, false}})
                    .value()) {}

  const Schema& schema() const override { return schema_; }
  void InitialValues(uint64_t seed, float* vector) const override {
    for (uint64_t k = 0; k < schema_.elements(); ++k) {
      vector[k] = k < inputs_ ? 0.1f * static_cast<float>(1 + (k + seed) % 3) : 0;
    }
  }
  absl::StatusOr<StepResult> ForwardBackward(const Batch& batch, const float* vector,
                                             ParameterGate& gate, float weight, bool accumulate,
                                             float* gradient, float* statistics) override {
    if (const absl::Status open = gate.WaitFor(0, inputs_); !open.ok()) return open;
    if (!accumulate) {
      std::fill(gradient, gradient + inputs_, 0.0f);
      std::fill(statistics, statistics + inputs_, 0.0f);
    }
    StepResult result{.count = batch.examples};
    const float share = weight / static_cast<float>(batch.examples);
    for (uint64_t e = 0; e < batch.examples; ++e) {
      const float* x = batch.inputs.data() + e * inputs_;
      const float difference = Output(x, vector) - static_cast<float>(batch.labels[e]);
      result.loss_sum += 0.5 * difference * difference;
      result.correct += difference > -0.5f && difference < 0.5f;
      for (uint32_t k = 0; k < inputs_; ++k) {
        gradient[k] += share * difference * x[k];
        statistics[k] += share * x[k];
      }
    }
    largest_batch_ = std::max(largest_batch_, batch.examples);
    return result;
  }
  absl::Status BatchStatistics(const Batch& batch, const float*, float* statistics) override {
    std::fill(statistics, statistics + inputs_, 0.0f);
    for (uint64_t e = 0; e < batch.examples; ++e) {
      for (uint32_t k = 0; k < inputs_; ++k) {
        statistics[k] +=
            batch.inputs[e * inputs_ + k] / static_cast<float>(batch.examples);
      }
    }
    return absl::OkStatus();
  }
  absl::StatusOr<StepResult> Evaluate(const Batch& batch, const float* vector) override {
    StepResult result{.count = batch.examples};
    for (uint64_t e = 0; e < batch.examples; ++e) {
      const float difference =
          Output(batch.inputs.data() + e * inputs_, vector) - static_cast<float>(batch.labels[e]);
      result.loss_sum += 0.5 * difference * difference;
      result.correct += difference > -0.5f && difference < 0.5f;
    }
    return result;
  }
  uint64_t largest_batch() const { return largest_batch_; }

 private:
  float Output(const float* x, const float* vector) const {
    float sum = 0;
    for (uint32_t k = 0; k < inputs_; ++k) sum += x[k] * vector[k];
    return sum;
  }

  const uint32_t inputs_;
  const Schema schema_;
  uint64_t largest_batch_ = 0;
};

// Example e is (e mod 7, e mod 5, ...) / 8, its label the sum of them, rounded.
class RampDataset : public Dataset {
 public:
  RampDataset(uint64_t examples, uint32_t inputs) : examples_(examples), inputs_(inputs) {}
  uint64_t examples() const override { return examples_; }
  InputShape shape() const override { return {1, 1, inputs_}; }
  uint32_t classes() const override { return 8; }
  absl::Status Gather(absl::Span<const uint32_t> indices, uint64_t, Batch* batch) const override {
    batch->examples = indices.size();
    batch->inputs.clear();
    batch->labels.clear();
    for (const uint32_t e : indices) {
      float sum = 0;
      for (uint32_t k = 0; k < inputs_; ++k) {
        const float x = static_cast<float>(e % (7 - 2 * (k % 3))) / 8;
        batch->inputs.push_back(x);
        sum += x;
      }
      batch->labels.push_back(static_cast<int32_t>(sum));
    }
    return absl::OkStatus();
  }

 private:
  uint64_t examples_;
  uint32_t inputs_;
};

}  // namespace foreshard
