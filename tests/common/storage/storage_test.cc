#include "common/storage/storage.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/storage/faulty_storage.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PosixStorageTest : public ::testing::Test {
 protected:
  PosixStorageTest() { std::filesystem::remove_all(folder_); }
  ~PosixStorageTest() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> Names(const Storage& storage, absl::string_view folder = "") {
    std::vector<std::string> names;
    const auto listed = storage.List(folder).value();
    for (const StorageEntry& entry : listed) {
      names.push_back(entry.name + (entry.folder ? "/" : ""));
    }
    return names;
  }

  const std::string folder_ = ::testing::TempDir() + "storage_test." + std::to_string(getpid());
};

TEST_F(PosixStorageTest, WritesReadsListsAndCuts) {
  const auto storage = OpenStorage(folder_ + "/deep/er").value();
  auto file = storage->Create("a").value();
  const std::string one = "one", two = "two";
  ASSERT_TRUE(file->Append({AsBytes(one), ByteSpan(), AsBytes(two)}).ok());
  ASSERT_TRUE(file->Append({AsBytes("three")}).ok());
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_EQ(file->bytes(), 11u);
  ASSERT_TRUE(storage->SyncFolder("").ok());
  EXPECT_EQ(storage->Read("a").value(), "onetwothree");
  EXPECT_EQ(storage->ReadAt("a", 3, 3).value(), "two");
  EXPECT_EQ(storage->ReadAt("a", 9, 100).value(), "ee");
  EXPECT_EQ(storage->ReadAt("a", 100, 1).value(), "");
  EXPECT_EQ(storage->Size("a").value(), 11u);
  ASSERT_TRUE(storage->Truncate("a", 4).ok());
  EXPECT_EQ(storage->Read("a").value(), "onet");
  // What comes after the cut is at its end.
  ASSERT_TRUE(file->Append({AsBytes("!")}).ok());
  EXPECT_EQ(storage->Read("a").value(), "onet!");
  EXPECT_TRUE(storage->SyncFile("a").ok());
  EXPECT_TRUE(absl::IsNotFound(storage->SyncFile("no")));
  ASSERT_TRUE(storage->MakeFolder("sub").ok());
  ASSERT_TRUE(storage->Create("sub/b").ok());
  ASSERT_TRUE(storage->SyncFolder("sub").ok());
  ASSERT_TRUE(storage->Rename("sub", "other").ok());
  ASSERT_TRUE(storage->Rename("a", "z").ok());
  // The lock is not shown.
  EXPECT_THAT(Names(*storage), ElementsAre("other/", "z"));
  EXPECT_THAT(Names(*storage, "other"), ElementsAre("b"));
  EXPECT_TRUE(absl::IsFailedPrecondition(storage->RemoveFolder("other")));
  ASSERT_TRUE(storage->RemoveFolderWithFiles("other").ok());
  ASSERT_TRUE(storage->Remove("z").ok());
  EXPECT_THAT(Names(*storage), ElementsAre());
  EXPECT_GT(storage->FreeBytes().value(), 0u);
}

TEST_F(PosixStorageTest, ErrorsNameOperationPathAndReason) {
  const auto storage = OpenStorage(folder_).value();
  const auto text = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_TRUE(absl::IsNotFound(storage->Read("no").status()));
  EXPECT_THAT(text(storage->Read("no").status()),
              AllOf(HasSubstr(folder_ + "/no"), HasSubstr("No such file")));
  ASSERT_TRUE(storage->Create("a").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(storage->Create("a").status()));
  EXPECT_TRUE(absl::IsAlreadyExists(storage->MakeFolder("a")));
  EXPECT_TRUE(absl::IsNotFound(storage->Rename("no", "b")));
  EXPECT_TRUE(absl::IsNotFound(storage->Remove("no")));
  EXPECT_TRUE(absl::IsNotFound(storage->SyncFolder("no")));
  EXPECT_TRUE(absl::IsFailedPrecondition(storage->List("a").status())) << storage->List("a").status();
  ASSERT_TRUE(storage->MakeFolder("folder").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(storage->Rename("a", "folder/a")));
  EXPECT_TRUE(absl::IsFailedPrecondition(storage->Size("folder").status()));
  EXPECT_THAT(text(StorageError(ENOSPC, "append to", "/x/y")),
              AllOf(HasSubstr("cannot append to /x/y: No space left on device"), HasSubstr("free space")));
  EXPECT_THAT(text(StorageError(EROFS, "create", "/x")), HasSubstr("writable"));
  EXPECT_THAT(text(StorageError(EIO, "sync", "/x")), HasSubstr("dmesg"));
}

TEST_F(PosixStorageTest, PathsLeadNowhereElse) {
  const auto storage = OpenStorage(folder_).value();
  for (const char* path : {"..", "../x", "a/../b", "/etc", "a//b", "a/", ".", ".lock"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(storage->Create(path).status())) << path;
    EXPECT_TRUE(absl::IsInvalidArgument(storage->Read(path).status())) << path;
    EXPECT_TRUE(absl::IsInvalidArgument(storage->Remove(path))) << path;
    EXPECT_TRUE(absl::IsInvalidArgument(storage->Rename("a", path))) << path;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(CheckStoragePath(std::string(201, 'x'))));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckStoragePath(std::string("a\0b", 3))));
}

// A pipe has nobody at its other end, ever.
TEST_F(PosixStorageTest, WhatIsNoFileIsSaidAndNeverWaitedFor) {
  const auto storage = OpenStorage(folder_).value();
  ASSERT_EQ(mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  ASSERT_TRUE(storage->MakeFolder("folder").ok());
  for (const std::string name : {"pipe", "folder"}) {
    for (const absl::Status& status :
         {storage->ReadAt(name, 0, 10).status(), storage->Read(name).status(), storage->Size(name).status(),
          storage->SyncFile(name)}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ + "/" + name));
    }
    EXPECT_FALSE(storage->Truncate(name, 0).ok());
  }
}

TEST_F(PosixStorageTest, OneProcessOwnsAFolderAndAnybodyReads) {
  EXPECT_TRUE(absl::IsNotFound(OpenStorageToRead(folder_).status()));
  {
    const auto storage = OpenStorage(folder_).value();
    const auto second = OpenStorage(folder_);
    EXPECT_TRUE(absl::IsUnavailable(second.status()));
    EXPECT_THAT(std::string(second.status().message()),
                HasSubstr(folder_ + " is in use by another process"));
    EXPECT_TRUE(OpenStorageToRead(folder_).ok());
  }
  {
    // Readers that nobody may write beside; others may read.
    const auto reader = OpenStorageToRead(folder_, Others::kMustNotWrite);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_TRUE(OpenStorageToRead(folder_, Others::kMustNotWrite).ok());
    EXPECT_TRUE(OpenStorageToRead(folder_).ok());
    EXPECT_TRUE(absl::IsUnavailable(OpenStorage(folder_).status()));
  }
  EXPECT_TRUE(OpenStorage(folder_).ok());
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_FALSE(OpenStorage(folder_ + "/file").ok());
}

// A name is in the folder above, so that this is what must be synced.
TEST_F(PosixStorageTest, NamesOfFoldersAreSafe) {
  std::filesystem::create_directories(folder_);
  std::vector<std::string> synced;
  const auto sync = [&](const std::string& folder) {
    synced.push_back(folder);
    return absl::OkStatus();
  };
  ASSERT_TRUE(internal::MakeFolders(folder_ + "/a/b/", sync).ok());
  EXPECT_TRUE(std::filesystem::is_directory(folder_ + "/a/b"));
  EXPECT_THAT(synced, ElementsAre(std::filesystem::path(folder_).parent_path().string(), folder_, folder_ + "/a"));
  // Who made it may have been killed before it was safe.
  synced.clear();
  ASSERT_TRUE(internal::MakeFolders(folder_ + "/a", sync).ok());
  EXPECT_THAT(synced, ElementsAre(folder_));
  const auto refuse = [](const std::string&) { return absl::PermissionDeniedError("not yours"); };
  EXPECT_TRUE(internal::MakeFolders(folder_ + "/a", refuse).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(internal::MakeFolders(folder_ + "/a/new", refuse)));
  const auto fail = [](const std::string&) { return absl::DataLossError("the disk"); };
  EXPECT_TRUE(absl::IsDataLoss(internal::MakeFolders(folder_ + "/a", fail)));
}

// A limit on the size of files is a disk that is full after a part of an append.
TEST_F(PosixStorageTest, AFileThatFailedIsGivenUp) {
  const auto storage = OpenStorage(folder_).value();
  auto file = storage->Create("a").value();
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string text(70, 'x');
  const absl::Status fits = file->Append({AsBytes(text)});
  const absl::Status too_much = file->Append({AsBytes(text)});
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(fits.ok()) << fits;
  EXPECT_TRUE(absl::IsResourceExhausted(too_much)) << too_much;
  EXPECT_THAT(std::string(too_much.message()), HasSubstr("cannot append to " + folder_ + "/a"));
  EXPECT_EQ(storage->Size("a").value(), 100u);
  // The limit is gone, but nobody knows any more where the file ends.
  EXPECT_EQ(file->Append({AsBytes("x")}), too_much);
  EXPECT_EQ(file->Sync(), too_much);
  EXPECT_EQ(storage->Size("a").value(), 100u);
}

TEST(StorageFile, AFailedSyncIsNeverRetried) {
  FaultyStorage storage;
  auto file = storage.Create("a").value();
  ASSERT_TRUE(file->Append({AsBytes("x")}).ok());
  storage.RefuseNext(FaultyStorage::Kind::kSync, EIO);
  const absl::Status failed = file->Sync();
  EXPECT_TRUE(absl::IsDataLoss(failed));
  const uint64_t operations = storage.operations();
  EXPECT_EQ(file->Sync(), failed);
  EXPECT_EQ(file->Append({AsBytes("y")}), failed);
  EXPECT_EQ(storage.operations(), operations);  // the disk was not asked again
}

TEST(WritePieces, GoesOnAfterShortWritesAndInterruptions) {
  const std::string first = "abcdef", second = "ghi", third = "jklmnopq";
  const std::vector<ByteSpan> pieces = {AsBytes(first), ByteSpan(), AsBytes(second), AsBytes(third)};
  for (size_t most = 1; most <= 17; ++most) {
    std::string written;
    int calls = 0;
    const int error = internal::WritePieces(
        [&](const iovec* vector, int count) -> ssize_t {
          if (++calls % 3 == 0) {
            errno = EINTR;
            return -1;
          }
          size_t left = most;
          for (int k = 0; k < count && left > 0; ++k) {
            const size_t here = std::min(left, vector[k].iov_len);
            written.append(static_cast<const char*>(vector[k].iov_base), here);
            left -= here;
          }
          return static_cast<ssize_t>(most - left);
        },
        pieces);
    EXPECT_EQ(error, 0);
    EXPECT_EQ(written, "abcdefghijklmnopq");
  }
}

TEST(WritePieces, SaysWhatFailedAndNeverSpins) {
  const std::string text = "abc";
  const std::vector<ByteSpan> pieces = {AsBytes(text)};
  int calls = 0;
  EXPECT_EQ(internal::WritePieces(
                [&](const iovec*, int) -> ssize_t {
                  if (++calls == 1) return 1;
                  errno = ENOSPC;
                  return -1;
                },
                pieces),
            ENOSPC);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(internal::WritePieces([](const iovec*, int) -> ssize_t { return 0; }, pieces), EIO);
}

TEST(WritePieces, TakesMorePiecesThanTheKernelDoesAtOnce) {
  const std::vector<uint8_t> byte = {7};
  const std::vector<ByteSpan> pieces(3000, byte);
  size_t written = 0;
  int most = 0;
  EXPECT_EQ(internal::WritePieces(
                [&](const iovec*, int count) -> ssize_t {
                  most = std::max(most, count);
                  written += count;
                  return count;
                },
                pieces),
            0);
  EXPECT_EQ(written, 3000u);
  EXPECT_LE(most, 1024);
}

}  // namespace
}  // namespace foreshard
