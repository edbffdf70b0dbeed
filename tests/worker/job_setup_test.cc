#include "worker/job_setup.h"

#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

// Damaged data is the user's to replace: INVALID_ARGUMENT, which ends a program
// with status 2, with the file named.
TEST(JobSetup, DamagedDataIsBadConfiguration) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("job_setup_test." + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  v1::JobSpec job;
  job.mutable_data()->set_format("idx");
  job.mutable_data()->set_directory(folder);
  job.mutable_data()->set_train_images("images");
  job.mutable_data()->set_train_labels("labels");
  job.mutable_data()->set_classes(10);
  const auto write = [&](const char* name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
  };
  const std::string images_header({0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1});
  write("labels", std::string({0, 0, 8, 1, 0, 0, 0, 2, 3, 4}));
  write("images", images_header + "ab");
  EXPECT_TRUE(LoadTrainingData(job).ok()) << LoadTrainingData(job).status();
  for (const std::string& damaged :
       {images_header + "a", images_header + "abc", std::string(), std::string("\x1f\x8b\x08 cut")}) {
    write("images", damaged);
    const absl::Status status = LoadTrainingData(job).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr((folder / "images").string()));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace foreshard
