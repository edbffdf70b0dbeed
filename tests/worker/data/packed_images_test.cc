#include "worker/data/packed_images.h"

#include <cmath>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_folder.h"
#include "tests/worker/data/pictures.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

class PackedImagesTest : public DataFolderTest {
 protected:
  PackedImagesTest() : DataFolderTest("foreshard-images") {}
  void SetUp() override {
    DataFolderTest::SetUp();
    for (uint32_t i = 0; i < 6; ++i) Add(MakePng(Gradient(30 + 4 * i, 24)), i % 2);
    Finish();
  }
  void Add(const std::string& bytes, uint32_t label) {
    if (shard_.empty()) shard_ = PackedShardHeader(0);
    index_.records.push_back({shard_.size(), Checksum(AsBytes(bytes)), static_cast<uint32_t>(bytes.size()), label, 0});
    shard_ += bytes;
  }
  void Finish() {
    index_.size = 24;
    index_.classes = {"a", "b"};
    index_.shard_bytes = {shard_.size()};
    Write(kPackedIndexName, PrintPackedIndex(index_));
    Write(PackedShardName(0), shard_);
  }
  std::unique_ptr<Dataset> Load(PackedOptions options) {
    options.classes = 2;
    options.side = 16;
    auto data = LoadPacked(directory_.string(), options);
    EXPECT_TRUE(data.ok()) << data.status();
    return data.ok() ? *std::move(data) : nullptr;
  }

  PackedIndex index_;
  std::string shard_;
};

TEST_F(PackedImagesTest, GivesTheMiddleWithoutAKey) {
  const auto data = Load({.images = {.means = {0.5f, 0, 0}, .deviations = {0.25f, 1, 1}, .flip = true}});
  EXPECT_EQ(data->examples(), 6u);
  EXPECT_EQ(data->shape().elements(), 16u * 16 * 3);
  Batch batch;
  ASSERT_TRUE(data->Gather({3, 0}, 0, &batch).ok());
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{1, 0}));
  const Image image = Gradient(42, 24);
  const Image cut = Resize(image, {10, 1, 21, 21}, 16, 16);
  for (size_t i = 0; i < cut.pixels.size(); i += 3) {
    ASSERT_FLOAT_EQ(batch.inputs[i], static_cast<float>((cut.pixels[i] / 255.0 - 0.5) / 0.25));
    ASSERT_FLOAT_EQ(batch.inputs[i + 1], static_cast<float>(cut.pixels[i + 1] / 255.0));
  }
}

TEST_F(PackedImagesTest, AugmentationFollowsTheKeyWhateverTheThreads) {
  const std::vector<uint32_t> indices = {5, 1, 1, 4, 0, 2, 3};
  Batch first, again, other, still;
  const auto one = Load({.images = {.flip = true}, .decode_threads = 1});
  const auto many = Load({.images = {.flip = true}, .decode_threads = 5});
  ASSERT_TRUE(one->Gather(indices, 7, &first).ok());
  many->Expect(indices, 7);
  ASSERT_TRUE(many->Gather(indices, 7, &again).ok());
  EXPECT_EQ(first.inputs, again.inputs);
  EXPECT_EQ(first.labels, again.labels);
  ASSERT_TRUE(many->Gather(indices, 8, &other).ok());
  EXPECT_NE(first.inputs, other.inputs);
  // The same picture twice is two different ones.
  const auto size = static_cast<int64_t>(one->shape().elements());
  EXPECT_FALSE(std::equal(first.inputs.begin() + size, first.inputs.begin() + 2 * size, first.inputs.begin() + 2 * size));
  const auto whole = Load({.least_area = 1});
  ASSERT_TRUE(whole->Gather(indices, 7, &first).ok());
  ASSERT_TRUE(whole->Gather(indices, 0, &still).ok());
  EXPECT_EQ(first.inputs, still.inputs);
}

TEST_F(PackedImagesTest, ManyGatherAndExpectAtOnce) {
  const auto data = Load({.images = {.flip = true}, .decode_threads = 2});
  std::vector<Batch> wanted(20);
  for (uint64_t key = 0; key < wanted.size(); ++key) ASSERT_TRUE(data->Gather({0, 1, 2}, key + 1, &wanted[key]).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (uint64_t key = 0; key < wanted.size(); ++key) {
        data->Expect({0, 1, 2}, key + 2);
        Batch batch;
        EXPECT_TRUE(data->Gather({0, 1, 2}, key + 1, &batch).ok());
        EXPECT_EQ(batch.inputs, wanted[key].inputs);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // More than are kept, and never gathered.
  for (uint64_t key = 100; key < 300; ++key) data->Expect({0, 1, 2, 3, 4, 5}, key);
}

TEST_F(PackedImagesTest, WhatDoesNotDecodeNamesItsRecord) {
  Add(MakeJpeg(Gradient(40, 40)).substr(0, 500), 1);
  Finish();
  const auto data = Load({});
  Batch batch;
  EXPECT_TRUE(data->Gather({0, 5}, 3, &batch).ok());
  for (int expected = 0; expected < 2; ++expected) {
    if (expected == 1) data->Expect({0, 6, 1}, 3);
    const absl::Status status = data->Gather({0, 6, 1}, 3, &batch);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("record 6 (class 'b', 500 bytes"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not decode as JPEG"));
  }
  EXPECT_TRUE(data->Gather({0, 5}, 3, &batch).ok());
}

TEST_F(PackedImagesTest, ClassesMustBeAsPacked) {
  const absl::Status status = LoadPacked(directory_.string(), {.classes = 3}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has images of 2 classes, but data.classes is 3"));
}

TEST(RandomPart, HasTheAreasAndRatiosThatItShould) {
  double area = 0;
  int mirrored = 0;
  for (uint64_t k = 0; k < 2000; ++k) {
    const ImageBox box = RandomPart(11, k, 400, 300, 0.08f);
    ASSERT_GE(box.x, 0);
    ASSERT_GE(box.y, 0);
    ASSERT_LE(box.x + box.width, 400);
    ASSERT_LE(box.y + box.height, 300);
    ASSERT_GE(box.width * box.height, 0.075 * 400 * 300);
    ASSERT_GE(box.width / box.height, 0.74);
    ASSERT_LE(box.width / box.height, 1.36);
    area += box.width * box.height / (400 * 300) / 2000;
    mirrored += box.x > (400 - box.width) / 2;
  }
  // 0.54 of what is drawn; large parts fit less often, and of those that fit it is 0.433.
  EXPECT_NEAR(area, 0.433, 0.02);
  EXPECT_NEAR(mirrored, 1000, 120);
  // Where nothing fits: the middle, with the nearest ratio.
  const ImageBox strip = RandomPart(11, 0, 10000, 10, 0.9f);
  EXPECT_EQ(strip.height, 10);
  EXPECT_EQ(strip.width, 13);
  EXPECT_EQ(strip.x, 4993);
  const ImageBox middle = MiddlePart(341, 256);
  EXPECT_EQ(middle.width, 224);
  EXPECT_EQ(middle.x, 58);
  EXPECT_EQ(middle.y, 16);
  EXPECT_EQ(MiddlePart(1, 1).width, 1);
}

}  // namespace
}  // namespace foreshard
