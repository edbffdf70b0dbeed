#include "worker/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <tuple>

#include "tests/worker/data/data_folder.h"

namespace foreshard {
namespace {

using testing::HasSubstr;

std::string Word(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

// Three images of 2 x 3 and their labels.
std::string Images() {
  std::string bytes = Word(0x803) + Word(3) + Word(2) + Word(3);
  for (int i = 0; i < 18; ++i) bytes += static_cast<char>(i * 15);
  return bytes;
}
std::string Labels() { return Word(0x801) + Word(3) + std::string("\x02\x00\x01", 3); }

class IdxTest : public DataFolderTest {
 protected:
  IdxTest() : DataFolderTest("foreshard-idx") {}

  // The error of loading these bytes.
  absl::Status Problem(const std::string& images, const std::string& labels,
                       const IdxOptions& options = {.classes = 3}) {
    return LoadIdx(Write("images", images), Write("labels", labels), options).status();
  }
};

void ExpectError(const absl::Status& status, absl::StatusCode code, const char* file,
                 const char* part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(file));
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kLoss = absl::StatusCode::kDataLoss;

TEST_F(IdxTest, PlainAndGzippedAreTheSame) {
  const IdxOptions options{.classes = 3, .mean = 0.25f, .deviation = 0.5f};
  const auto plain = LoadIdx(Write("i", Images()), Write("l", Labels()), options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  const auto gzipped =
      LoadIdx(Write("i.gz", Gzip(Images())), Write("l.gz", Gzip(Labels())), options);
  ASSERT_TRUE(gzipped.ok()) << gzipped.status();
  for (const auto* set : {&plain, &gzipped}) {
    const Dataset& data = ***set;
    EXPECT_EQ(data.examples(), 3u);
    EXPECT_EQ(data.classes(), 3u);
    EXPECT_EQ(data.shape().height, 2u);
    EXPECT_EQ(data.shape().width, 3u);
    EXPECT_EQ(data.shape().channels, 1u);
    Batch batch;
    EXPECT_TRUE(data.Gather({2, 0}, 0, &batch).ok());
    EXPECT_EQ(batch.examples, 2u);
    EXPECT_EQ(batch.labels, (std::vector<int32_t>{1, 2}));
    ASSERT_EQ(batch.inputs.size(), 12u);
    for (int i = 0; i < 6; ++i) {
      EXPECT_FLOAT_EQ(batch.inputs[i], ((12 + i) * 15 / 255.0f - 0.25f) / 0.5f);
      EXPECT_FLOAT_EQ(batch.inputs[6 + i], (i * 15 / 255.0f - 0.25f) / 0.5f);
    }
    EXPECT_TRUE(data.Gather({1}, 0, &batch).ok());  // a smaller batch leaves nothing of the last
    EXPECT_EQ(batch.inputs.size(), 6u);
    EXPECT_EQ(batch.labels.size(), 1u);
  }
}

// Whether `to` is `from` (3 x 2, black around it) as seen from a place `down` and `right` of
// its corner, mirrored or not.
bool IsMoved(const float* from, const float* to, int down, int right, bool mirrored) {
  for (int y = 0; y < 2; ++y) {
    for (int x = 0; x < 3; ++x) {
      const int row = y + down, column = (mirrored ? 2 - x : x) + right;
      const bool inside = row >= 0 && row < 2 && column >= 0 && column < 3;
      if (to[y * 3 + x] != (inside ? from[row * 3 + column] : -1.0f)) return false;
    }
  }
  return true;
}

TEST_F(IdxTest, CropsFollowTheKeyAndReachEveryPlace) {
  const std::string images = Write("i", Images()), labels = Write("l", Labels());
  // Black pixels are (0 - 0.5) / 0.5.
  const IdxOptions options{
      .classes = 3, .mean = 0.5f, .deviation = 0.5f, .flip = true, .crop_padding = 1};
  const auto data = LoadIdx(images, labels, options).value();
  const std::vector<uint32_t> indices(400, 2);
  Batch still, first, again, other;
  EXPECT_TRUE(data->Gather(indices, 0, &still).ok());
  EXPECT_TRUE(data->Gather(indices, 7, &first).ok());
  EXPECT_TRUE(data->Gather(indices, 7, &again).ok());
  EXPECT_TRUE(data->Gather(indices, 8, &other).ok());
  EXPECT_EQ(first.inputs, again.inputs);
  EXPECT_NE(first.inputs, other.inputs);
  std::map<std::tuple<int, int, bool>, int> places;
  for (int k = 0; k < 400; ++k) {
    int found = 0;
    for (int down : {-1, 0, 1}) {
      for (int right : {-1, 0, 1}) {
        for (bool mirrored : {false, true}) {
          if (!IsMoved(still.inputs.data() + k * 6, first.inputs.data() + k * 6, down, right,
                       mirrored)) {
            continue;
          }
          ++found;
          ++places[{down, right, mirrored}];
        }
      }
    }
    ASSERT_EQ(found, 1) << k;
  }
  EXPECT_EQ(places.size(), 18u);
  for (const auto& [place, count] : places) {
    EXPECT_GE(count, 6);  // 22 are expected
    EXPECT_LE(count, 44);
  }
  const absl::Status wide = Problem(Images(), Labels(), {.classes = 3, .crop_padding = 2});
  EXPECT_EQ(wide.code(), kInvalid);
  EXPECT_THAT(std::string(wide.message()), HasSubstr("data.crop_padding is 2"));
}

TEST_F(IdxTest, FlipsFollowTheKey) {
  const std::string images = Write("i", Images()), labels = Write("l", Labels());
  const auto data = LoadIdx(images, labels, {.classes = 3, .flip = true}).value();
  std::vector<uint32_t> indices(200, 1);
  Batch still, first, again, other;
  EXPECT_TRUE(data->Gather(indices, 0, &still).ok());
  EXPECT_TRUE(data->Gather(indices, 7, &first).ok());
  EXPECT_TRUE(data->Gather(indices, 7, &again).ok());
  EXPECT_TRUE(data->Gather(indices, 8, &other).ok());
  EXPECT_EQ(first.inputs, again.inputs);
  EXPECT_NE(first.inputs, other.inputs);
  int mirrored = 0;
  for (int k = 0; k < 200; ++k) {
    const float* from = still.inputs.data() + k * 6;
    const float* to = first.inputs.data() + k * 6;
    if (std::equal(from, from + 6, to)) continue;
    ++mirrored;
    for (int y = 0; y < 2; ++y) {
      for (int x = 0; x < 3; ++x) EXPECT_EQ(to[y * 3 + x], from[y * 3 + 2 - x]);
    }
  }
  EXPECT_GT(mirrored, 70);
  EXPECT_LT(mirrored, 130);

  const auto fixed = LoadIdx(images, labels, {.classes = 3}).value();
  EXPECT_TRUE(fixed->Gather(indices, 7, &other).ok());
  EXPECT_EQ(other.inputs, still.inputs);
}

TEST_F(IdxTest, MissingFiles) {
  const std::string images = Write("images", Images());
  const std::string nowhere = (directory_ / "nowhere").string();
  ExpectError(LoadIdx(nowhere, images, {}).status(), absl::StatusCode::kNotFound, "nowhere",
              "data.directory");
  ExpectError(LoadIdx(images, nowhere, {}).status(), absl::StatusCode::kNotFound, "nowhere",
              "labels");
  ExpectError(LoadIdx(images, directory_.string(), {}).status(), kLoss, "foreshard-idx",
              "directory");
}

TEST_F(IdxTest, WrongMagic) {
  ExpectError(Problem(Labels(), Labels()), kInvalid, "images", "0x00000801");
  ExpectError(Problem(Images(), Images()), kInvalid, "labels", "0x00000803");
  ExpectError(Problem("PNG, or so it says here", Labels()), kInvalid, "images",
              "IDX file of images");
}

TEST_F(IdxTest, Truncated) {
  const std::string images = Images(), labels = Labels();
  for (size_t bytes = 0; bytes < images.size(); ++bytes) {
    ExpectError(Problem(images.substr(0, bytes), labels), kLoss, "images", "cut off");
  }
  for (size_t bytes = 0; bytes < labels.size(); ++bytes) {
    ExpectError(Problem(images, labels.substr(0, bytes)), kLoss, "labels", "cut off");
  }
  // A header that claims far more than there is costs no memory for it.
  ExpectError(Problem(Word(0x803) + Word(1 << 20) + Word(100) + Word(100) + "x", labels), kLoss,
              "images", "holds 1 bytes");
}

TEST_F(IdxTest, TrailingBytes) {
  ExpectError(Problem(Images() + "x", Labels()), kLoss, "images", "goes on after the 18 bytes");
  ExpectError(Problem(Images(), Labels() + "x"), kLoss, "labels", "goes on after the 3 bytes");
  ExpectError(Problem(Gzip(Images() + "x"), Labels()), kLoss, "images", "goes on");
}

TEST_F(IdxTest, DamagedGzip) {
  const std::string images = Gzip(Images());
  for (size_t bytes = 11; bytes < images.size(); ++bytes) {
    ExpectError(Problem(images.substr(0, bytes), Labels()), kLoss, "images", "");
  }
  std::string damaged = images;
  damaged[images.size() - 6] ^= 0x40;  // its checksum
  ExpectError(Problem(damaged, Labels()), kLoss, "images", "decompressed");
  damaged = images;
  damaged[14] ^= 0x7F;
  EXPECT_FALSE(Problem(damaged, Labels()).ok());
}

TEST_F(IdxTest, SizesThatDisagreeOrMakeNoSense) {
  ExpectError(Problem(Images(), Word(0x801) + Word(2) + std::string(2, '\0')), kInvalid, "labels",
              "3 images");
  ExpectError(Problem(Word(0x803) + Word(0) + Word(2) + Word(3), Labels()), kInvalid, "images",
              "dimension 0");
  ExpectError(Problem(Word(0x803) + Word(~0u) + Word(~0u) + Word(~0u), Labels()), kInvalid,
              "images", "dimension 1");
  EXPECT_EQ(Problem(Images(), Labels(), {.classes = 3, .deviation = 0}).code(), kInvalid);
}

TEST_F(IdxTest, LabelOutOfRange) {
  ExpectError(Problem(Images(), Labels(), {.classes = 2}), kInvalid, "labels", "label 0 is 2");
}

TEST(FashionMnistTest, DebiansFilesLoad) {
  const std::string directory = "/usr/share/datasets/fashion-mnist/";
  if (!std::filesystem::exists(directory)) {
    GTEST_SKIP() << "the package dataset-fashion-mnist is not installed";
  }
  const auto data = LoadIdx(directory + "t10k-images-idx3-ubyte.gz",
                            directory + "t10k-labels-idx1-ubyte.gz", {});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->examples(), 10000u);
  EXPECT_EQ((*data)->shape().elements(), 784u);
  std::vector<uint32_t> all(10000);
  std::iota(all.begin(), all.end(), 0);
  Batch batch;
  EXPECT_TRUE((*data)->Gather(all, 0, &batch).ok());
  for (int label = 0; label < 10; ++label) {
    EXPECT_EQ(std::count(batch.labels.begin(), batch.labels.end(), label), 1000);
  }
}

TEST(SyntheticDatasetTest, GivesLabelsAndNoContent) {
  const auto data = MakeSyntheticDataset(1000, {2, 2, 1}, 10);
  EXPECT_EQ(data->examples(), 1000u);
  EXPECT_EQ(data->classes(), 10u);
  Batch batch;
  EXPECT_TRUE(data->Gather({3, 999, 20}, 5, &batch).ok());
  EXPECT_EQ(batch.examples, 3u);
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{3, 9, 0}));
  EXPECT_EQ(batch.inputs, std::vector<float>(12, 0.0f));
}

TEST(BatchOrderTest, EveryEpochIsAPermutation) {
  for (uint32_t batch_size : {1, 7, 10, 64, 1000}) {
    BatchOrder order(3, 100, batch_size);
    EXPECT_EQ(order.batches_per_epoch(), (100 + batch_size - 1) / batch_size);
    std::vector<std::vector<uint32_t>> epochs;
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<uint32_t> seen;
      for (uint64_t b = 0; b < order.batches_per_epoch(); ++b) {
        const auto indices = order.Indices(epoch * order.batches_per_epoch() + b);
        EXPECT_GT(indices.size(), 0u);
        EXPECT_LE(indices.size(), batch_size);
        if (b + 1 < order.batches_per_epoch()) {
          EXPECT_EQ(indices.size(), batch_size);
        }
        seen.insert(seen.end(), indices.begin(), indices.end());
      }
      epochs.push_back(seen);
      std::sort(seen.begin(), seen.end());
      std::vector<uint32_t> all(100);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(seen, all);
    }
    EXPECT_NE(epochs[0], epochs[1]);
    EXPECT_NE(epochs[1], epochs[2]);
  }
}

TEST(BatchOrderTest, IsAFunctionOfSeedAndTicket) {
  BatchOrder order(3, 100, 8), again(3, 100, 8), other(4, 100, 8);
  std::vector<std::vector<uint32_t>> forward;
  for (uint64_t ticket = 0; ticket < 40; ++ticket) {
    const auto indices = order.Indices(ticket);
    forward.emplace_back(indices.begin(), indices.end());
  }
  for (uint64_t ticket = 40; ticket-- > 0;) {
    const auto indices = again.Indices(ticket);
    EXPECT_EQ(std::vector<uint32_t>(indices.begin(), indices.end()), forward[ticket]) << ticket;
  }
  const auto indices = other.Indices(0);
  EXPECT_NE(std::vector<uint32_t>(indices.begin(), indices.end()), forward[0]);
}

}  // namespace
}  // namespace foreshard
