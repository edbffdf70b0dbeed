// Servers in this process that keep their state, and what one would leave that is killed now.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "foreshard/v1/admin.grpc.pb.h"
#include "tests/server/server_harness.h"

namespace foreshard {

class DurabilityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(::testing::TempDir(), "/durability.", getpid(), ".",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  // What a process that is killed now would leave. Its journal has all that was acknowledged.
  // Its threads go on meanwhile, with a checkpoint perhaps: copied again until nothing has changed.
  std::string KilledNow(const std::string& name) {
    const std::string copy = Path(absl::StrCat("copy", ++copies_));
    std::error_code error;
    std::vector<std::string> before;
    do {
      before = FilesOf(Path(name));
      std::filesystem::remove_all(copy);
      std::filesystem::copy(Path(name), copy, std::filesystem::copy_options::recursive, error);
    } while (error || FilesOf(Path(name)) != before);
    return copy;
  }

  struct Running {
    explicit Running(const v1::JobSpec& job, const std::string& folder) : servers(job, TestSchema(), nullptr, folder) {}
    std::vector<std::string> Saved() const { return servers.servers[0]->SaveSegments(); }
    TestServers servers;
  };
  std::unique_ptr<Running> Start(const v1::JobSpec& job, const std::string& folder) {
    return std::make_unique<Running>(job, folder);
  }

  static absl::StatusOr<v1::CheckpointReply> Checkpoint(const Running& running, uint32_t shard = 0) {
    grpc::ClientContext context;
    v1::CheckpointReply reply;
    const grpc::Status status =
        v1::Admin::NewStub(running.servers.channels[shard])->Checkpoint(&context, {}, &reply);
    if (!status.ok()) return FromGrpc(status);
    return reply;
  }

  // Names and sizes of all that lies in a folder; those that vanish meanwhile are left out.
  static std::vector<std::string> FilesOf(const std::string& folder) {
    std::vector<std::string> files;
    std::error_code error;
    for (std::filesystem::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      std::error_code gone;
      const uint64_t bytes = it->is_regular_file(gone) ? it->file_size(gone) : 0;
      if (!gone) files.push_back(absl::StrCat(it->path().string(), " ", bytes));
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  std::string folder_;
  int copies_ = 0;
};

}  // namespace foreshard
