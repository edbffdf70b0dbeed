#include "worker/models/pytorch_weights.h"

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/core/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_folder.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

class PytorchWeightsTest : public DataFolderTest {
 protected:
  PytorchWeightsTest() : DataFolderTest("foreshard-weights") {}
  void SetUp() override {
    DataFolderTest::SetUp();
    device_ = kernels::MakeDevice("cpu").value();
    model_ = MakeModel({.name = "cnn", .input = {4, 6, 2}, .classes = 3, .widths = {5}, .dense_units = 4, .batch_size = 1},
                       *device_)
                 .value();
    vector_.resize(model_->schema().elements());
    for (size_t i = 0; i < vector_.size(); ++i) vector_[i] = static_cast<float>(i + 1);
    path_ = (directory_ / "w.safetensors").string();
  }
  // Place of a tensor in the vector.
  uint64_t At(const std::string& name) {
    for (size_t i = 0; i < model_->schema().tensors().size(); ++i) {
      if (model_->schema().tensors()[i].name == name) return model_->schema().offset(i);
    }
    ADD_FAILURE() << name;
    return 0;
  }
  SafetensorsReader Open(std::string* bytes) {
    std::ifstream file(path_, std::ios::binary);
    bytes->assign(std::istreambuf_iterator<char>(file), {});
    return SafetensorsReader::Open(
               [bytes](uint64_t offset, uint64_t count) -> absl::StatusOr<std::string> {
                 return bytes->substr(offset, count);
               },
               bytes->size(), path_)
        .value();
  }
  // Writes the model's tensors in PyTorch's shapes, all 1, after this change.
  void WriteChanged(const std::function<void(std::vector<SafetensorsTensor>&)>& change, float value = 1) {
    std::vector<SafetensorsTensor> tensors;
    for (size_t i = 0; i < model_->schema().tensors().size(); ++i) {
      tensors.push_back({.name = model_->schema().tensors()[i].name, .shape = WeightShape(*model_, i, WeightLayout::kPytorch)});
    }
    change(tensors);
    std::string file;
    auto writer = SafetensorsWriter::Create(tensors, {}, [&](ByteSpan bytes) {
      file.append(bytes.begin(), bytes.end());
      return absl::OkStatus();
    });
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const SafetensorsTensor& tensor : writer->tensors()) {
      std::string values(tensor.elements * BytesOf(tensor.type), '\0');
      for (uint64_t k = 0; k < tensor.elements; ++k) {
        if (tensor.type == SafetensorsType::kF32) {
          std::memcpy(values.data() + 4 * k, &value, 4);
        } else if (tensor.type != SafetensorsType::kI64) {
          const uint16_t half = tensor.type == SafetensorsType::kF16 ? 0x3e00 : 0x3fc0;  // 1.5
          std::memcpy(values.data() + 2 * k, &half, 2);
        }
      }
      ASSERT_TRUE(writer->Append(AsBytes(values)).ok());
    }
    ASSERT_TRUE(writer->Finish().ok());
    Write("w.safetensors", file);
  }
  void ExpectRefused(const std::string& text, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const std::vector<float> before = vector_;
    const absl::Status status = LoadPytorchWeights(*model_, path_, vector_.data());
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_EQ(vector_, before);
  }

  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Model> model_;
  std::vector<float> vector_;
  std::string path_;
};

TEST_F(PytorchWeightsTest, LayoutIsPytorchs) {
  ASSERT_TRUE(SavePytorchWeights(*model_, vector_, path_).ok());
  std::string bytes;
  const SafetensorsReader reader = Open(&bytes);
  const auto value = [&](const char* name, uint64_t at) {
    float out = 0;
    EXPECT_TRUE(reader.ReadFloats(*reader.Find(name), at, {&out, 1}).ok());
    return out;
  };
  ASSERT_NE(reader.Find("conv1.weight"), nullptr);
  EXPECT_EQ(reader.Find("conv1.weight")->shape, (std::vector<uint64_t>{5, 2, 3, 3}));
  // Filter 4, channel 1, row 2, column 0.
  EXPECT_EQ(value("conv1.weight", ((4 * 2 + 1) * 3 + 2) * 3), vector_[At("conv1.weight") + ((4 * 3 + 2) * 3) * 2 + 1]);
  // The image is 2 x 3 x 5 after pooling. Unit 3, channel 4, row 1, column 2.
  EXPECT_EQ(reader.Find("fc1.weight")->shape, (std::vector<uint64_t>{4, 30}));
  EXPECT_EQ(value("fc1.weight", 3 * 30 + (4 * 2 + 1) * 3 + 2), vector_[At("fc1.weight") + 3 * 30 + (1 * 3 + 2) * 5 + 4]);
  EXPECT_EQ(value("output.weight", 7), vector_[At("output.weight") + 7]);
  EXPECT_EQ(value("bn1.running_var", 2), vector_[At("bn1.running_var") + 2]);
  const SafetensorsTensor* count = reader.Find("bn2.num_batches_tracked");
  ASSERT_NE(count, nullptr);
  EXPECT_EQ(count->type, SafetensorsType::kI64);
  EXPECT_TRUE(count->shape.empty());
  EXPECT_EQ(count->offset % 8, 0u);
  EXPECT_EQ(reader.tensors().size(), model_->schema().tensors().size() + 2);
}

TEST_F(PytorchWeightsTest, ComesBackAsItWas) {
  for (const WeightLayout layout : {WeightLayout::kPytorch, WeightLayout::kPlain}) {
    ASSERT_TRUE(SaveWeights(*model_, vector_, path_, layout).ok());
    std::vector<float> back(vector_.size());
    const absl::Status status = LoadWeights(*model_, path_, layout, back.data());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(back, vector_);
  }
  ExpectRefused("it is in our own layout: foreshard weights --to-pytorch converts it");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
}

TEST_F(PytorchWeightsTest, HalvesAreWidenedAndCountsNotNeeded) {
  WriteChanged([](auto& tensors) {
    tensors[0].type = SafetensorsType::kF16;
    tensors[1].type = SafetensorsType::kBF16;
  });
  ASSERT_TRUE(LoadPytorchWeights(*model_, path_, vector_.data()).ok());
  EXPECT_EQ(vector_[0], 1.5f);
  EXPECT_EQ(vector_[model_->schema().offset(1)], 1.5f);
  EXPECT_EQ(vector_[model_->schema().offset(2)], 1.0f);
}

TEST_F(PytorchWeightsTest, WhatDoesNotFitIsRefused) {
  WriteChanged([](auto& tensors) { tensors[0].shape = {5, 2, 3, 2}; });
  ExpectRefused("tensor 'conv1.weight' has the shape [5, 2, 3, 2], but the model's is [5, 2, 3, 3]");
  WriteChanged([](auto& tensors) { tensors[0].name = "conv.weight"; });
  ExpectRefused("tensor 'conv1.weight' of the model is missing");
  WriteChanged([](auto& tensors) { tensors.push_back({.name = "head.weight", .shape = {2}}); });
  ExpectRefused("tensor 'head.weight' with the shape [2] is none of the model's");
  WriteChanged([](auto& tensors) { tensors[0].type = SafetensorsType::kI64; });
  ExpectRefused("tensor 'conv1.weight' has the type I64, but the model's is F32");
  WriteChanged([](auto& tensors) { tensors.push_back({.name = "bn1.num_batches_tracked", .type = SafetensorsType::kI64, .shape = {2}}); });
  ExpectRefused("a count is one number");
  WriteChanged([](auto&) {}, std::numeric_limits<float>::quiet_NaN());
  ExpectRefused("tensor 'conv1.weight': element 0 is nan");
  WriteChanged([](auto&) {}, -1);
  ExpectRefused("tensor 'bn1.running_var': element 0 is -1; a variance is never below 0");
}

TEST_F(PytorchWeightsTest, FilesThatAreNotWhole) {
  ExpectRefused("can't open", absl::StatusCode::kNotFound);
  ASSERT_TRUE(SavePytorchWeights(*model_, vector_, path_).ok());
  const auto size = std::filesystem::file_size(path_);
  for (const uint64_t bytes : {size - 1, size / 2, uint64_t{20}, uint64_t{3}, uint64_t{0}}) {
    std::filesystem::resize_file(path_, bytes);
    ExpectRefused("cut", absl::StatusCode::kDataLoss);
  }
  path_ = directory_.string();
  ExpectRefused("is no file");
}

TEST_F(PytorchWeightsTest, NothingBadIsWritten) {
  vector_[3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(SavePytorchWeights(*model_, vector_, path_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SavePytorchWeights(*model_, absl::MakeSpan(vector_).subspan(1), path_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  vector_[3] = 0;
  EXPECT_FALSE(SavePytorchWeights(*model_, vector_, (directory_ / "no/where").string()).ok());
}

TEST_F(PytorchWeightsTest, ChecksumOfAFile) {
  const auto checksum = FileChecksum(Write("x", "abc"));
  ASSERT_TRUE(checksum.ok());
  EXPECT_EQ(*checksum, "78af5f94892f3950");  // XXH3-64
  EXPECT_EQ(FileChecksum((directory_ / "nowhere").string()).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace foreshard
