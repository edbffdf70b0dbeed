#include "worker/models/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/core/catalogue.h"
#include "common/core/random.h"
#include "tests/kernels/cpu/reference_network.h"
#include "worker/models/layered_model.h"
#include "worker/models/pytorch_weights.h"

namespace foreshard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RecordingGate : public ParameterGate {
 public:
  absl::Status WaitFor(uint64_t begin, uint64_t elements) override {
    asked.emplace_back(begin, elements);
    return fail_at == asked.size() ? absl::UnavailableError("shard 1 is gone") : absl::OkStatus();
  }
  std::vector<std::pair<uint64_t, uint64_t>> asked;
  size_t fail_at = 0;  // call that fails, counted from 1
};

ModelOptions TinyOptions(const std::string& name) {
  ModelOptions options{.name = name, .input = {8, 8, 1}, .classes = 4, .batch_size = 6};
  if (name == "mlp") options.widths = {7, 5};
  if (name == "cnn") {
    options.widths = {3, 5};
    options.dense_units = 6;
  }
  if (ReadsText(name)) {
    options.input = {8, 1, 1};
    options.text.targets = 2;
  }
  return options;
}

Batch MakeBatch(const ModelOptions& options, uint64_t examples, uint64_t seed = 1) {
  Batch batch{.examples = examples};
  for (uint64_t i = 0; i < examples * options.input.elements(); ++i) {
    batch.inputs.push_back(static_cast<float>(RandomNormal(seed, 1, i)));
  }
  for (uint64_t i = 0; i < examples; ++i) {
    batch.labels.push_back(static_cast<int32_t>(RandomBits(seed, 2, i) % options.classes));
  }
  return batch;
}

// One model with a vector in general position: every value moved from its first.
struct Fixture {
  explicit Fixture(const ModelOptions& model_options)
      : options(model_options), device(kernels::MakeDevice("cpu").value()) {
    model = MakeModel(options, *device).value();
    vector.resize(model->schema().elements());
    model->InitialValues(3, vector.data());
    for (size_t i = 0; i < vector.size(); ++i) {
      vector[i] += 0.1f * static_cast<float>(RandomUniform(3, 9, i));
    }
    gradient.assign(model->schema().trainable_elements(), std::numeric_limits<float>::quiet_NaN());
    statistics.assign(model->schema().statistic_elements(),
                      std::numeric_limits<float>::quiet_NaN());
  }

  StepResult Step(const Batch& batch, float weight = 1, bool accumulate = false) {
    RecordingGate gate;
    auto result = model->ForwardBackward(batch, vector.data(), gate, weight, accumulate,
                                         gradient.data(), statistics.data());
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : StepResult{};
  }

  ModelOptions options;
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<Model> model;
  std::vector<float> vector, gradient, statistics;
};

double Largest(const float* values, uint64_t n) {
  double largest = 0;
  for (uint64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(double{values[i]}));
  return largest;
}

TEST(RegistryTest, HasWhatTheCatalogueSays) {
  EXPECT_EQ(ModelNames(), std::vector<std::string_view>(Models().begin(), Models().end()));
  for (std::string_view name : ModelNames()) {
    ModelOptions options = TinyOptions(std::string(name));
    if (IsAnalytic(name)) options.elements = 100;
    auto device = kernels::MakeDevice("cpu").value();
    auto model = MakeModel(options, *device);
    ASSERT_TRUE(model.ok()) << model.status();
    bool image = false;
    for (size_t i = 0; i < (*model)->schema().tensors().size(); ++i) image |= (*model)->ImageColumns(i).has_value();
    EXPECT_EQ(image, DenseReadsImage(name)) << name;
  }
}

TEST(RegistryTest, RefusesByOption) {
  auto device = kernels::MakeDevice("cpu").value();
  auto refused = [&](const char* name, auto change, const char* part) {
    ModelOptions options = TinyOptions(name);
    if (IsAnalytic(options.name)) options.elements = 100;
    change(options);
    const absl::Status status = MakeModel(options, *device).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    EXPECT_THAT(std::string(status.message()), HasSubstr(options.name));
  };
  refused("cnn", [](ModelOptions& o) { o.name = "resnet"; }, "cnn, mlp, quadratic, synthetic");
  refused("cnn", [](ModelOptions& o) { o.batch_size = 0; }, "batch_size is 0");
  refused("cnn", [](ModelOptions& o) { o.classes = 1; }, "classes is 1");
  refused("cnn", [](ModelOptions& o) { o.input.width = 0; }, "input is 8 x 0 x 1");
  refused("cnn", [](ModelOptions& o) { o.widths = {8, 0}; }, "widths[1] is 0");
  refused("cnn", [](ModelOptions& o) { o.elements = 5; }, "elements is 5");
  refused("mlp", [](ModelOptions& o) { o.dense_units = 5; }, "dense_units is 5");
  refused("quadratic", [](ModelOptions& o) { o.elements = 15; }, "elements is 15");
  refused("synthetic", [](ModelOptions& o) { o.elements = 15; }, "elements is 15");
  refused("synthetic", [](ModelOptions& o) { o.widths = {1}; }, "widths");
  refused("synthetic", [](ModelOptions& o) { o.dense_units = 1; }, "dense_units");
}

TEST(SchemaTest, CnnNamesShapesAndDecay) {
  Fixture f(TinyOptions("cnn"));
  std::vector<std::string> names, decayed;
  for (const TensorSpec& tensor : f.model->schema().tensors()) {
    names.push_back(tensor.name);
    if (tensor.decayed) decayed.push_back(tensor.name);
  }
  EXPECT_THAT(names, ElementsAre("conv1.weight", "bn1.weight", "bn1.bias", "conv2.weight",
                                 "bn2.weight", "bn2.bias", "fc1.weight", "bn3.weight", "bn3.bias",
                                 "output.weight", "output.bias", "bn1.running_mean",
                                 "bn1.running_var", "bn2.running_mean", "bn2.running_var",
                                 "bn3.running_mean", "bn3.running_var"));
  EXPECT_THAT(decayed, ElementsAre("conv1.weight", "conv2.weight", "fc1.weight", "output.weight"));
  const auto& tensors = f.model->schema().tensors();
  EXPECT_THAT(tensors[3].shape, ElementsAre(5, 3, 3, 3));
  EXPECT_THAT(tensors[6].shape, ElementsAre(6, 2 * 2 * 5));
  EXPECT_THAT(tensors[9].shape, ElementsAre(4, 6));
}

std::vector<std::string> Names(const Model& model, size_t first, size_t count) {
  std::vector<std::string> names;
  for (size_t i = first; i < first + count; ++i) names.push_back(model.schema().tensors()[i].name);
  return names;
}

const TensorSpec& Tensor(const Model& model, const std::string& name) {
  for (const TensorSpec& tensor : model.schema().tensors()) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return model.schema().tensors()[0];
}

TEST(SchemaTest, Resnet20HasNoTensorsInItsShortcuts) {
  Fixture f({.name = "resnet20", .input = {32, 32, 3}, .classes = 10, .batch_size = 1});
  EXPECT_EQ(f.model->schema().trainable_elements(), 269722u);  // of the usual PyTorch one
  EXPECT_THAT(Names(*f.model, 0, 10),
              ElementsAre("conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight",
                          "layer1.0.bn1.weight", "layer1.0.bn1.bias", "layer1.0.conv2.weight",
                          "layer1.0.bn2.weight", "layer1.0.bn2.bias", "layer1.1.conv1.weight"));
  EXPECT_EQ(f.model->schema().tensors().size(), 3 + 9 * 6 + 2 + 2 * 19u);
  EXPECT_THAT(Tensor(*f.model, "layer2.0.conv1.weight").shape, ElementsAre(32, 3, 3, 16));
  EXPECT_THAT(Tensor(*f.model, "fc.weight").shape, ElementsAre(10, 64));
}

TEST(SchemaTest, Resnet18AndResnet50AreTorchvisions) {
  Fixture small({.name = "resnet18", .input = {32, 32, 3}, .classes = 10, .batch_size = 1});
  // torchvision's with 10 classes less what a 7 x 7 first convolution has beyond a 3 x 3 one.
  EXPECT_EQ(small.model->schema().trainable_elements(), 11181642u - 64 * 3 * (49 - 9));
  EXPECT_THAT(Tensor(*small.model, "layer2.0.downsample.0.weight").shape,
              ElementsAre(128, 1, 1, 64));
  EXPECT_THAT(Tensor(*small.model, "layer4.0.downsample.1.running_var").shape, ElementsAre(512));

  Fixture large({.name = "resnet50", .input = {224, 224, 3}, .classes = 1000, .batch_size = 1});
  EXPECT_EQ(large.model->schema().trainable_elements(), 25557032u);
  EXPECT_THAT(Tensor(*large.model, "conv1.weight").shape, ElementsAre(64, 7, 7, 3));
  EXPECT_THAT(Names(*large.model, 3, 12),
              ElementsAre("layer1.0.conv1.weight", "layer1.0.bn1.weight", "layer1.0.bn1.bias",
                          "layer1.0.conv2.weight", "layer1.0.bn2.weight", "layer1.0.bn2.bias",
                          "layer1.0.conv3.weight", "layer1.0.bn3.weight", "layer1.0.bn3.bias",
                          "layer1.0.downsample.0.weight", "layer1.0.downsample.1.weight",
                          "layer1.0.downsample.1.bias"));
  EXPECT_THAT(Tensor(*large.model, "layer4.2.conv3.weight").shape, ElementsAre(2048, 1, 1, 512));
}

TEST(SchemaTest, Wrn16By4) {
  Fixture f({.name = "wrn16_4", .input = {32, 32, 3}, .classes = 10, .batch_size = 1});
  EXPECT_EQ(f.model->schema().trainable_elements(), 2748890u);  // 2.7 million in the paper
  EXPECT_THAT(Names(*f.model, 0, 9),
              ElementsAre("conv1.weight", "layer1.0.bn1.weight", "layer1.0.bn1.bias",
                          "layer1.0.conv1.weight", "layer1.0.bn2.weight", "layer1.0.bn2.bias",
                          "layer1.0.conv2.weight", "layer1.0.downsample.0.weight",
                          "layer1.1.bn1.weight"));
  EXPECT_THAT(Tensor(*f.model, "bn1.weight").shape, ElementsAre(256));
}

TEST(SchemaTest, DefaultsKeepTheScalesOfOneBitCheap) {
  ModelOptions options{.name = "cnn", .input = {28, 28, 1}, .classes = 10, .batch_size = 2};
  Fixture cnn(options);
  EXPECT_GE(cnn.model->schema().trainable_elements(), 200000u);
  options.name = "mlp";
  Fixture mlp(options);
  EXPECT_THAT(mlp.model->schema().tensors()[0].shape, ElementsAre(256, 784));
  EXPECT_THAT(mlp.model->schema().tensors()[3].shape, ElementsAre(128, 256));
}

TEST(InitialValuesTest, FollowSeedAndNameOnly) {
  ModelOptions options{.name = "mlp", .input = {28, 28, 1}, .classes = 10, .batch_size = 2};
  Fixture f(options);
  const Schema& schema = f.model->schema();
  std::vector<float> a(schema.elements()), b(schema.elements());
  f.model->InitialValues(5, a.data());
  f.model->InitialValues(5, b.data());
  EXPECT_EQ(a, b);
  f.model->InitialValues(6, b.data());
  EXPECT_NE(a, b);

  // Another last layer leaves the tensors before it as they were.
  options.classes = 7;
  Fixture other(options);
  std::vector<float> c(other.model->schema().elements());
  other.model->InitialValues(5, c.data());
  EXPECT_EQ(other.model->schema().tensors()[3].name, "fc2.weight");
  for (uint64_t i = 0; i < schema.offset(4); ++i) ASSERT_EQ(a[i], c[i]);

  for (size_t t = 0; t < schema.tensors().size(); ++t) {
    const TensorSpec& tensor = schema.tensors()[t];
    const float* values = a.data() + schema.offset(t);
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < tensor.elements(); ++i) {
      sum += values[i];
      squares += double{values[i]} * values[i];
    }
    const double n = static_cast<double>(tensor.elements());
    if (tensor.decayed) {  // He: variance 2 / inputs
      EXPECT_NEAR(squares / n, 2.0 / tensor.shape[1], 0.2 / tensor.shape[1]) << tensor.name;
      EXPECT_NEAR(sum / n, 0, 4 * std::sqrt(2.0 / tensor.shape[1] / n)) << tensor.name;
    } else {
      const bool one = tensor.name.ends_with("running_var") ||
                       (tensor.name.starts_with("bn") && tensor.name.ends_with(".weight"));
      EXPECT_EQ(sum, one ? n : 0) << tensor.name;
      EXPECT_EQ(squares, one ? n : 0) << tensor.name;
    }
  }
}

TEST(InitialValuesTest, ResidualNetworksBeginAsTorchvisions) {
  Fixture f({.name = "resnet20", .input = {32, 32, 3}, .classes = 10, .batch_size = 1});
  const Schema& schema = f.model->schema();
  std::vector<float> values(schema.elements());
  f.model->InitialValues(5, values.data());
  for (size_t t = 0; t < schema.tensors().size(); ++t) {
    const TensorSpec& tensor = schema.tensors()[t];
    const double n = static_cast<double>(tensor.elements());
    double squares = 0, largest = 0;
    for (uint64_t i = 0; i < tensor.elements(); ++i) {
      const double value = values[schema.offset(t) + i];
      squares += value * value;
      largest = std::max(largest, std::abs(value));
    }
    if (tensor.name.starts_with("fc")) {  // uniform within 1 / sqrt(64)
      EXPECT_LE(largest, 0.125) << tensor.name;
      EXPECT_GT(largest, 0.06) << tensor.name;
    } else if (tensor.decayed) {  // variance 2 / (filters * 9), five deviations
      const double variance = 2.0 / (9.0 * tensor.shape[0]);
      EXPECT_NEAR(squares / n, variance, 5 * variance * std::sqrt(2 / n)) << tensor.name;
    } else {
      const bool one = tensor.name.ends_with("running_var") || tensor.name.ends_with(".weight");
      EXPECT_EQ(squares, one ? n : 0) << tensor.name;
    }
  }
}

class LayeredModelTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, LayeredModelTest, testing::Values("mlp", "cnn"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(LayeredModelTest, EveryTensorsGradientIsTheReferencesSlope) {
  Fixture f(TinyOptions(GetParam()));
  const kernels::NetworkSpec& spec = dynamic_cast<LayeredModel&>(*f.model).network_spec();
  for (uint64_t examples : {6, 5, 2}) {
    SCOPED_TRACE(examples);
    const Batch batch = MakeBatch(f.options, examples);
    const StepResult result = f.Step(batch);
    EXPECT_EQ(result.count, examples);
    const kernels::BatchView view{examples, batch.inputs.data(), batch.labels.data()};
    const std::vector<double> vector(f.vector.begin(), f.vector.end());
    const auto forward = kernels::ReferenceForward(spec, view, vector, true);
    EXPECT_NEAR(result.loss_sum, forward.loss, 1e-4 * (1 + forward.loss));
    EXPECT_EQ(result.correct, forward.correct);
    for (size_t i = 0; i < f.statistics.size(); ++i) {
      EXPECT_NEAR(f.statistics[i], forward.statistics[i],
                  1e-5 * (1 + std::abs(forward.statistics[i])));
    }
    const std::vector<double> want = kernels::ReferenceGradient(spec, view, vector);
    const Schema& schema = f.model->schema();
    for (size_t t = 0; t < schema.tensors().size(); ++t) {
      const TensorSpec& tensor = schema.tensors()[t];
      if (tensor.kind != TensorKind::kTrainable) continue;
      const float* got = f.gradient.data() + schema.offset(t);
      const double scale = std::max(Largest(got, tensor.elements()), 1e-3);
      for (uint64_t i = 0; i < tensor.elements(); ++i) {
        ASSERT_NEAR(got[i], want[schema.offset(t) + i], 1e-3 * scale) << tensor.name << " " << i;
      }
    }
  }
}

TEST_P(LayeredModelTest, GradientIsTheSlopeOfItsOwnLoss) {
  // Without the reference: along each tensor's gradient the model's own loss
  // rises by ||g||^2 a unit.
  Fixture f(TinyOptions(GetParam()));
  const Batch batch = MakeBatch(f.options, 6);
  f.Step(batch);
  const std::vector<float> gradient = f.gradient, start = f.vector;
  const Schema& schema = f.model->schema();
  for (size_t t = 0; t < schema.tensors().size(); ++t) {
    const TensorSpec& tensor = schema.tensors()[t];
    if (tensor.kind != TensorKind::kTrainable) continue;
    double squares = 0;
    for (uint64_t i = 0; i < tensor.elements(); ++i) {
      squares += std::pow(gradient[schema.offset(t) + i], 2);
    }
    ASSERT_GT(squares, 0) << tensor.name;
    // A step that moves the tensor by about 1e-3 in norm.
    const double step = 1e-3 / std::sqrt(squares);
    double loss[2];
    for (int side : {0, 1}) {
      f.vector = start;
      for (uint64_t i = 0; i < tensor.elements(); ++i) {
        const uint64_t at = schema.offset(t) + i;
        f.vector[at] += static_cast<float>((side == 0 ? -step : step) * gradient[at]);
      }
      loss[side] = f.Step(batch).loss_sum / 6;
    }
    EXPECT_NEAR((loss[1] - loss[0]) / (2 * step), squares, 0.03 * squares) << tensor.name;
  }
}

TEST_P(LayeredModelTest, PartsAddUpByWeight) {
  Fixture f(TinyOptions(GetParam()));
  const Batch a = MakeBatch(f.options, 3, 1), b = MakeBatch(f.options, 3, 2);
  f.Step(a);
  const auto gradient_a = f.gradient, statistics_a = f.statistics;
  f.Step(b);
  const auto gradient_b = f.gradient, statistics_b = f.statistics;
  f.Step(a, 0.5f, false);
  f.Step(b, 0.5f, true);
  const double scale = Largest(f.gradient.data(), f.gradient.size());
  for (size_t i = 0; i < f.gradient.size(); ++i) {
    ASSERT_NEAR(f.gradient[i], 0.5 * gradient_a[i] + 0.5 * gradient_b[i], 1e-5 * scale) << i;
  }
  for (size_t i = 0; i < f.statistics.size(); ++i) {
    ASSERT_NEAR(f.statistics[i], 0.5 * statistics_a[i] + 0.5 * statistics_b[i],
                1e-5 * (1 + std::abs(f.statistics[i])));
  }
}

TEST_P(LayeredModelTest, SameInputsGiveSameBits) {
  Fixture f(TinyOptions(GetParam())), again(TinyOptions(GetParam()));
  const Batch batch = MakeBatch(f.options, 6);
  EXPECT_EQ(f.Step(batch).loss_sum, again.Step(batch).loss_sum);
  EXPECT_EQ(f.gradient, again.gradient);
  EXPECT_EQ(f.statistics, again.statistics);
  again.Step(MakeBatch(f.options, 4));
  again.Step(batch);
  EXPECT_EQ(f.gradient, again.gradient);
}

TEST_P(LayeredModelTest, EvaluationUsesTheVectorsStatistics) {
  Fixture f(TinyOptions(GetParam()));
  const kernels::NetworkSpec& spec = dynamic_cast<LayeredModel&>(*f.model).network_spec();
  const Batch batch = MakeBatch(f.options, 5);
  const kernels::BatchView view{5, batch.inputs.data(), batch.labels.data()};
  auto result = f.model->Evaluate(batch, f.vector.data());
  ASSERT_TRUE(result.ok()) << result.status();
  const auto want = kernels::ReferenceForward(
      spec, view, std::vector<double>(f.vector.begin(), f.vector.end()), false);
  EXPECT_NEAR(result->loss_sum, want.loss, 1e-4 * (1 + want.loss));
  EXPECT_EQ(result->correct, want.correct);
  EXPECT_NE(result->loss_sum, f.Step(batch).loss_sum);

  // Recalibrated on this batch, evaluation nears training mode (the variance is
  // the unbiased one, so not exactly).
  std::vector<float> recalibrated = f.vector;
  const uint64_t trainable = f.model->schema().trainable_elements();
  ASSERT_TRUE(
      f.model->BatchStatistics(batch, f.vector.data(), recalibrated.data() + trainable).ok());
  const std::vector<float> alone(recalibrated.begin() + trainable, recalibrated.end());
  EXPECT_EQ(alone, f.statistics);
  auto near = f.model->Evaluate(batch, recalibrated.data());
  ASSERT_TRUE(near.ok());
  EXPECT_LT(std::abs(near->loss_sum - f.Step(batch).loss_sum), 0.3 * near->loss_sum);
}

TEST_P(LayeredModelTest, AsksTheGateForEveryTensorOnce) {
  Fixture f(TinyOptions(GetParam()));
  const Batch batch = MakeBatch(f.options, 6);
  RecordingGate gate;
  ASSERT_TRUE(f.model
                  ->ForwardBackward(batch, f.vector.data(), gate, 1, false, f.gradient.data(),
                                    f.statistics.data())
                  .ok());
  std::vector<std::pair<uint64_t, uint64_t>> want;
  const Schema& schema = f.model->schema();
  for (size_t t = 0; t < schema.tensors().size(); ++t) {
    if (schema.tensors()[t].kind == TensorKind::kTrainable) {
      want.emplace_back(schema.offset(t), schema.tensors()[t].elements());
    }
  }
  EXPECT_EQ(gate.asked, want);  // in the order of the forward pass

  RecordingGate failing;
  failing.fail_at = 4;
  EXPECT_EQ(f.model
                ->ForwardBackward(batch, f.vector.data(), failing, 1, false, f.gradient.data(),
                                  f.statistics.data())
                .status(),
            absl::UnavailableError("shard 1 is gone"));
}

TEST_P(LayeredModelTest, RefusesBatchesThatDoNotFit) {
  Fixture f(TinyOptions(GetParam()));
  auto code = [&](const Batch& batch) {
    RecordingGate gate;
    const absl::Status status =
        f.model
            ->ForwardBackward(batch, f.vector.data(), gate, 1, false, f.gradient.data(),
                              f.statistics.data())
            .status();
    EXPECT_EQ(f.model->Evaluate(batch, f.vector.data()).status(), status);
    return status.code();
  };
  EXPECT_EQ(code(MakeBatch(f.options, 0)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(MakeBatch(f.options, 7)), absl::StatusCode::kInvalidArgument);
  Batch batch = MakeBatch(f.options, 6);
  batch.inputs.pop_back();
  EXPECT_EQ(code(batch), absl::StatusCode::kInvalidArgument);
  batch = MakeBatch(f.options, 6);
  batch.labels.pop_back();
  EXPECT_EQ(code(batch), absl::StatusCode::kInvalidArgument);
  batch = MakeBatch(f.options, 6);
  batch.labels[5] = 4;
  EXPECT_EQ(code(batch), absl::StatusCode::kInvalidArgument);
}

TEST_P(LayeredModelTest, LearnsASmallSet) {
  Fixture f(TinyOptions(GetParam()));
  const Batch batch = MakeBatch(f.options, 6);
  const double before = f.Step(batch).loss_sum;
  for (int step = 0; step < 200; ++step) {
    f.Step(batch);
    for (size_t i = 0; i < f.gradient.size(); ++i) f.vector[i] -= 0.1f * f.gradient[i];
  }
  const StepResult after = f.Step(batch);
  EXPECT_LT(after.loss_sum, 0.5 * before);
  EXPECT_GE(after.correct, 5u);
}

// Too many numbers for differences: forward is compared with the reference, gradients with
// PyTorch's (tests/pytorch).
class ResidualModelTest : public testing::TestWithParam<const char*> {
 protected:
  static ModelOptions Options() {
    const bool deep = std::string(GetParam()) == "resnet50";  // halves an image five times
    const uint32_t side = deep ? 32 : 8;
    return {.name = GetParam(), .input = {side, side, 3}, .classes = 4,
            .batch_size = deep ? 2u : 6u};
  }
};
INSTANTIATE_TEST_SUITE_P(All, ResidualModelTest,
                         testing::Values("resnet18", "resnet20", "resnet50", "wrn16_4"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ResidualModelTest, ForwardIsTheReferences) {
  Fixture f(Options());
  const kernels::NetworkSpec& spec = dynamic_cast<LayeredModel&>(*f.model).network_spec();
  const uint64_t examples = f.options.batch_size;
  const Batch batch = MakeBatch(f.options, examples);
  const kernels::BatchView view{examples, batch.inputs.data(), batch.labels.data()};
  const std::vector<double> vector(f.vector.begin(), f.vector.end());

  const StepResult result = f.Step(batch);
  const auto training = kernels::ReferenceForward(spec, view, vector, true);
  EXPECT_NEAR(result.loss_sum, training.loss, 1e-3 * (1 + training.loss));
  for (size_t i = 0; i < f.statistics.size(); ++i) {
    ASSERT_NEAR(f.statistics[i], training.statistics[i],
                1e-4 * (1 + std::abs(training.statistics[i])))
        << i;
  }
  for (float value : f.gradient) ASSERT_TRUE(std::isfinite(value));

  // With other statistics than the batch's a deep network would overflow.
  std::copy(f.statistics.begin(), f.statistics.end(),
            f.vector.begin() + f.model->schema().trainable_elements());
  auto evaluated = f.model->Evaluate(batch, f.vector.data());
  ASSERT_TRUE(evaluated.ok()) << evaluated.status();
  const auto inference = kernels::ReferenceForward(
      spec, view, std::vector<double>(f.vector.begin(), f.vector.end()), false);
  EXPECT_NEAR(evaluated->loss_sum, inference.loss, 1e-3 * (1 + inference.loss));
  EXPECT_EQ(evaluated->correct, inference.correct);
}

TEST_P(ResidualModelTest, SameInputsGiveSameBits) {
  Fixture f(Options()), again(Options());
  const Batch batch = MakeBatch(f.options, f.options.batch_size);
  EXPECT_EQ(f.Step(batch).loss_sum, again.Step(batch).loss_sum);
  EXPECT_EQ(f.gradient, again.gradient);
  EXPECT_EQ(f.statistics, again.statistics);
  again.Step(MakeBatch(f.options, 1));
  again.Step(batch);
  EXPECT_EQ(f.gradient, again.gradient);
}

TEST_P(ResidualModelTest, AsksTheGateForEveryTensorOnce) {
  Fixture f(Options());
  RecordingGate gate;
  ASSERT_TRUE(f.model
                  ->ForwardBackward(MakeBatch(f.options, 2), f.vector.data(), gate, 1, false,
                                    f.gradient.data(), f.statistics.data())
                  .ok());
  std::vector<std::pair<uint64_t, uint64_t>> want;
  const Schema& schema = f.model->schema();
  for (size_t t = 0; t < schema.tensors().size(); ++t) {
    if (schema.tensors()[t].kind == TensorKind::kTrainable) {
      want.emplace_back(schema.offset(t), schema.tensors()[t].elements());
    }
  }
  EXPECT_EQ(gate.asked, want);  // in the order of the forward pass
}

TEST(ResidualModelsTest, RefuseWidths) {
  auto device = kernels::MakeDevice("cpu").value();
  for (const char* name : {"resnet18", "resnet20", "resnet50", "wrn16_4"}) {
    ModelOptions options = TinyOptions(name);
    options.widths = {3};
    EXPECT_THAT(std::string(MakeModel(options, *device).status().message()),
                HasSubstr("given by its name"));
    options.widths.clear();
    options.dense_units = 3;
    EXPECT_EQ(MakeModel(options, *device).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Resnet20Test, LearnsASmallSet) {
  Fixture f({.name = "resnet20", .input = {8, 8, 3}, .classes = 4, .batch_size = 6});
  f.model->InitialValues(3, f.vector.data());
  const Batch batch = MakeBatch(f.options, 6);
  const double before = f.Step(batch).loss_sum;
  for (int step = 0; step < 60; ++step) {
    f.Step(batch);
    for (size_t i = 0; i < f.gradient.size(); ++i) f.vector[i] -= 0.05f * f.gradient[i];
  }
  const StepResult after = f.Step(batch);
  EXPECT_LT(after.loss_sum, 0.2 * before);
  EXPECT_EQ(after.correct, 6u);
}

TEST(CnnTest, DeeperThanTheImageStopsPooling) {
  ModelOptions options{.name = "cnn", .input = {8, 8, 3}, .classes = 3, .widths = {2, 3, 4, 5},
                       .batch_size = 2};
  Fixture f(options);
  EXPECT_THAT(f.model->schema().tensors()[12].name, "fc1.weight");
  EXPECT_THAT(f.model->schema().tensors()[12].shape, ElementsAre(128, 2 * 2 * 5));
  EXPECT_GT(f.Step(MakeBatch(options, 2)).loss_sum, 0);
}

ModelOptions Synthetic(uint64_t elements) {
  return {.name = "synthetic", .classes = 10, .elements = elements, .batch_size = 8};
}

TEST(SyntheticTest, HasTheElementsAskedForAndAShortTensor) {
  for (uint64_t elements : {16, 100, 9001, 1000000}) {
    Fixture f(Synthetic(elements));
    EXPECT_EQ(f.model->schema().elements(), elements);
    EXPECT_EQ(f.model->schema().trainable_elements(), elements);
    EXPECT_GE(f.model->schema().tensors().size(), 3u);
    EXPECT_LE(f.model->schema().tensors()[1].elements(), 257u);
    EXPECT_GE(f.model->schema().tensors()[1].elements(), 1u);
  }
}

TEST(SyntheticTest, GradientIsThePullPlusSmallNoise) {
  Fixture f(Synthetic(9001));
  Batch batch{.examples = 8, .labels = {1, 2, 3, 4, 5, 6, 7, 8}};
  const StepResult result = f.Step(batch);
  double squares = 0, noise = 0;
  for (size_t i = 0; i < f.gradient.size(); ++i) {
    const double difference = f.gradient[i] - 0.01 * f.vector[i];
    ASSERT_LE(std::abs(difference), 0.001001) << i;
    noise += difference * difference;
    squares += double{f.vector[i]} * f.vector[i];
  }
  EXPECT_NEAR(result.loss_sum, 8 * 0.005 * squares, 1e-3 * result.loss_sum);
  EXPECT_EQ(result.correct, 0u);
  // Uniform on [-0.001, 0.001): variance 1e-6 / 3.
  EXPECT_NEAR(noise / 9001, 1e-6 / 3, 3e-8);

  const std::vector<float> first = f.gradient;
  f.Step(batch);
  EXPECT_EQ(f.gradient, first);
  f.Step(batch, 0.5f, true);
  for (size_t i = 0; i < first.size(); ++i) ASSERT_NEAR(f.gradient[i], 1.5f * first[i], 1e-8);
  batch.labels[0] = 9;
  f.Step(batch);
  EXPECT_NE(f.gradient, first);
  EXPECT_NEAR(f.model->Evaluate(batch, f.vector.data())->loss_sum, result.loss_sum, 1e-5);
}

TEST(QuadraticTest, CurvaturesReachFromOneToAThousandth) {
  Fixture f({.name = "quadratic", .classes = 10, .elements = 1024, .batch_size = 8});
  Batch batch{.examples = 8, .labels = {1, 2, 3, 4, 5, 6, 7, 8}};
  std::fill(f.vector.begin(), f.vector.end(), 1.0f);
  const StepResult result = f.Step(batch);
  double sum = 0;
  for (size_t j = 0; j < 1024; ++j) {
    const double curvature = std::pow(10, -3.0 * (j % 256) / 255);
    ASSERT_NEAR(f.gradient[j], curvature, 0.010001) << j;
    sum += curvature;
  }
  EXPECT_NEAR(result.loss_sum, 8 * 0.5 * sum, 1e-4 * sum);
  EXPECT_NEAR(f.model->Evaluate(batch, f.vector.data())->loss_sum, result.loss_sum, 1e-4);
}

TEST(SyntheticTest, GateAndBatches) {
  Fixture f(Synthetic(100));
  Batch batch{.examples = 1, .labels = {0}};
  RecordingGate gate;
  gate.fail_at = 2;
  EXPECT_EQ(f.model
                ->ForwardBackward(batch, f.vector.data(), gate, 1, false, f.gradient.data(),
                                  nullptr)
                .status(),
            absl::UnavailableError("shard 1 is gone"));
  EXPECT_TRUE(f.model->BatchStatistics(batch, f.vector.data(), nullptr).ok());
  batch.examples = 9;
  EXPECT_FALSE(f.model->Evaluate(batch, f.vector.data()).ok());
  batch.examples = 0;
  EXPECT_FALSE(f.model->Evaluate(batch, f.vector.data()).ok());
}

}  // namespace
}  // namespace foreshard
