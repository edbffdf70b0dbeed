#include "kernels/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/device_failure.h"

namespace foreshard::kernels {
namespace {

using testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(MakeDeviceTest, Cpu) {
  auto device = MakeDevice("cpu");
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->name(), "cpu");
  EXPECT_THAT((*device)->description(), HasSubstr("oneDNN"));
  EXPECT_THAT((*device)->description(), HasSubstr("1 thread"));
}

TEST(MakeDeviceTest, AutoTakesTheCpuAndSaysWhy) {
  auto device = MakeDevice("auto");
  ASSERT_TRUE(device.ok()) << device.status();
  if ((*device)->name() != "cpu") GTEST_SKIP() << "there is " << (*device)->description();
  EXPECT_EQ((*device)->name(), "cpu");
  EXPECT_THAT((*device)->description(), HasSubstr("no GPU used: "));
}

TEST(MakeDeviceTest, ANumberBeyondTheGpusIsABadArgument) {
  if (!MakeDevice("cuda").ok()) GTEST_SKIP() << "there is no GPU";
  const absl::Status status = MakeDevice("cuda:999").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(IsDeviceFailure(status));
  EXPECT_THAT(Message(status), HasSubstr("there is no cuda:999"));
}

TEST(MakeDeviceTest, CudaIsRefusedWithTheReason) {
  if (MakeDevice("cuda").ok()) GTEST_SKIP() << "there is a GPU";
  for (const char* spec : {"cuda", "cuda:0", "cuda:7"}) {
    const absl::Status status = MakeDevice(spec).status();
    EXPECT_TRUE(IsDeviceFailure(status));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << spec;
    EXPECT_THAT(Message(status), HasSubstr(spec));
    EXPECT_THAT(Message(status), HasSubstr("--device=cpu"));
  }
}

TEST(MakeDeviceTest, OnlyDeviceFailuresAreMarked) {
  EXPECT_FALSE(IsDeviceFailure(absl::UnavailableError("a server is away")));
  EXPECT_TRUE(IsDeviceFailure(DeviceFailure(absl::ResourceExhaustedError("no memory"))));
  EXPECT_FALSE(IsDeviceFailure(DeviceFailure(absl::InternalError("a mistake"))));
}

TEST(PrecisionTest, IsReadAsItIsWritten) {
  for (const Precision precision : {Precision::kFp32, Precision::kTf32, Precision::kBf16}) {
    EXPECT_EQ(ParsePrecision(NameOf(precision)).value(), precision);
  }
  const absl::Status status = ParsePrecision("fp8").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("'fp8'"));
}

TEST(MakeDeviceTest, UnknownSpecs) {
  for (const char* spec : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda0", "cpu:2", "CPU"}) {
    const absl::Status status = MakeDevice(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(Message(status), HasSubstr("cuda:n"));
  }
  EXPECT_EQ(MakeDevice("cpu", {.threads = 0}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(BufferTest, WritesAndReadsInsideItsBounds) {
  auto device = MakeDevice("cpu").value();
  auto buffer = device->Allocate(10).value();
  EXPECT_EQ(buffer->bytes(), 10u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
  char bytes[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  ASSERT_TRUE(buffer->Read(0, bytes, 10).ok());
  for (char byte : bytes) EXPECT_EQ(byte, 0);
  const char some[3] = {7, 8, 9};
  ASSERT_TRUE(buffer->Write(7, some, 3).ok());
  ASSERT_TRUE(buffer->Read(6, bytes, 4).ok());
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes[1], 7);
  EXPECT_EQ(bytes[3], 9);
  EXPECT_EQ(buffer->Write(8, some, 3).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(buffer->Read(11, bytes, 0).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(buffer->Read(1, bytes, ~uint64_t{0}).code(), absl::StatusCode::kOutOfRange);
}

TEST(BufferTest, MoreThanThereIs) {
  auto device = MakeDevice("cpu").value();
  for (uint64_t bytes : {uint64_t{1} << 62, ~uint64_t{0}}) {
    EXPECT_EQ(device->Allocate(bytes).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(MatrixMultiplyTest, RowMajor) {
  auto device = MakeDevice("cpu").value();
  const float a[] = {1, 2, 3, 4, 5, 6};        // [2, 3]
  const float b[] = {1, 0, 2, 1, 0, 1, 3, -1, 2, 0, 0, 1};  // [3, 4]
  float c[8];
  ASSERT_TRUE(device->MatrixMultiply(2, 4, 3, a, b, c).ok());
  const float want[] = {7, 2, 8, 2, 16, 5, 23, 5};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(c[i], want[i]) << i;
}

TEST(OutputShapeTest, Shapes) {
  const Shape in{7, 8, 3};
  EXPECT_EQ(*OutputShape(Convolution{.filters = 5}, in), (Shape{7, 8, 5}));
  EXPECT_EQ(*OutputShape(Convolution{.filters = 5, .stride = 2}, in), (Shape{4, 4, 5}));
  EXPECT_EQ(*OutputShape(MaxPool{}, in), (Shape{3, 4, 3}));
  EXPECT_EQ(*OutputShape(Dense{.units = 9}, in), (Shape{1, 1, 9}));
  EXPECT_EQ(*OutputShape(BatchNorm{}, in), in);
  EXPECT_EQ(*OutputShape(Relu{}, in), in);
  EXPECT_EQ(*OutputShape(MaxPool{.size = 3, .stride = 2, .padding = 1}, in), (Shape{4, 4, 3}));
  EXPECT_EQ(*OutputShape(GlobalAveragePool{}, in), (Shape{1, 1, 3}));
  EXPECT_EQ(*OutputShape(Subsample{.stride = 2, .channels = 9}, in), (Shape{4, 4, 9}));
  const std::vector<Shape> before = {in, {1, 1, 9}};
  EXPECT_EQ(*OutputShape(From{1}, in, before), (Shape{1, 1, 9}));
  EXPECT_EQ(*OutputShape(AddFrom{0}, in, before), in);
  EXPECT_FALSE(OutputShape(From{2}, in, before).ok());
  EXPECT_FALSE(OutputShape(From{0}, in).ok());
  EXPECT_FALSE(OutputShape(AddFrom{1}, in, before).ok());
  EXPECT_FALSE(OutputShape(AddFrom{~0u}, in, before).ok());
  EXPECT_FALSE(OutputShape(MaxPool{.size = 3, .padding = 2}, in).ok());
  EXPECT_FALSE(OutputShape(Subsample{.stride = 0, .channels = 9}, in).ok());
  EXPECT_FALSE(OutputShape(Subsample{.stride = 2, .channels = 2}, in).ok());
  EXPECT_FALSE(OutputShape(Convolution{.filters = 0}, in).ok());
  EXPECT_FALSE(OutputShape(Convolution{.filters = 1, .kernel = 9, .padding = 0}, in).ok());
  EXPECT_FALSE(OutputShape(Convolution{.filters = 1, .kernel = 3, .padding = 3}, in).ok());
  EXPECT_FALSE(OutputShape(MaxPool{.size = 8}, in).ok());
  EXPECT_FALSE(OutputShape(MaxPool{.size = 2, .stride = 0}, in).ok());
  EXPECT_FALSE(OutputShape(Dense{}, in).ok());
  EXPECT_FALSE(OutputShape(Relu{}, Shape{0, 8, 3}).ok());
}

NetworkSpec GoodSpec() {
  return {.input = {1, 1, 4},
          .layers = {Dense{.units = 3, .weight = 0},
                     BatchNorm{.weight = 12, .bias = 15, .mean = 26, .variance = 29},
                     Relu{},
                     Dense{.units = 2, .weight = 18, .bias = 24}},
          .batch_size = 4,
          .trainable_elements = 26,
          .elements = 32};
}

TEST(CheckNetworkTest, NamesTheLayer) {
  EXPECT_EQ(CheckNetwork(GoodSpec())->back(), (Shape{1, 1, 2}));
  auto refused = [](auto change, const char* part) {
    NetworkSpec spec = GoodSpec();
    change(spec);
    const absl::Status status = CheckNetwork(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
    EXPECT_THAT(Message(status), HasSubstr(part));
    auto device = MakeDevice("cpu").value();
    EXPECT_EQ(device->MakeNetwork(spec).status(), status);
  };
  refused([](NetworkSpec& s) { s.batch_size = 0; }, "batch_size");
  refused([](NetworkSpec& s) { s.elements = 10; }, "elements");
  refused([](NetworkSpec& s) { s.layers.clear(); }, "last layer");
  refused([](NetworkSpec& s) { s.layers.pop_back(); }, "last layer");
  refused([](NetworkSpec& s) { std::get<Dense>(s.layers[0]).units = 0; }, "layer 0");
  refused([](NetworkSpec& s) { std::get<Dense>(s.layers[0]).weight = kNoTensor; },
          "layer 0: has no weight");
  refused([](NetworkSpec& s) { std::get<Dense>(s.layers[3]).bias = 25; }, "layer 3: bias");
  refused([](NetworkSpec& s) { std::get<BatchNorm>(s.layers[1]).bias = kNoTensor; },
          "layer 1: has no bias");
  refused([](NetworkSpec& s) { std::get<BatchNorm>(s.layers[1]).mean = 20; }, "layer 1: mean");
  refused([](NetworkSpec& s) { std::get<BatchNorm>(s.layers[1]).variance = 30; },
          "layer 1: variance");
}

// A block: 3 -> 3 beside the identity.
NetworkSpec BlockSpec() {
  return {.input = {1, 1, 4},
          .layers = {Dense{.units = 3, .weight = 0}, Dense{.units = 3, .weight = 12}, AddFrom{0},
                     Dense{.units = 2, .weight = 21}},
          .batch_size = 4,
          .trainable_elements = 27,
          .elements = 27};
}

TEST(CheckNetworkTest, Branches) {
  EXPECT_TRUE(CheckNetwork(BlockSpec()).ok()) << CheckNetwork(BlockSpec()).status();
  auto refused = [](auto change, const char* part) {
    NetworkSpec spec = BlockSpec();
    change(spec);
    const absl::Status status = CheckNetwork(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
    EXPECT_THAT(Message(status), HasSubstr(part));
  };
  refused([](NetworkSpec& s) { s.layers[2] = AddFrom{2}; },
          "layer 2: names layer 2, which is not one of the 2 before it");
  refused([](NetworkSpec& s) { s.layers[2] = From{7}; }, "layer 2: names layer 7");
  refused([](NetworkSpec& s) { std::get<Dense>(s.layers[0]).units = 4; },
          "layer 2: adds the output of layer 0, 1 x 1 x 4, to another shape, 1 x 1 x 3");
  refused([](NetworkSpec& s) { s.layers[2] = From{0}; }, "layer 1: no layer reads its output");
  refused([](NetworkSpec& s) { s.layers.push_back(From{0}); }, "last layer");
}

TEST(TrainingFlopsTest, FollowsBranches) {
  // The second layer's input needs a gradient, and so does the third's.
  EXPECT_EQ(TrainingFlops(BlockSpec()), 2u * 12 * 2 + 2u * 9 * 3 + 2u * 6 * 3);
}

TEST(TrainingFlopsTest, CountsMultiplyAddsTwice) {
  // Dense 4 -> 3 forward and weights, 3 -> 2 forward, weights and data.
  EXPECT_EQ(TrainingFlops(GoodSpec()), 2u * 12 * 2 + 2u * 6 * 3);
  NetworkSpec conv{.input = {4, 4, 2},
                   .layers = {Convolution{.filters = 3, .weight = 0},
                              Dense{.units = 2, .weight = 54}},
                   .batch_size = 1,
                   .trainable_elements = 150,
                   .elements = 150};
  EXPECT_EQ(TrainingFlops(conv), 2u * 4 * 4 * 3 * 9 * 2 * 2 + 2u * 48 * 2 * 3);
}

}  // namespace
}  // namespace foreshard::kernels
