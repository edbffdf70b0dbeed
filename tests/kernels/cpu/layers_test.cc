// Layers of the CPU device, in small networks, against a plain fp64 reference
// and its central differences. Channel counts are odd on purpose: blocked
// layouts pad them.
#include "kernels/cpu/layers.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "common/core/random.h"
#include "tests/kernels/cpu/reference_network.h"

namespace foreshard::kernels {
namespace {

absl::Status Open(uint64_t, uint64_t) { return absl::OkStatus(); }

// A network description with tensors laid out one after another, and data.
struct Case {
  NetworkSpec spec;
  std::vector<float> vector;
  std::vector<float> inputs;
  std::vector<int32_t> labels;

  BatchView Batch(uint64_t examples, uint64_t first = 0) const {
    return {examples, inputs.data() + first * spec.input.elements(), labels.data() + first};
  }
  std::vector<double> Doubles() const { return {vector.begin(), vector.end()}; }
};

Case MakeCase(Shape input, std::vector<Layer> layers, uint32_t batch_size, uint64_t seed = 1) {
  Case c;
  c.spec = {.input = input, .layers = std::move(layers), .batch_size = batch_size};
  uint64_t trainable = 0, statistics = 0;
  auto take = [](uint64_t& total, uint64_t elements) {
    total += elements;
    return total - elements;
  };
  Shape shape = input;
  std::vector<Shape> shapes;
  for (Layer& layer : c.spec.layers) {
    const Shape out = OutputShape(layer, shape, shapes).value();
    if (auto* conv = std::get_if<Convolution>(&layer)) {
      const uint64_t filter = uint64_t{conv->kernel} * conv->kernel * shape.channels;
      conv->weight = take(trainable, conv->filters * filter);
      if (conv->bias != kNoTensor) conv->bias = take(trainable, conv->filters);
    } else if (auto* dense = std::get_if<Dense>(&layer)) {
      dense->weight = take(trainable, dense->units * shape.elements());
      if (dense->bias != kNoTensor) dense->bias = take(trainable, dense->units);
    } else if (auto* norm = std::get_if<BatchNorm>(&layer)) {
      norm->weight = take(trainable, shape.channels);
      norm->bias = take(trainable, shape.channels);
      norm->mean = take(statistics, shape.channels);
      norm->variance = take(statistics, shape.channels);
    }
    shape = out;
    shapes.push_back(out);
  }
  for (Layer& layer : c.spec.layers) {
    if (auto* norm = std::get_if<BatchNorm>(&layer)) {
      norm->mean += trainable;
      norm->variance += trainable;
    }
  }
  c.spec.trainable_elements = trainable;
  c.spec.elements = trainable + statistics;
  for (uint64_t i = 0; i < c.spec.elements; ++i) {
    // Statistics must be plausible variances; weights of any sign.
    c.vector.push_back(i < trainable ? 0.5f * static_cast<float>(RandomNormal(seed, 1, i))
                                     : 0.2f + static_cast<float>(RandomUniform(seed, 2, i)));
  }
  for (uint64_t i = 0; i < batch_size * input.elements(); ++i) {
    c.inputs.push_back(static_cast<float>(RandomNormal(seed, 3, i)));
  }
  for (uint32_t i = 0; i < batch_size; ++i) {
    c.labels.push_back(static_cast<int32_t>(RandomBits(seed, 4, i) % shape.channels));
  }
  return c;
}

struct Output {
  LossSum loss;
  std::vector<float> gradient, statistics;
};

Output Train(Network& network, const Case& c, const BatchView& batch, float weight = 1) {
  Output out;
  const float nan = std::numeric_limits<float>::quiet_NaN();  // all must be overwritten
  out.gradient.assign(c.spec.trainable_elements, nan);
  out.statistics.assign(c.spec.elements - c.spec.trainable_elements, nan);
  auto loss = network.Train(batch, c.vector.data(), Open,
                            {weight, false, out.gradient.data(), out.statistics.data()});
  EXPECT_TRUE(loss.ok()) << loss.status();
  if (loss.ok()) out.loss = *loss;
  return out;
}

template <typename A, typename B>
void ExpectNear(const A& got, const B& want, double tolerance, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 1e-3;
  for (double value : want) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * largest) << what << " element " << i;
  }
}

constexpr uint64_t kBias = 0;  // asks MakeCase for one

struct Shapes {
  const char* name;
  Shape input;
  std::vector<Layer> layers;
};

void PrintTo(const Shapes& shapes, std::ostream* out) { *out << shapes.name; }

class LayersTest : public testing::TestWithParam<Shapes> {};

TEST_P(LayersTest, AgreeWithReference) {
  const Case c = MakeCase(GetParam().input, GetParam().layers, 6);
  auto device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec).value();
  for (uint64_t examples : {6, 3, 1}) {
    SCOPED_TRACE(examples);
    const BatchView batch = c.Batch(examples);
    const ReferenceResult training = ReferenceForward(c.spec, batch, c.Doubles(), true);
    const Output out = Train(*network, c, batch);
    EXPECT_NEAR(out.loss.loss, training.loss, 1e-4 * (1 + training.loss));
    EXPECT_EQ(out.loss.correct, training.correct);
    ExpectNear(out.statistics, training.statistics, 1e-5, "statistics");
    // Batch norm over one value makes 0/sqrt(epsilon): its slopes are no test.
    if (examples > 1) {
      ExpectNear(out.gradient, ReferenceGradient(c.spec, batch, c.Doubles()), 2e-4, "gradient");
    }

    const ReferenceResult inference = ReferenceForward(c.spec, batch, c.Doubles(), false);
    auto evaluated = network->Evaluate(batch, c.vector.data());
    ASSERT_TRUE(evaluated.ok()) << evaluated.status();
    EXPECT_NEAR(evaluated->loss, inference.loss, 1e-4 * (1 + inference.loss));
    EXPECT_EQ(evaluated->correct, inference.correct);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, LayersTest,
    testing::Values(
        Shapes{"dense", {1, 1, 7}, {Dense{.units = 3, .bias = kBias}}},
        Shapes{"dense_of_image", {3, 4, 5}, {Dense{.units = 4}}},
        Shapes{"dense_relu",
               {1, 1, 9},
               {Dense{.units = 21, .bias = kBias}, Relu{}, Dense{.units = 5}}},
        Shapes{"convolution", {5, 6, 1}, {Convolution{.filters = 3}, Dense{.units = 3}}},
        Shapes{"convolution_bias_relu",
               {6, 5, 3},
               {Convolution{.filters = 17, .bias = kBias}, Relu{}, Dense{.units = 3}}},
        Shapes{"convolution_stride",
               {7, 7, 2},
               {Convolution{.filters = 4, .kernel = 5, .stride = 2, .padding = 2, .bias = kBias},
                Dense{.units = 3}}},
        Shapes{"convolution_1x1",
               {4, 4, 3},
               {Convolution{.filters = 5, .kernel = 1, .padding = 0}, Dense{.units = 3}}},
        Shapes{"two_convolutions",
               {5, 5, 2},
               {Convolution{.filters = 18, .bias = kBias}, Relu{},
                Convolution{.filters = 5, .bias = kBias}, Relu{}, Dense{.units = 3}}},
        Shapes{"batch_norm_first", {4, 4, 3}, {BatchNorm{}, Dense{.units = 3}}},
        Shapes{"batch_norm_relu",
               {4, 4, 2},
               {Convolution{.filters = 19}, BatchNorm{}, Relu{}, Dense{.units = 3}}},
        Shapes{"batch_norm_dense",
               {1, 1, 8},
               {Dense{.units = 13}, BatchNorm{}, Relu{}, Dense{.units = 3, .bias = kBias}}},
        Shapes{"pool", {6, 6, 2}, {Convolution{.filters = 3}, MaxPool{}, Dense{.units = 3}}},
        Shapes{"pool_overlapping",
               {7, 8, 3},
               {Convolution{.filters = 20}, MaxPool{.size = 3, .stride = 2}, Dense{.units = 3}}},
        Shapes{"pool_first", {5, 5, 3}, {MaxPool{}, Convolution{.filters = 3}, Dense{.units = 3}}},
        Shapes{"pool_relu",
               {6, 6, 1},
               {Convolution{.filters = 3}, MaxPool{}, Relu{}, Dense{.units = 3}}},
        Shapes{"relu_first", {1, 1, 6}, {Relu{}, Dense{.units = 3}}},
        Shapes{"relu_twice",
               {1, 1, 6},
               {Dense{.units = 7}, Relu{}, Relu{}, Dense{.units = 3, .bias = kBias}}},
        Shapes{"all",
               {8, 8, 1},
               {Convolution{.filters = 3}, MaxPool{}, BatchNorm{}, Relu{},
                Convolution{.filters = 17}, BatchNorm{}, Relu{}, MaxPool{}, Dense{.units = 6},
                BatchNorm{}, Relu{}, Dense{.units = 4, .bias = kBias}}}),
    [](const auto& info) { return info.param.name; });

// Convolutions of 16 and more filters have layouts of blocks; 16 channels in the middle of
// 32 begin and end inside of blocks.
INSTANTIATE_TEST_SUITE_P(
    Residual, LayersTest,
    testing::Values(
        Shapes{"pool_padded",
               {7, 6, 2},
               {Convolution{.filters = 3}, MaxPool{.size = 3, .stride = 2, .padding = 1},
                Dense{.units = 3}}},
        Shapes{"pool_padded_blocks",
               {8, 8, 1},
               {Convolution{.filters = 16}, MaxPool{.size = 3, .stride = 2, .padding = 1},
                Relu{}, Dense{.units = 3}}},
        Shapes{"stem",
               {14, 13, 3},
               {Convolution{.filters = 4, .kernel = 7, .stride = 2, .padding = 3}, BatchNorm{},
                Relu{}, MaxPool{.size = 3, .stride = 2, .padding = 1}, Dense{.units = 3}}},
        Shapes{"convolution_1x1_stride",
               {7, 6, 3},
               {Convolution{.filters = 16}, BatchNorm{}, Relu{},
                Convolution{.filters = 18, .kernel = 1, .stride = 2, .padding = 0},
                Dense{.units = 3}}},
        Shapes{"average",
               {5, 6, 2},
               {Convolution{.filters = 7, .bias = kBias}, Relu{}, GlobalAveragePool{},
                Dense{.units = 3, .bias = kBias}}},
        Shapes{"average_of_blocks",
               {4, 4, 1},
               {Convolution{.filters = 32}, BatchNorm{}, Relu{}, GlobalAveragePool{},
                Dense{.units = 3}}},
        Shapes{"average_first", {4, 5, 3}, {GlobalAveragePool{}, Dense{.units = 3}}},
        Shapes{"average_of_one",
               {1, 1, 5},
               {Dense{.units = 6}, GlobalAveragePool{}, Dense{.units = 3}}},
        Shapes{"subsample",
               {6, 5, 2},
               {Convolution{.filters = 3}, Subsample{.stride = 2, .channels = 8},
                Dense{.units = 3}}},
        Shapes{"subsample_blocks",
               {5, 6, 1},
               {Convolution{.filters = 16}, Subsample{.stride = 2, .channels = 32}, BatchNorm{},
                Dense{.units = 2}}},
        Shapes{"subsample_ends_of_blocks",
               {5, 5, 1},
               {Convolution{.filters = 19}, Subsample{.stride = 3, .channels = 45},
                Dense{.units = 3}}},
        Shapes{"subsample_first",
               {5, 4, 3},
               {Subsample{.stride = 2, .channels = 6}, Dense{.units = 3}}},
        Shapes{"subsample_nothing",
               {3, 3, 2},
               {Convolution{.filters = 4}, Subsample{.stride = 1, .channels = 4},
                Dense{.units = 3}}},
        Shapes{"identity",
               {4, 4, 2},
               {Convolution{.filters = 5}, BatchNorm{}, Relu{}, Convolution{.filters = 5},
                BatchNorm{}, Relu{}, Convolution{.filters = 5}, BatchNorm{}, AddFrom{2}, Relu{},
                GlobalAveragePool{}, Dense{.units = 3, .bias = kBias}}},
        Shapes{"projection",
               {5, 6, 2},
               {Convolution{.filters = 4}, BatchNorm{}, Relu{},
                Convolution{.filters = 6, .stride = 2}, BatchNorm{}, Relu{},
                Convolution{.filters = 6}, BatchNorm{}, From{2},
                Convolution{.filters = 6, .kernel = 1, .stride = 2, .padding = 0}, BatchNorm{},
                AddFrom{7}, Relu{}, GlobalAveragePool{}, Dense{.units = 3}}},
        Shapes{"padded_shortcut",
               {6, 6, 1},
               {Convolution{.filters = 16}, BatchNorm{}, Relu{},
                Convolution{.filters = 32, .kernel = 1, .stride = 2, .padding = 0}, BatchNorm{},
                From{2}, Subsample{.stride = 2, .channels = 32}, AddFrom{4}, Relu{},
                GlobalAveragePool{}, Dense{.units = 3}}},
        Shapes{"pre_activation",
               {5, 5, 2},
               {Convolution{.filters = 4}, BatchNorm{}, Relu{},
                Convolution{.filters = 6, .stride = 2}, BatchNorm{}, Relu{},
                Convolution{.filters = 6}, From{2},
                Convolution{.filters = 6, .kernel = 1, .stride = 2, .padding = 0}, AddFrom{6},
                BatchNorm{}, Relu{}, Convolution{.filters = 6}, AddFrom{9}, BatchNorm{}, Relu{},
                GlobalAveragePool{}, Dense{.units = 3}}},
        // Nothing is left of an image: most of a filter lies on padding.
        Shapes{"one_position_convolution",
               {2, 2, 3},
               {Convolution{.filters = 16, .stride = 2}, Convolution{.filters = 16},
                Dense{.units = 3}}},
        Shapes{"one_position_norm",
               {2, 2, 3},
               {Convolution{.filters = 16, .stride = 2}, BatchNorm{}, Dense{.units = 3}}},
        Shapes{"one_position_pointwise",
               {1, 1, 16},
               {Convolution{.filters = 16, .kernel = 1, .padding = 0}, BatchNorm{}, Relu{},
                Convolution{.filters = 16, .kernel = 1, .padding = 0}, Dense{.units = 3}}},
        Shapes{"one_position_block",
               {2, 2, 3},
               {Convolution{.filters = 16, .stride = 2}, BatchNorm{}, Relu{},
                Convolution{.filters = 16}, BatchNorm{}, AddFrom{2}, Relu{}, GlobalAveragePool{},
                Dense{.units = 3}}},
        // What a sum's parts have in common: their gradient, which one of them overwrites.
        Shapes{"sum_of_relus",
               {4, 4, 2},
               {Convolution{.filters = 5, .bias = kBias}, Relu{},
                Convolution{.filters = 5, .bias = kBias}, Relu{}, AddFrom{1}, Dense{.units = 3}}},
        Shapes{"sum_of_itself",
               {1, 1, 4},
               {Dense{.units = 5, .bias = kBias}, AddFrom{0}, Dense{.units = 3}}},
        Shapes{"sum_of_itself_relu",
               {1, 1, 4},
               {Dense{.units = 5, .bias = kBias}, Relu{}, AddFrom{1}, Relu{}, AddFrom{3},
                Dense{.units = 3}}},
        Shapes{"sum_of_dense_relu",
               {1, 1, 4},
               {Dense{.units = 21, .bias = kBias}, Dense{.units = 21}, AddFrom{0}, Relu{},
                Dense{.units = 3}}},
        Shapes{"before_and_after_relu",
               {4, 3, 2},
               {Convolution{.filters = 5, .bias = kBias}, Relu{}, Convolution{.filters = 5},
                AddFrom{0}, AddFrom{1}, Relu{}, Dense{.units = 3}}},
        Shapes{"three_branches",
               {4, 4, 2},
               {Convolution{.filters = 5, .bias = kBias}, Convolution{.filters = 5}, From{0},
                From{0}, Convolution{.filters = 5}, BatchNorm{}, Relu{}, From{0},
                Convolution{.filters = 5}, AddFrom{1}, AddFrom{6}, AddFrom{0}, Dense{.units = 3}}},
        Shapes{"sum_with_the_untrained",
               {4, 4, 3},
               {Relu{}, Convolution{.filters = 3}, AddFrom{0}, Relu{}, Dense{.units = 3}}},
        // Batch norm leaves its input's plain layout, a convolution prefers blocks.
        Shapes{"two_layouts",
               {4, 4, 16},
               {BatchNorm{}, Convolution{.filters = 16, .kernel = 1, .padding = 0}, AddFrom{0},
                Relu{}, GlobalAveragePool{}, Dense{.units = 2}}}),
    [](const auto& info) { return info.param.name; });

// Two blocks, one with each kind of shortcut.
Case BranchedNetwork(uint32_t batch_size = 6) {
  return MakeCase({6, 6, 2},
                  {Convolution{.filters = 16}, BatchNorm{}, Relu{}, Convolution{.filters = 16},
                   BatchNorm{}, AddFrom{2}, Relu{}, Convolution{.filters = 32, .stride = 2},
                   BatchNorm{}, Relu{}, Convolution{.filters = 32}, BatchNorm{}, From{6},
                   Subsample{.stride = 2, .channels = 32}, AddFrom{11}, Relu{},
                   GlobalAveragePool{}, Dense{.units = 4, .bias = kBias}},
                  batch_size);
}

Case SmallNetwork(uint32_t batch_size = 6) {
  return MakeCase({6, 6, 2},
                  {Convolution{.filters = 5}, MaxPool{}, BatchNorm{}, Relu{}, Dense{.units = 9},
                   BatchNorm{}, Relu{}, Dense{.units = 4, .bias = kBias}},
                  batch_size);
}

// Of a chain of layers and of branches.
class NetworksTest : public testing::TestWithParam<Case (*)(uint32_t)> {};
INSTANTIATE_TEST_SUITE_P(All, NetworksTest, testing::Values(SmallNetwork, BranchedNetwork),
                         [](const auto& info) { return info.index == 0 ? "Chain" : "Branches"; });

TEST_P(NetworksTest, SameInputsGiveSameBits) {
  const Case c = GetParam()(6);
  auto device = MakeDevice("cpu").value();
  auto other_device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec).value();
  auto other = other_device->MakeNetwork(c.spec).value();
  const Output first = Train(*network, c, c.Batch(6));
  ASSERT_TRUE(other->Evaluate(c.Batch(2), c.vector.data()).ok());  // other arena, other order
  for (int i = 0; i < 3; ++i) {
    Train(*network, c, c.Batch(4));
    for (Network* again : {network.get(), other.get()}) {
      const Output next = Train(*again, c, c.Batch(6));
      EXPECT_EQ(next.gradient, first.gradient);
      EXPECT_EQ(next.statistics, first.statistics);
      EXPECT_EQ(next.loss.loss, first.loss.loss);
    }
  }
}

TEST_P(NetworksTest, ManySizesInAnyOrder) {
  // More sizes than plans are kept, smallest first, so the arena grows often.
  const Case c = GetParam()(16);
  auto device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec).value();
  for (int round = 0; round < 2; ++round) {
    for (uint64_t examples = 1; examples <= 16; ++examples) {
      auto fresh = device->MakeNetwork(c.spec).value();
      const Output got = Train(*network, c, c.Batch(examples));
      EXPECT_EQ(got.gradient, Train(*fresh, c, c.Batch(examples)).gradient) << examples;
      EXPECT_EQ(network->Evaluate(c.Batch(examples), c.vector.data())->loss,
                fresh->Evaluate(c.Batch(examples), c.vector.data())->loss);
    }
  }
}

TEST_P(NetworksTest, StatisticsAloneAreThoseOfTraining) {
  const Case c = GetParam()(6);
  auto device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec).value();
  const Output trained = Train(*network, c, c.Batch(5));
  std::vector<float> statistics(trained.statistics.size());
  ASSERT_TRUE(network->Statistics(c.Batch(5), c.vector.data(), statistics.data()).ok());
  EXPECT_EQ(statistics, trained.statistics);
}

TEST(NetworkTest, OneValueHasNoVariance) {
  const Case c = MakeCase({1, 1, 3}, {BatchNorm{}, Dense{.units = 2}}, 1);
  auto device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec).value();
  const Output out = Train(*network, c, c.Batch(1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(out.statistics[i], c.inputs[i]);
    EXPECT_EQ(out.statistics[3 + i], 0);
  }
}

TEST_P(NetworksTest, WeightAndAccumulate) {
  const Case c = GetParam()(6);
  auto device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec).value();
  const Output one = Train(*network, c, c.Batch(3));
  const Output two = Train(*network, c, c.Batch(3, 3));
  Output sum = Train(*network, c, c.Batch(3), 0.25f);
  ASSERT_TRUE(network
                  ->Train(c.Batch(3, 3), c.vector.data(), Open,
                          {0.75f, true, sum.gradient.data(), sum.statistics.data()})
                  .ok());
  std::vector<double> gradient, statistics;
  for (size_t i = 0; i < one.gradient.size(); ++i) {
    gradient.push_back(0.25 * one.gradient[i] + 0.75 * two.gradient[i]);
  }
  for (size_t i = 0; i < one.statistics.size(); ++i) {
    statistics.push_back(0.25 * one.statistics[i] + 0.75 * two.statistics[i]);
  }
  ExpectNear(sum.gradient, gradient, 1e-5, "gradient");
  ExpectNear(sum.statistics, statistics, 1e-6, "statistics");
}

TEST(NetworkTest, MicroBatchesMakeTheBatchWithoutBatchNorm) {
  const Case c = MakeCase({6, 6, 2},
                          {Convolution{.filters = 5, .bias = kBias}, Relu{}, MaxPool{},
                           Dense{.units = 4, .bias = kBias}},
                          6);
  auto device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec).value();
  const Output whole = Train(*network, c, c.Batch(6));
  Output parts = Train(*network, c, c.Batch(2), 1.0f / 3);
  double loss = parts.loss.loss;
  for (uint64_t first : {2, 4}) {
    auto part = network->Train(c.Batch(2, first), c.vector.data(), Open,
                               {1.0f / 3, true, parts.gradient.data(), nullptr});
    ASSERT_TRUE(part.ok()) << part.status();
    loss += part->loss;
  }
  EXPECT_NEAR(loss, whole.loss.loss, 1e-5);
  ExpectNear(parts.gradient, whole.gradient, 1e-5, "gradient");
}

TEST_P(NetworksTest, ReadsNothingBeforeTheGateOpens) {
  const Case c = GetParam()(6);
  auto device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec).value();
  const Output want = Train(*network, c, c.Batch(6));

  // Each tensor holds NaN until it is asked for; statistics are never read.
  std::vector<float> vector(c.vector.size(), std::numeric_limits<float>::quiet_NaN());
  std::vector<int> asked(c.spec.elements, 0);
  auto gate = [&](uint64_t begin, uint64_t elements) {
    for (uint64_t i = begin; i < begin + elements; ++i) {
      ++asked[i];
      vector[i] = c.vector[i];
    }
    return absl::OkStatus();
  };
  Output got;
  got.gradient.resize(c.spec.trainable_elements);
  got.statistics.resize(want.statistics.size());
  ASSERT_TRUE(network
                  ->Train(c.Batch(6), vector.data(), gate,
                          {1, false, got.gradient.data(), got.statistics.data()})
                  .ok());
  EXPECT_EQ(got.gradient, want.gradient);
  EXPECT_EQ(got.statistics, want.statistics);
  for (uint64_t i = 0; i < c.spec.elements; ++i) {
    EXPECT_EQ(asked[i], i < c.spec.trainable_elements ? 1 : 0) << i;
  }
}

TEST_P(NetworksTest, AnErrorOfTheGateEndsTheStep) {
  const Case c = GetParam()(6);
  auto device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec).value();
  const Output before = Train(*network, c, c.Batch(6));
  Output out = before;
  int calls = 0;
  auto gate = [&](uint64_t, uint64_t) {
    return ++calls == 3 ? absl::AbortedError("fenced") : absl::OkStatus();
  };
  auto loss = network->Train(c.Batch(6), c.vector.data(), gate,
                             {1, false, out.gradient.data(), out.statistics.data()});
  EXPECT_EQ(loss.status(), absl::AbortedError("fenced"));
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(Train(*network, c, c.Batch(6)).gradient, before.gradient);  // and harms no later one
}

TEST(NetworkTest, RunsFromAnyThread) {
  const Case c = SmallNetwork();
  auto device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec).value();
  const Output here = Train(*network, c, c.Batch(6));
  Output there;
  std::thread([&] { there = Train(*network, c, c.Batch(6)); }).join();
  EXPECT_EQ(here.gradient, there.gradient);
}

TEST_P(NetworksTest, TwoThreadsComputeTheSame) {
  const Case c = GetParam()(6);
  auto device = MakeDevice("cpu", {.threads = 2}).value();
  auto network = device->MakeNetwork(c.spec).value();
  auto single = MakeDevice("cpu").value();
  auto single_network = single->MakeNetwork(c.spec).value();
  ExpectNear(Train(*network, c, c.Batch(6)).gradient,
             Train(*single_network, c, c.Batch(6)).gradient, 1e-5, "gradient");
}

TEST(NetworkTest, RefusesBatchesThatDoNotFit) {
  Case c = SmallNetwork();
  auto device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec).value();
  std::vector<float> gradient(c.spec.trainable_elements), statistics(c.spec.elements);
  auto code = [&](const BatchView& batch) {
    return network
        ->Train(batch, c.vector.data(), Open, {1, false, gradient.data(), statistics.data()})
        .status();
  };
  EXPECT_EQ(code(c.Batch(0)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(c.Batch(7)).code(), absl::StatusCode::kInvalidArgument);
  for (int32_t label : {-1, 4}) {
    c.labels[2] = label;
    const absl::Status status = code(c.Batch(6));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("example 2"), absl::string_view::npos) << status;
    EXPECT_FALSE(network->Evaluate(c.Batch(6), c.vector.data()).ok());
    // Statistics need no labels.
    EXPECT_TRUE(network->Statistics(c.Batch(6), c.vector.data(), statistics.data()).ok());
  }
}

}  // namespace
}  // namespace foreshard::kernels
