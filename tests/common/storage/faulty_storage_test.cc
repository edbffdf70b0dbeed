// That the double does what it says: everything safe is always found, and everything else
// is found in every way that was announced.
#include "tests/common/storage/faulty_storage.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kSeeds = 1500;

std::string Names(const Storage& storage, absl::string_view folder = "") {
  std::string names;
  const auto listed = storage.List(folder).value();
  for (const StorageEntry& entry : listed) {
    absl::StrAppend(&names, names.empty() ? "" : " ", entry.name, entry.folder ? "/" : "");
  }
  return names;
}

void Append(StorageFile& file, const std::string& text) { ASSERT_TRUE(file.Append({AsBytes(text)}).ok()); }

TEST(FaultyStorage, WhatIsSafeIsAlwaysFoundAndTheRestTornAnywhere) {
  FaultyStorage storage;
  auto file = storage.Create("a").value();
  Append(*file, "safe");
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(storage.SyncFolder("").ok());
  Append(*file, "one");
  Append(*file, "two");
  std::set<std::string> found;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    found.insert(storage.CutPower(seed)->Read("a").value());
    EXPECT_EQ(storage.CutPower(seed)->Read("a").value(), storage.CutPower(seed)->Read("a").value());
  }
  for (const std::string& content : found) EXPECT_THAT(content, StartsWith("safe"));
  // Nothing, all, cut at any byte, and the second without the first.
  for (const char* content :
       {"safe", "safeo", "safeon", "safeone", "safeonet", "safeonetw", "safeonetwo"}) {
    EXPECT_THAT(found, Contains(content));
  }
  EXPECT_THAT(found, Contains(std::string("safe\0\0\0two", 10)));
  EXPECT_THAT(found, Contains(std::string("safeo\0\0two", 10)));
  // The running process sees all of it, and so does one that follows a killed one.
  EXPECT_EQ(storage.Read("a").value(), "safeonetwo");
  EXPECT_EQ(storage.KillProcess()->Read("a").value(), "safeonetwo");
}

TEST(FaultyStorage, AKilledProcessMakesNothingSafe) {
  FaultyStorage storage;
  auto file = storage.Create("a").value();
  Append(*file, "text");
  const auto killed = storage.KillProcess();
  std::set<std::string> found;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto cut = killed->CutPower(seed);
    found.insert(Names(*cut) == "a" ? cut->Read("a").value() : "none");
  }
  EXPECT_THAT(found, Contains("none"));
  EXPECT_THAT(found, Contains(""));
  EXPECT_THAT(found, Contains("text"));
  ASSERT_TRUE(killed->SyncFile("a").ok());
  ASSERT_TRUE(killed->SyncFolder("").ok());
  for (uint64_t seed = 0; seed < kSeeds; ++seed)
    EXPECT_EQ(killed->CutPower(seed)->Read("a").value(), "text");
}

TEST(FaultyStorage, FilesAreLostEachByItself) {
  FaultyStorage storage;
  auto first = storage.Create("1").value(), second = storage.Create("2").value();
  ASSERT_TRUE(storage.SyncFolder("").ok());
  Append(*first, "x");
  Append(*second, "y");
  std::set<std::string> found;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto cut = storage.CutPower(seed);
    found.insert(cut->Read("1").value() + cut->Read("2").value());
  }
  EXPECT_EQ(found, (std::set<std::string>{"", "x", "y", "xy"}));
}

TEST(FaultyStorage, ChangesOfAFolderAreUndoneUntilItIsSynced) {
  FaultyStorage storage;
  ASSERT_TRUE(storage.Create("old").ok());
  ASSERT_TRUE(storage.SyncFolder("").ok());
  ASSERT_TRUE(storage.Create("part").ok());
  ASSERT_TRUE(storage.Rename("part", "new").ok());
  ASSERT_TRUE(storage.Remove("old").ok());
  EXPECT_EQ(Names(storage), "new");
  std::set<std::string> found;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) found.insert(Names(*storage.CutPower(seed)));
  // None, one, two or all of them in order; and any of them.
  EXPECT_EQ(found, (std::set<std::string>{"old", "old part", "new old", "new", "", "part"}));
  ASSERT_TRUE(storage.SyncFolder("").ok());
  for (uint64_t seed = 0; seed < kSeeds; ++seed) EXPECT_EQ(Names(*storage.CutPower(seed)), "new");
}

TEST(FaultyStorage, FoldersMoveWithWhatIsInThem) {
  FaultyStorage storage;
  ASSERT_TRUE(storage.MakeFolder("part").ok());
  auto file = storage.Create("part/a").value();
  Append(*file, "text");
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(storage.SyncFolder("part").ok());
  ASSERT_TRUE(storage.Rename("part", "whole").ok());
  std::set<std::string> found;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto cut = storage.CutPower(seed);
    found.insert(Names(*cut));
    const auto listed = cut->List("").value();
    for (const StorageEntry& entry : listed) {
      EXPECT_EQ(cut->Read(entry.name + "/a").value(), "text");
    }
  }
  EXPECT_EQ(found, (std::set<std::string>{"", "part/", "whole/"}));
  EXPECT_TRUE(absl::IsFailedPrecondition(storage.RemoveFolder("whole")));
  ASSERT_TRUE(storage.RemoveFolderWithFiles("whole").ok());
  EXPECT_EQ(Names(storage), "");
}

TEST(FaultyStorage, RefusesFromAnOperationOn) {
  for (const auto& [error, code] : {std::pair{ENOSPC, absl::StatusCode::kResourceExhausted},
                                    std::pair{EROFS, absl::StatusCode::kPermissionDenied},
                                    std::pair{EIO, absl::StatusCode::kDataLoss}}) {
    FaultyStorage storage;
    storage.RefuseFrom(3, error);
    auto file = storage.Create("a").value();
    Append(*file, "1234");
    const absl::Status refused = file->Append({AsBytes("5678")});
    EXPECT_EQ(refused.code(), code);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("/faulty/a"));
    // A part of it got there.
    EXPECT_EQ(storage.Read("a").value(), "123456");
    EXPECT_EQ(storage.Create("b").status().code(), code);
    EXPECT_EQ(storage.SyncFolder("").code(), code);
    EXPECT_EQ(storage.operations(), 5u);
  }
}

TEST(FaultyStorage, AFullDiskTakesWhatFits) {
  FaultyStorage storage;
  storage.LimitBytes(5);
  auto file = storage.Create("a").value();
  Append(*file, "123");
  EXPECT_EQ(storage.FreeBytes().value(), 2u);
  EXPECT_TRUE(absl::IsResourceExhausted(file->Append({AsBytes("45678")})));
  EXPECT_EQ(storage.Read("a").value(), "12345");
}

TEST(FaultyStorage, ASyncThatFailsMakesNothingSafe) {
  FaultyStorage storage;
  auto file = storage.Create("a").value();
  ASSERT_TRUE(storage.SyncFolder("").ok());
  Append(*file, "text");
  storage.RefuseNext(FaultyStorage::Kind::kSync, EIO);
  EXPECT_TRUE(absl::IsDataLoss(file->Sync()));
  std::set<std::string> found;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) found.insert(storage.CutPower(seed)->Read("a").value());
  EXPECT_THAT(found, Contains(""));
}

TEST(FaultyStorage, WatchersSeeEveryOperation) {
  FaultyStorage storage;
  std::vector<std::string> seen;
  storage.BeforeEach(
      [&](const FaultyStorage::Operation& operation) { seen.push_back("before " + operation.path); });
  storage.AfterEach([&](const FaultyStorage::Operation& operation) {
    // The state may be taken from within.
    EXPECT_EQ(storage.KillProcess()->operations(), 0u);
    seen.push_back(absl::StrCat("after ", operation.number, " ", operation.path));
  });
  storage.Delay(absl::Milliseconds(1));
  auto file = storage.Create("a").value();
  Append(*file, "x");
  EXPECT_EQ(seen, (std::vector<std::string>{"before a", "after 1 a", "before a", "after 2 a"}));
}

}  // namespace
}  // namespace foreshard
