#include "tools/pack_images.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_folder.h"
#include "worker/data/image_codec.h"
#include "worker/data/packed_records.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string Jpeg(uint32_t width, uint32_t height, uint8_t value) {
  return EncodeJpeg(Image{width, height, std::vector<uint8_t>(size_t{width} * height * 3, value)}).value();
}

class PackImagesTest : public DataFolderTest {
 protected:
  PackImagesTest() : DataFolderTest("foreshard-pack") {}
  void SetUp() override {
    DataFolderTest::SetUp();
    for (const char* name : {"in/zebra", "in/ant/deep", "in/.hidden"}) fs::create_directories(directory_ / name);
    Write("in/zebra/b.jpg", Jpeg(20, 40, 10));
    Write("in/zebra/a.jpg", Jpeg(120, 60, 20));
    Write("in/ant/c.jpg", Jpeg(30, 30, 30));
    Write("in/ant/deep/d.jpg", Jpeg(64, 65, 40));
    Write("in/.hidden/x", "no class");
    Write("in/ant/.x", "no picture");
    Write("in/list.txt", "no class either");
  }
  PackOptions Options() {
    return {.input = (directory_ / "in").string(), .output = (directory_ / "out").string(), .size = 32, .threads = 2};
  }
  std::set<std::string> Left() {
    std::set<std::string> names;
    for (const auto& each : fs::directory_iterator(directory_)) names.insert(each.path().filename().string());
    return names;
  }
  void ExpectRefused(const PackOptions& options, const std::string& text,
                     absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const auto before = Left();
    const auto figures = PackImages(options);
    EXPECT_EQ(figures.status().code(), code) << figures.status();
    EXPECT_THAT(std::string(figures.status().message()), HasSubstr(text));
    EXPECT_EQ(Left(), before);
  }
};

TEST_F(PackImagesTest, PacksWhatIsThere) {
  PackOptions options = Options();
  options.shards = 3;
  options.output += "/";
  uint64_t told = 0;
  options.progress = [&](const PackFigures& figures) { told = figures.packed; };
  const auto figures = PackImages(options);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->images, 4u);
  EXPECT_EQ(figures->packed, 4u);
  EXPECT_EQ(figures->resized, 2u);
  EXPECT_EQ(told, 4u);
  EXPECT_EQ(Left(), (std::set<std::string>{"in", "out"}));
  const auto records = PackedRecords::Open((directory_ / "out").string());
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_THAT((*records)->index().classes, ElementsAre("ant", "zebra"));
  EXPECT_EQ((*records)->index().shard_bytes.size(), 3u);
  struct Expected {
    uint32_t label, width, height;
    int value;
  };
  const Expected expected[] = {{0, 30, 30, 30}, {0, 32, 33, 40}, {1, 64, 32, 20}, {1, 20, 40, 10}};
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ((*records)->index().records[i].label, expected[i].label);
    const auto image = DecodeImage((*records)->Read(i).value());
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(image->width, expected[i].width);
    EXPECT_EQ(image->height, expected[i].height);
    EXPECT_NEAR(image->pixels[0], expected[i].value, 2);
  }
  // What was small enough is the file itself.
  const auto kept = (*records)->Read(0).value();
  EXPECT_EQ(std::string(kept.begin(), kept.end()), Jpeg(30, 30, 30));
}

TEST_F(PackImagesTest, BadPicturesAreNamedOrSkipped) {
  const std::string bad = Write("in/ant/bad.jpg", Jpeg(64, 64, 1).substr(0, 300));
  Write("in/zebra/notes.txt", "text");
  PackOptions options = Options();
  ExpectRefused(options, bad + ": does not decode as JPEG");
  options.skip_bad = true;
  const auto figures = PackImages(options);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->packed, 4u);
  EXPECT_EQ(figures->skipped, 2u);
  EXPECT_THAT(figures->first_skipped, ElementsAre(HasSubstr("bad.jpg"), HasSubstr("notes.txt: neither a JPEG")));
}

TEST_F(PackImagesTest, InterruptedItLeavesNothing) {
  PackOptions options = Options();
  options.interrupted = [] { return true; };
  ExpectRefused(options, "interrupted", absl::StatusCode::kCancelled);
}

TEST_F(PackImagesTest, ReplacesWhatAKilledRunHasLeft) {
  fs::create_directories(directory_ / "out.part");
  Write("out.part/images-00000.packed", "half");
  ASSERT_TRUE(PackImages(Options()).ok());
  EXPECT_EQ(Left(), (std::set<std::string>{"in", "out"}));
  fs::create_directories(directory_ / "out.part");
  Write("out.part/thesis.tex", "precious");
  fs::remove_all(directory_ / "out");
  ExpectRefused(Options(), "thesis.tex is in it");
}

TEST_F(PackImagesTest, BadInput) {
  PackOptions options = Options();
  options.input = (directory_ / "nowhere").string();
  ExpectRefused(options, "nowhere is no folder", absl::StatusCode::kNotFound);
  options.input = (directory_ / "in/zebra").string();
  ExpectRefused(options, "has no folders in it");
  options = Options();
  options.shards = 5;
  ExpectRefused(options, "--shards: 5: give 1 to 4 for 4 pictures");
  fs::create_directories(directory_ / "in/empty");
  ExpectRefused(Options(), "empty: has no pictures");
  fs::remove(directory_ / "in/empty");
  fs::create_directories(directory_ / "in/h\xfchner");
  ExpectRefused(Options(), "is no UTF-8");
  fs::remove(directory_ / "in/h\xfchner");
  ASSERT_TRUE(PackImages(Options()).ok());
  ExpectRefused(Options(), "is there already");
}

TEST_F(PackImagesTest, NothingThatDecodesIsNoDataSet) {
  for (const char* name : {"in/zebra/a.jpg", "in/zebra/b.jpg", "in/ant/c.jpg", "in/ant/deep/d.jpg"}) Write(name, "text");
  PackOptions options = Options();
  options.skip_bad = true;
  ExpectRefused(options, "none of the 4 pictures");
}

}  // namespace
}  // namespace foreshard
