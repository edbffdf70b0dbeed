// Networks on the GPU: in the emulation above plain loops (plain_library.h), on a GPU above cuDNN
// and cuBLASLt, in fp32; both against the plain fp64 reference and its central differences.
#include "kernels/cuda/network.h"

#include <algorithm>
#include <cmath>

#include "common/core/random.h"
#include "kernels/device_failure.h"
#include "tests/kernels/cpu/reference_network.h"
#include "tests/kernels/cuda/network_machine.h"

namespace foreshard::kernels::cuda {
namespace {

constexpr uint64_t kSeed = 7;
constexpr uint32_t kBatch = 5;

absl::Status Open(uint64_t, uint64_t) { return absl::OkStatus(); }

// A description whose tensors follow each other, `gap` elements apart, and data.
struct Case {
  NetworkSpec spec;
  std::vector<float> vector, inputs;
  std::vector<int32_t> labels;

  BatchView Batch(uint64_t examples = kBatch) const {
    return {examples, inputs.data(), labels.data()};
  }
  std::vector<double> Doubles() const { return {vector.begin(), vector.end()}; }
};

Case MakeCase(const Shape& input, std::vector<Layer> layers, uint64_t gap = 0) {
  Case c;
  c.spec = {.input = input, .layers = std::move(layers), .batch_size = kBatch};
  uint64_t trainable = 0, statistics = 0;
  const auto take = [gap](uint64_t* total, uint64_t elements) {
    const uint64_t begin = *total + gap;
    *total = begin + elements;
    return begin;
  };
  Shape shape = input;
  std::vector<Shape> shapes;
  for (Layer& layer : c.spec.layers) {
    const Shape out = OutputShape(layer, shape, shapes).value();
    if (auto* conv = std::get_if<Convolution>(&layer)) {
      conv->weight =
          take(&trainable, uint64_t{conv->filters} * conv->kernel * conv->kernel * shape.channels);
      if (conv->bias != kNoTensor) conv->bias = take(&trainable, conv->filters);
    } else if (auto* dense = std::get_if<Dense>(&layer)) {
      dense->weight = take(&trainable, dense->units * shape.elements());
      if (dense->bias != kNoTensor) dense->bias = take(&trainable, dense->units);
    } else if (auto* norm = std::get_if<BatchNorm>(&layer)) {
      norm->weight = take(&trainable, shape.channels);
      norm->bias = take(&trainable, shape.channels);
      norm->mean = take(&statistics, shape.channels);
      norm->variance = take(&statistics, shape.channels);
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
    c.vector.push_back(static_cast<float>(0.3 * RandomNormal(kSeed, 1, i)));
    if (i >= trainable) c.vector.back() = 0.5f + std::abs(c.vector.back());
  }
  for (uint64_t i = 0; i < kBatch * input.elements(); ++i) {
    c.inputs.push_back(static_cast<float>(RandomNormal(kSeed, 2, i)));
  }
  for (uint32_t i = 0; i < kBatch; ++i) c.labels.push_back(static_cast<int32_t>(i * 7 % shape.channels));
  return c;
}

std::vector<Layer> Everything() {
  return {Convolution{.filters = 4, .bias = 0},                          // 0
          BatchNorm{},                                                   // 1
          Relu{},                                                        // 2
          Convolution{.filters = 4},                                     // 3
          BatchNorm{},                                                   // 4
          AddFrom{2},                                                    // 5
          Relu{},                                                        // 6
          Convolution{.filters = 5, .stride = 2},                        // 7
          Relu{},                                                        // 8
          Convolution{.filters = 5},                                     // 9
          From{6},                                                       // 10
          Subsample{.stride = 2, .channels = 5},                         // 11
          AddFrom{9},                                                    // 12
          MaxPool{.size = 3, .stride = 2, .padding = 1},                 // 13
          GlobalAveragePool{},                                           // 14
          Dense{.units = 9, .bias = 0},                                  // 15
          Relu{},                                                        // 16
          Dense{.units = 4, .bias = 0}};
}

class CudaNetworkTest : public OnDevice {};

TEST_F(CudaNetworkTest, GradientsAreTheReferences) {
  // Tensors at positions that are aligned, and that are not.
  for (const uint64_t gap : {0, 1}) {
    const Case c = MakeCase({6, 6, 3}, Everything(), gap);
    const auto reference = ReferenceForward(c.spec, c.Batch(), c.Doubles(), true);
    const auto gradient = ReferenceGradient(c.spec, c.Batch(), c.Doubles());
    Machine machine(c.spec);
    // As it is, captured, launched again.
    for (int step = 0; step < 3; ++step) {
      const LossSum loss = machine.Train(c, c.Batch());
      EXPECT_NEAR(loss.loss, reference.loss, 1e-4 * reference.loss) << step;
      EXPECT_EQ(loss.correct, reference.correct);
      EXPECT_EQ(loss.count, kBatch);
      EXPECT_LT(Distance(machine.gradient, gradient), 2e-4) << step;
      EXPECT_LT(Distance(machine.statistics, reference.statistics), 1e-4) << step;
    }
    EXPECT_EQ(machine.network().figures().captures, 1u);
    EXPECT_EQ(machine.network().figures().launches, 2u);
  }
}

#if defined(FORESHARD_CUDA_EMULATION)
TEST_F(CudaNetworkTest, GoesOnWithoutAGraphWhereALibraryRefusesOne) {
  const Case c = MakeCase({6, 6, 2}, {Convolution{.filters = 4}, BatchNorm{}, Relu{}, Dense{.units = 3}});
  Machine machine(c.spec);
  machine.library().RefuseForwardCall(2);  // the second step is the one that is captured
  machine.Train(c, c.Batch());
  const std::vector<uint32_t> gradient = Bits(machine.gradient);
  for (int step = 0; step < 3; ++step) {
    machine.Train(c, c.Batch());
    EXPECT_EQ(Bits(machine.gradient), gradient);
  }
  EXPECT_EQ(machine.network().figures().refused_captures, 1u);
  EXPECT_EQ(machine.network().figures().captures, 0u);
}
#endif

TEST_F(CudaNetworkTest, MicroBatchesAddUp) {
  const Case c = MakeCase({6, 6, 2}, {Convolution{.filters = 4, .bias = 0}, Relu{}, Dense{.units = 3, .bias = 0}});
  Machine machine(c.spec);
  machine.Train(c, c.Batch());
  const std::vector<float> whole = machine.gradient;
  const std::vector<double> wanted(whole.begin(), whole.end());
  for (int step = 0; step < 3; ++step) {
    machine.Train(c, c.Batch(2), 2.0f / kBatch);
    BatchView rest = c.Batch(3);
    rest.inputs += 2 * c.spec.input.elements();
    rest.labels += 2;
    machine.Train(c, rest, 3.0f / kBatch, /*accumulate=*/true);
    EXPECT_LT(Distance(machine.gradient, wanted), 1e-5);
  }
}

TEST_F(CudaNetworkTest, EvaluatesWithRunningStatistics) {
  const Case c = MakeCase({6, 6, 2}, {Convolution{.filters = 4}, BatchNorm{}, Relu{}, MaxPool{}, Dense{.units = 3}});
  const auto reference = ReferenceForward(c.spec, c.Batch(), c.Doubles(), false);
  const auto training = ReferenceForward(c.spec, c.Batch(), c.Doubles(), true);
  Machine machine(c.spec);
  ASSERT_EQ(machine.memory().Upload(c.vector.data(), 0, c.spec.elements), absl::OkStatus());
  for (int run = 0; run < 3; ++run) {
    const auto loss = machine.network().Evaluate(c.Batch(), machine.memory().vector());
    ASSERT_TRUE(loss.ok()) << loss.status();
    EXPECT_NEAR(loss->loss, reference.loss, 1e-4 * reference.loss);
    EXPECT_EQ(loss->correct, reference.correct);
    EXPECT_EQ(loss->count, kBatch);
    std::vector<float> statistics(training.statistics.size());
    ASSERT_EQ(machine.network().Statistics(c.Batch(), machine.memory().vector(),
                                           machine.memory().statistics()),
              absl::OkStatus());
    ASSERT_EQ(machine.memory().Download(nullptr, statistics.data()), absl::OkStatus());
    EXPECT_LT(Distance(statistics, training.statistics), 1e-4);
  }
}

TEST_F(CudaNetworkTest, Bf16IsNearTheReference) {
  const Case c = MakeCase({6, 6, 3}, {Convolution{.filters = 8}, BatchNorm{}, Relu{}, GlobalAveragePool{},
                                      Dense{.units = 8, .bias = 0}, Relu{}, Dense{.units = 3, .bias = 0}});
  const auto reference = ReferenceForward(c.spec, c.Batch(), c.Doubles(), true);
  const auto gradient = ReferenceGradient(c.spec, c.Batch(), c.Doubles());
  Machine machine(c.spec, Storage::kBf16);
  for (int step = 0; step < 2; ++step) {
    const LossSum loss = machine.Train(c, c.Batch());
    EXPECT_NEAR(loss.loss, reference.loss, 0.02 * reference.loss);
    EXPECT_LT(Distance(machine.gradient, gradient), 0.1);
  }
}

TEST_F(CudaNetworkTest, TheSameBitsWhateverRanBefore) {
  const Case c = MakeCase({6, 6, 3}, Everything());
  Machine machine(c.spec);
  machine.Train(c, c.Batch());
  const std::vector<uint32_t> first = Bits(machine.gradient);
  machine.Train(c, c.Batch(2));
  ASSERT_TRUE(machine.network().Evaluate(c.Batch(3), machine.memory().vector()).ok());
  machine.Train(c, c.Batch());
  EXPECT_EQ(Bits(machine.gradient), first);
}

TEST_F(CudaNetworkTest, ABadBatchLeavesNoTrace) {
  const Case c = MakeCase({6, 6, 2}, {Convolution{.filters = 4}, BatchNorm{}, Relu{}, Dense{.units = 3}});
  Case bad = c;
  bad.inputs[0] = INFINITY;
  Machine machine(c.spec);
  machine.Train(c, c.Batch());
  const std::vector<uint32_t> gradient = Bits(machine.gradient), statistics = Bits(machine.statistics);
  machine.Train(bad, bad.Batch());
  EXPECT_FALSE(std::isfinite(machine.statistics[0]));
  machine.Train(c, c.Batch());
  EXPECT_EQ(Bits(machine.statistics), statistics);
  EXPECT_EQ(Bits(machine.gradient), gradient);
}

TEST_F(CudaNetworkTest, AVarianceOfOneValueIsZero) {
  const Case c = MakeCase({1, 1, 3}, {Dense{.units = 4}, BatchNorm{}, Dense{.units = 2}});
  Machine machine(c.spec);
  machine.Train(c, c.Batch(1));
  for (size_t i = 4; i < 8; ++i) EXPECT_EQ(machine.statistics[i], 0);
}

TEST_F(CudaNetworkTest, AsksForNeighboursAtOnce) {
  const Case c = MakeCase({6, 6, 2}, {Convolution{.filters = 4, .bias = 0}, Relu{}, Dense{.units = 3, .bias = 0}});
  Machine machine(c.spec);
  machine.Train(c, c.Batch());
  ASSERT_EQ(machine.asked.size(), 1u);
  EXPECT_EQ(machine.asked[0], (std::pair<uint64_t, uint64_t>(0, c.spec.trainable_elements)));
}

TEST_F(CudaNetworkTest, BeginsBeforeTheLastParametersAreThere) {
  // 1.3 million parameters in the first layer: what follows is another piece.
  const Case c = MakeCase({1, 1, 1200}, {Dense{.units = 1100}, Relu{}, Dense{.units = 3}});
  Machine machine(c.spec);
  machine.Train(c, c.Batch(1));
  ASSERT_EQ(machine.asked.size(), 2u);
  EXPECT_EQ(machine.asked[1].first, 1200u * 1100);
  // An error of the gate ends the step.
  int asked = 0;
  const auto loss = machine.network().Train(
      c.Batch(1), machine.memory().vector(),
      [&](uint64_t, uint64_t) {
        return ++asked == 2 ? absl::AbortedError("fenced") : absl::OkStatus();
      },
      {1, false, machine.memory().gradient(), machine.memory().statistics()});
  EXPECT_EQ(loss.status().code(), absl::StatusCode::kAborted);
}

TEST_F(CudaNetworkTest, RefusesBatchesThatDoNotFit) {
  Case c = MakeCase({1, 1, 3}, {Dense{.units = 2}});
  Machine machine(c.spec);
  for (const uint64_t examples : {uint64_t{0}, uint64_t{kBatch + 1}}) {
    EXPECT_EQ(machine.network().Evaluate(c.Batch(examples), machine.memory().vector()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  c.labels[1] = 2;
  const absl::Status label =
      machine.network().Train(c.Batch(), machine.memory().vector(), Open, {}).status();
  EXPECT_EQ(label.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(label.message().find("example 1"), absl::string_view::npos);
}

#if defined(FORESHARD_CUDA_EMULATION)
TEST_F(CudaNetworkTest, OutOfMemorySaysWhatToLower) {
  const Stream stream = Stream::Make().value();
  Case c = MakeCase({64, 64, 3}, {Convolution{.filters = 64}, Relu{}, GlobalAveragePool{}, Dense{.units = 2}});
  c.spec.batch_size = 1000;
  PlainLibrary library(Storage::kFp32);
  const absl::Status status = CudaNetwork::Create(&library, stream.native(), c.spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(IsDeviceFailure(status));
  for (const char* word : {"1000 examples", "needed", "free", "training.batch_size"}) {
    EXPECT_NE(status.message().find(word), absl::string_view::npos) << word << " in " << status;
  }
}

TEST_F(CudaNetworkTest, GoesOnAfterItRanOutOfMemory) {
  const Stream stream = Stream::Make().value();
  const Case c = MakeCase({6, 6, 2}, {Convolution{.filters = 4}, Relu{}, Dense{.units = 3}});
  PlainLibrary library(Storage::kFp32);
  const auto memory = CudaStepMemory::Make(stream.native(), c.spec.trainable_elements, c.spec.elements).value();
  const auto network = CudaNetwork::Create(&library, stream.native(), c.spec).value();
  ASSERT_EQ(memory->Upload(c.vector.data(), 0, c.spec.elements), absl::OkStatus());
  const auto train = [&](uint64_t examples) {
    return network->Train(c.Batch(examples), memory->vector(), Open, {.gradient = memory->gradient()});
  };
  const auto first = train(kBatch);
  ASSERT_TRUE(first.ok()) << first.status();
  // A smaller batch may want more: cuDNN takes another algorithm for it.
  library.SetWorkspace(uint64_t{1} << 30);
  const absl::Status too_much = train(2).status();
  EXPECT_EQ(too_much.code(), absl::StatusCode::kResourceExhausted) << too_much;
  EXPECT_TRUE(IsDeviceFailure(too_much));
  library.SetWorkspace(1024);
  for (int step = 0; step < 3; ++step) {
    const auto again = train(kBatch);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->loss, first->loss);
  }
}

TEST_F(CudaNetworkTest, WhatTheLibraryCannotDoIsSaidWithTheLayer) {
  const Stream stream = Stream::Make().value();
  const Case c = MakeCase({6, 6, 2}, {Convolution{.filters = 4}, Relu{}, Dense{.units = 3}});
  PlainLibrary library(Storage::kFp32);
  library.Refuse(ConvolutionPass::kBackwardFilter);
  const absl::Status status = CudaNetwork::Create(&library, stream.native(), c.spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("layer 0: no algorithm: 5 x 6 x 6 x 2"), absl::string_view::npos) << status;
}
#endif

}  // namespace
}  // namespace foreshard::kernels::cuda
