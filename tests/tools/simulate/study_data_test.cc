#include "tools/simulate/study_data.h"

#include <filesystem>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_folder.h"
#include "tools/pack_text.h"
#include "worker/data/packed_records.h"

namespace foreshard {
namespace {

class StudyDataTest : public DataFolderTest {
 protected:
  StudyDataTest() : DataFolderTest("foreshard-study-data") {}
  void SetUp() override {
    DataFolderTest::SetUp();
    Write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n");
    job_.mutable_training()->set_batch_size(1);
    job_.mutable_data()->set_directory(directory_);
    job_.mutable_data()->set_format("tokens");
    job_.mutable_data()->set_mask_fraction(0.15f);
    job_.mutable_data()->set_train_tokens("train");
    job_.mutable_data()->set_test_tokens("test");
  }
  void Pack(const std::string& folder, const std::string& text, uint32_t sequence = 8) {
    std::filesystem::remove_all(directory_ / folder);
    PackTextOptions options{.inputs = {Write("text.txt", text)},
                            .vocabulary = directory_ / "vocab.txt",
                            .output = directory_ / folder,
                            .sequence = sequence};
    ASSERT_TRUE(PackText(options).ok());
  }
  uint64_t Checksum() {
    StudyData data;
    const absl::Status added = data.Add(job_);
    EXPECT_TRUE(added.ok()) << added;
    return added.ok() ? data.Of(job_).checksum : 0;
  }
  v1::JobSpec job_;
};

TEST_F(StudyDataTest, PackedTextThatChangesIsKnown) {
  std::set<uint64_t> known;
  Pack("train", "a b c a b c a");
  Pack("test", "a b");
  const uint64_t first = Checksum();
  known.insert(first);
  Pack("test", "b a");
  EXPECT_TRUE(known.insert(Checksum()).second);
  Pack("train", "c b c a b c a");
  EXPECT_TRUE(known.insert(Checksum()).second);
  Pack("train", "a b c a b c a");
  Pack("test", "a b");
  EXPECT_EQ(Checksum(), first);
}

TEST_F(StudyDataTest, TestTextMustFit) {
  Pack("train", "a b c a b c a");
  Pack("test", "a b", 16);
  StudyData data;
  const absl::Status refused = data.Add(job_);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("sequences of 16 tokens, not 8"));
}

TEST_F(StudyDataTest, PackedPicturesThatChangeAreKnown) {
  job_.mutable_data()->set_format("packed");
  job_.mutable_data()->clear_train_tokens();
  job_.mutable_data()->clear_test_tokens();
  job_.mutable_data()->set_train_packed("train");
  job_.mutable_data()->set_test_packed("test");
  job_.mutable_data()->set_classes(1);
  job_.mutable_data()->set_image_side(8);
  job_.mutable_data()->set_least_area(1);
  const auto pack = [&](const std::string& folder, const std::string& picture) {
    std::filesystem::create_directories(directory_ / folder);
    PackedIndex index{.size = 8, .classes = {"one"}, .shard_bytes = {PackedShardHeader(0).size() + picture.size()}};
    index.records.push_back({.offset = PackedShardHeader(0).size(),
                             .checksum = foreshard::Checksum(AsBytes(picture)),
                             .bytes = static_cast<uint32_t>(picture.size())});
    Write(folder + "/" + PackedShardName(0), PackedShardHeader(0) + picture);
    Write(folder + "/" + kPackedIndexName, PrintPackedIndex(index));
  };
  pack("train", "one picture");
  pack("test", "another one");
  const uint64_t first = Checksum();
  pack("test", "another two");
  const uint64_t second = Checksum();
  EXPECT_NE(second, first);
  pack("train", "two picture");
  EXPECT_NE(Checksum(), second);
}

}  // namespace
}  // namespace foreshard
