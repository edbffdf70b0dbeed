#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/worker/data/data_folder.h"
#include "worker/data/dataset.h"

namespace foreshard {
namespace {

using testing::HasSubstr;

constexpr int kPixels = 32 * 32;

// Byte of an image: differs by image, channel and pixel.
uint8_t Pixel(int image, int channel, int pixel) {
  return static_cast<uint8_t>(image * 31 + channel * 101 + pixel * 7 + pixel / 32);
}

// A record of CIFAR-10, or, with a superclass, of CIFAR-100.
std::string Record(int image, int label, int superclass = -1) {
  std::string bytes;
  if (superclass >= 0) bytes += static_cast<char>(superclass);
  bytes += static_cast<char>(label);
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < kPixels; ++i) bytes += static_cast<char>(Pixel(image, c, i));
  }
  return bytes;
}

class CifarTest : public DataFolderTest {
 protected:
  CifarTest() : DataFolderTest("foreshard-cifar") {}

  std::string WriteGzip(const std::string& name, const std::string& bytes) {
    return Write(name, Gzip(bytes));
  }
  // That loading a file of these bytes fails so, with the file named.
  void ExpectRefused(const std::string& bytes, uint32_t classes, absl::StatusCode code,
                     const char* part) {
    const absl::Status status = LoadCifar({Write("bad.bin", bytes)}, classes, {}).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("bad.bin"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
};

TEST_F(CifarTest, ImagesOfAllFilesInOrderAndPlanesInterleaved) {
  const std::string a = Write("a.bin", Record(0, 3) + Record(1, 9));
  const std::string b = WriteGzip("b.bin.gz", Record(2, 0));
  const ImageOptions options{.means = {0.5f, 0.25f, 0}, .deviations = {0.5f, 1, 2}};
  const auto data = LoadCifar({a, b}, 10, options);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->examples(), 3u);
  EXPECT_EQ((*data)->classes(), 10u);
  EXPECT_EQ((*data)->shape().height, 32u);
  EXPECT_EQ((*data)->shape().width, 32u);
  EXPECT_EQ((*data)->shape().channels, 3u);
  Batch batch;
  EXPECT_TRUE((*data)->Gather({2, 0, 1}, 0, &batch).ok());
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{0, 3, 9}));
  const float means[] = {0.5f, 0.25f, 0}, deviations[] = {0.5f, 1, 2};
  const int images[] = {2, 0, 1};
  for (int k = 0; k < 3; ++k) {
    for (int i = 0; i < kPixels; ++i) {
      for (int c = 0; c < 3; ++c) {
        const float want = (Pixel(images[k], c, i) / 255.0f - means[c]) / deviations[c];
        ASSERT_NEAR(batch.inputs[(k * kPixels + i) * 3 + c], want, 1e-6) << k << " " << i << " " << c;
      }
    }
  }
}

TEST_F(CifarTest, FineLabelsOfCifar100) {
  const auto data = LoadCifar({Write("train.bin", Record(0, 99, 19) + Record(1, 20, 0))}, 100, {});
  ASSERT_TRUE(data.ok()) << data.status();
  Batch batch;
  EXPECT_TRUE((*data)->Gather({0, 1}, 0, &batch).ok());
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{99, 20}));
  EXPECT_FLOAT_EQ(batch.inputs[4], Pixel(0, 1, 1) / 255.0f);
}

TEST_F(CifarTest, CropsAndFlipsMovePixelsOfAllChannelsTogether) {
  const ImageOptions options{.means = {0.1f, 0.2f, 0.3f},
                             .deviations = {0.5f, 0.6f, 0.7f},
                             .flip = true,
                             .crop_padding = 4};
  const auto data = LoadCifar({Write("a.bin", Record(0, 3))}, 10, options).value();
  const std::vector<uint32_t> indices(100, 0);
  Batch still, moved;
  EXPECT_TRUE(data->Gather({0}, 0, &still).ok());
  EXPECT_TRUE(data->Gather(indices, 5, &moved).ok());
  const float black[] = {-0.1f / 0.5f, -0.2f / 0.6f, -0.3f / 0.7f};
  int corners = 0;
  for (size_t k = 0; k < indices.size(); ++k) {
    const float* image = moved.inputs.data() + k * kPixels * 3;
    int found = 0;
    for (int place = 0; place < 9 * 9 * 2; ++place) {
      const int down = place / 18 - 4, right = place / 2 % 9 - 4;
      bool same = true;
      for (int i = 0; same && i < kPixels; ++i) {
        const int row = i / 32 + down;
        const int column = (place % 2 == 1 ? 31 - i % 32 : i % 32) + right;
        const bool inside = row >= 0 && row < 32 && column >= 0 && column < 32;
        for (int c = 0; c < 3; ++c) {
          const float want = inside ? still.inputs[(row * 32 + column) * 3 + c] : black[c];
          same = same && std::abs(image[i * 3 + c] - want) < 1e-6f;
        }
      }
      found += same;
      corners += same && std::abs(down) == 4 && std::abs(right) == 4;
    }
    ASSERT_EQ(found, 1) << k;
  }
  EXPECT_GT(corners, 0);  // 5 are expected
}

TEST_F(CifarTest, RefusesWhatIsNoCifar) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument, kLoss = absl::StatusCode::kDataLoss;
  ExpectRefused("", 10, kLoss, "has 0 bytes");
  ExpectRefused(Record(0, 1).substr(1), 10, kLoss, "has 3072 bytes, but a CIFAR-10 file has 3073");
  ExpectRefused(Record(0, 1) + "x", 10, kLoss, "has 3074 bytes");
  ExpectRefused(Record(0, 1), 100, kLoss, "has 3073 bytes, but a CIFAR-100 file has 3074");
  ExpectRefused(Record(0, 1, 2) + Record(1, 2, 3), 10, kLoss, "has 6148 bytes");
  ExpectRefused(Record(0, 9) + Record(1, 10), 10, kInvalid,
                "record 1 has the label 10, but CIFAR-10 has 0 to 9");
  ExpectRefused(Record(0, 255), 10, kInvalid, "record 0 has the label 255");
  ExpectRefused(Record(0, 100, 0), 100, kInvalid, "the label 100, but CIFAR-100 has 0 to 99");
  ExpectRefused(Record(0, 99, 20), 100, kInvalid, "the superclass 20, but CIFAR-100 has 0 to 19");
  ExpectRefused("\x1f\x8b\x08 cut", 10, kLoss, "fetch the file again");

  // The second of two files is the one that is named.
  const absl::Status status =
      LoadCifar({Write("good.bin", Record(0, 1)), Write("worse.bin", "x")}, 10, {}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("worse.bin: has 1 bytes"));
  const absl::Status missing = LoadCifar({(directory_ / "none.bin").string()}, 10, {}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("none.bin: cannot be opened for CIFAR-10"));
}

TEST_F(CifarTest, RefusesOptionsThatDoNotFit) {
  const std::string path = Write("a.bin", Record(0, 1));
  const auto message = [&](uint32_t classes, const ImageOptions& options) {
    const absl::Status status = LoadCifar({path}, classes, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message(20, {}), HasSubstr("data.classes is 20"));
  EXPECT_THAT(message(10, {.means = {1, 2}}), HasSubstr("data.channel_means has 2 numbers"));
  EXPECT_THAT(message(10, {.deviations = {1, 2, 3, 4}}),
              HasSubstr("data.channel_deviations has 4 numbers"));
  EXPECT_THAT(message(10, {.deviations = {1, 0, 3}}), HasSubstr("the deviation must be above 0"));
  EXPECT_THAT(message(10, {.crop_padding = 32}), HasSubstr("data.crop_padding is 32"));
  EXPECT_FALSE(LoadCifar({}, 10, {}).ok());
  EXPECT_TRUE(LoadCifar({path}, 10, {.crop_padding = 31}).ok());
}

}  // namespace
}  // namespace foreshard
