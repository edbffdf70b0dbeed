#include "worker/data/packed_records.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_folder.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

PackedIndex MakeIndex() {
  const auto record = [](uint64_t offset, const std::string& bytes, uint32_t label, uint32_t shard) {
    return PackedRecord{offset, Checksum(AsBytes(bytes)), static_cast<uint32_t>(bytes.size()), label, shard};
  };
  PackedIndex index{.size = 256, .classes = {"cat", "h\xc3\xbchner"}};
  index.records = {record(16, "first", 0, 0), record(21, "second", 1, 0), record(16, "third", 1, 1)};
  index.shard_bytes = {27, 21};
  return index;
}

class PackedRecordsTest : public DataFolderTest {
 protected:
  PackedRecordsTest() : DataFolderTest("foreshard-packed") {}
  void SetUp() override {
    DataFolderTest::SetUp();
    WriteAll();
  }
  void WriteAll() {
    Write(kPackedIndexName, PrintPackedIndex(MakeIndex()));
    Write(PackedShardName(0), PackedShardHeader(0) + "firstsecond");
    Write(PackedShardName(1), PackedShardHeader(1) + "third");
  }
  absl::Status Opened() { return PackedRecords::Open(directory_.string()).status(); }
  void ExpectError(absl::StatusCode code, const std::string& text) {
    const absl::Status status = Opened();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_THAT(std::string(status.message()), HasSubstr(directory_.string()));
  }
};

TEST_F(PackedRecordsTest, ReadsByNumber) {
  const auto records = PackedRecords::Open(directory_.string());
  ASSERT_TRUE(records.ok()) << records.status();
  const char* const texts[] = {"first", "second", "third"};
  for (uint64_t i : {2, 0, 1}) {
    const auto bytes = (*records)->Read(i);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(std::string(bytes->begin(), bytes->end()), texts[i]);
  }
  EXPECT_EQ((*records)->index().classes[1], "h\xc3\xbchner");
  EXPECT_EQ((*records)->index().size, 256u);
}

TEST_F(PackedRecordsTest, ADamagedRecordIsNamed) {
  Write(PackedShardName(0), PackedShardHeader(0) + "firstsecXnd");
  const auto records = PackedRecords::Open(directory_.string());
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_TRUE((*records)->Read(0).ok());
  const absl::Status status = (*records)->Read(1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("images-00000.packed: record 1 (class 'h\xc3\xbchner', 6 bytes at 21) does not have its checksum"));
}

TEST_F(PackedRecordsTest, ShardsMustBeWhole) {
  Write(PackedShardName(1), PackedShardHeader(1) + "thir");
  ExpectError(absl::StatusCode::kDataLoss, "images-00001.packed: has 20 bytes, the index says 21: it is cut off");
  Write(PackedShardName(1), PackedShardHeader(1) + "third!");
  ExpectError(absl::StatusCode::kDataLoss, "has 22 bytes, the index says 21");
  Write(PackedShardName(1), PackedShardHeader(0) + "third");
  ExpectError(absl::StatusCode::kInvalidArgument, "is not shard 1");
  std::filesystem::remove(directory_ / PackedShardName(1));
  ExpectError(absl::StatusCode::kNotFound, "images-00001.packed: can't be read");
}

TEST_F(PackedRecordsTest, TheIndexMustBeWhole) {
  const std::string good = PrintPackedIndex(MakeIndex());
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    Write(kPackedIndexName, good.substr(0, bytes));
    const absl::Status status = Opened();
    EXPECT_FALSE(status.ok()) << bytes;
  }
  for (size_t at = 0; at < good.size(); ++at) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_FALSE(ParsePackedIndex(damaged, "index").ok()) << at;
  }
  std::filesystem::remove(directory_ / kPackedIndexName);
  ExpectError(absl::StatusCode::kNotFound, "foreshard pack-images makes such a folder");
}

// With a checksum that is right, so that every check behind it is reached.
TEST(PackedIndex, WhatItClaimsIsChecked) {
  const auto problem = [](auto change) {
    PackedIndex index = MakeIndex();
    change(index);
    const auto parsed = ParsePackedIndex(PrintPackedIndex(index), "index");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << parsed.status();
    return std::string(parsed.status().message());
  };
  EXPECT_TRUE(ParsePackedIndex(PrintPackedIndex(MakeIndex()), "index").ok());
  EXPECT_THAT(problem([](PackedIndex& index) { index.records[1].label = 2; }), HasSubstr("record 1 has the label 2 of 2"));
  EXPECT_THAT(problem([](PackedIndex& index) { index.records[1].shard = 2; }), HasSubstr("record 1 lies in shard 2 of 2"));
  EXPECT_THAT(problem([](PackedIndex& index) { index.records[1].bytes = 7; }), HasSubstr("record 1 has 7 bytes at 21"));
  EXPECT_THAT(problem([](PackedIndex& index) { index.records[0].offset = 8; }), HasSubstr("record 0 has"));
  EXPECT_THAT(problem([](PackedIndex& index) { index.records[0].offset = ~0ull; }), HasSubstr("record 0 has"));
  EXPECT_THAT(problem([](PackedIndex& index) { index.records.clear(); }), HasSubstr("0 records"));
  EXPECT_THAT(problem([](PackedIndex& index) { index.classes[1] = "cat"; }), HasSubstr("two classes are named 'cat'"));
  EXPECT_THAT(problem([](PackedIndex& index) { index.classes[1] = "h\xfchner"; }), HasSubstr("no UTF-8"));
  EXPECT_THAT(std::string(ParsePackedIndex("no index at all", "x").status().message()), HasSubstr("x: is no index"));
}

}  // namespace
}  // namespace foreshard
