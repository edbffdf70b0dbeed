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

TEST(JobSetup, CifarAugmentsTrainingOnly) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("job_setup_cifar." + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  v1::JobSpec job;
  v1::DataSpec& data = *job.mutable_data();
  data.set_format("cifar10");
  data.set_directory(folder);
  data.add_train_files("a.bin");
  data.add_train_files("b.bin");
  data.add_test_files("b.bin");
  data.set_classes(10);
  data.set_crop_padding(4);
  data.set_flip(true);
  for (float deviation : {0.5f, 0.25f, 0.125f}) data.add_channel_deviations(deviation);
  const auto write = [&](const char* name, char label, char pixel) {
    std::ofstream(folder / name, std::ios::binary) << label << std::string(3072, pixel);
  };
  write("a.bin", 3, '\0');
  write("b.bin", 7, '\xff');
  auto train = LoadTrainingData(job);
  ASSERT_TRUE(train.ok()) << train.status();
  auto test = LoadTestData(job);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_EQ((*train)->examples(), 2u);
  EXPECT_EQ((*test)->examples(), 1u);
  Batch moved, still;
  const std::vector<uint32_t> second(50, 1), first(50, 0);
  EXPECT_TRUE((*train)->Gather(second, 5, &moved).ok());
  EXPECT_TRUE((*test)->Gather(first, 5, &still).ok());
  EXPECT_EQ(moved.labels, still.labels);
  EXPECT_NE(moved.inputs, still.inputs);  // black comes in at the edges
  for (size_t i = 0; i < still.inputs.size(); ++i) {
    ASSERT_EQ(still.inputs[i], i % 3 == 0 ? 2 : i % 3 == 1 ? 4 : 8);
  }
  job.mutable_training()->set_batch_size(2);
  EXPECT_TRUE(LoadTrainingData(job).ok());
  job.mutable_training()->set_batch_size(3);
  EXPECT_EQ(LoadTrainingData(job).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(LoadTrainingData(job).status().message()),
              ::testing::HasSubstr("training.batch_size: 3: is more than the 2 examples"));
  EXPECT_TRUE(LoadTestData(job).ok());

  write("b.bin", 10, '\0');
  const absl::Status status = LoadTestData(job).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr((folder / "b.bin").string()));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace foreshard
