#include "tools/files.h"

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "files_test." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(FilesTest, WritesWholeFilesOverOldOnes) {
  const std::string path = folder_ + "/file";
  ASSERT_TRUE(WriteFileAtomically(path, "first, and longer").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "second").ok());
  EXPECT_EQ(ReadFile(path).value(), "second");
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

TEST_F(FilesTest, TakesThePlaceOfFilesOnly) {
  const std::string pipe = folder_ + "/pipe", link = folder_ + "/link", folder = folder_ + "/folder";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_directory(folder);
  ASSERT_EQ(symlink(pipe.c_str(), link.c_str()), 0);
  for (const std::string& path : {pipe, link, folder}) {
    const absl::Status status = WriteFileAtomically(path, "x");
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_TRUE(CheckReplaceable(folder_ + "/none").ok());
  // The file that a link leads to is not what is replaced, but may be.
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/file", "x").ok());
  EXPECT_TRUE(CheckReplaceable(folder_ + "/file").ok());
}

TEST_F(FilesTest, AFolderThatIsNotThereIsNamed) {
  const absl::Status status = WriteFileAtomically(folder_ + "/no/file", "x");
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/file"));
  EXPECT_FALSE(ReadFile(folder_ + "/no/file").ok());
}

TEST_F(FilesTest, PrepareFolderMakesItAndLeavesItEmpty) {
  ASSERT_TRUE(PrepareFolder(folder_ + "/a/b").ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/a/b"));
}

TEST_F(FilesTest, PrepareFolderRefusesAFileInItsPlace) {
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/file", "x").ok());
  const absl::Status status = PrepareFolder(folder_ + "/file");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ + "/file"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--results"));
}

TEST_F(FilesTest, AFullDiskIsAnErrorAndKeepsTheOldFile) {
  const std::string disk = folder_ + "/disk";
  std::filesystem::create_directories(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "needs the right to mount a small tmpfs";
  }
  ASSERT_TRUE(WriteFileAtomically(disk + "/file", "old").ok());
  const absl::Status status = WriteFileAtomically(disk + "/file", std::string(1 << 20, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReadFile(disk + "/file").value(), "old");
  EXPECT_FALSE(std::filesystem::exists(disk + "/file.part"));
  const absl::Status folder = PrepareFolder(disk + "/results");
  EXPECT_TRUE(absl::IsResourceExhausted(folder)) << folder;
  umount(disk.c_str());
}

TEST_F(FilesTest, AFolderIsLockedOnceAtATime) {
  {
    const absl::StatusOr<FolderLock> first = FolderLock::Take(folder_);
    ASSERT_TRUE(first.ok()) << first.status();
    const absl::StatusOr<FolderLock> second = FolderLock::Take(folder_);
    ASSERT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(folder_ + " is in use"));
    EXPECT_THAT(std::string(second.status().message()), HasSubstr("--results"));
  }
  EXPECT_TRUE(FolderLock::Take(folder_).ok());
  EXPECT_TRUE(absl::IsNotFound(FolderLock::Take(folder_ + "/no").status()));
}

TEST_F(FilesTest, LastLinesOfShortAndLongFiles) {
  const std::string path = folder_ + "/log";
  EXPECT_THAT(LastLines(path, 3), IsEmpty());
  ASSERT_TRUE(WriteFileAtomically(path, "").ok());
  EXPECT_THAT(LastLines(path, 3), IsEmpty());
  ASSERT_TRUE(WriteFileAtomically(path, "one\ntwo\nthree").ok());
  EXPECT_THAT(LastLines(path, 2), ElementsAre("two", "three"));
  EXPECT_THAT(LastLines(path, 9), ElementsAre("one", "two", "three"));
  ASSERT_TRUE(WriteFileAtomically(path, std::string(20000, 'x') + "\nlast\n").ok());
  EXPECT_THAT(LastLines(path, 9), ElementsAre("last"));
}

TEST_F(FilesTest, ExecutableFolderHoldsThisTest) {
  EXPECT_TRUE(std::filesystem::exists(ExecutableFolder() + "/tools_tests"));
}

}  // namespace
}  // namespace foreshard
