// A checkpoint on a real disk, read by programs that know nothing of ours.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint_files.h"
#include "tools/files.h"
#include "tools/process.h"

namespace foreshard {
namespace {

class CheckpointOnDisk : public ::testing::Test {
 protected:
  CheckpointOnDisk() { std::filesystem::remove_all(folder_); }
  ~CheckpointOnDisk() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ = ::testing::TempDir() + "checkpoint_on_disk." + std::to_string(getpid());
};

TEST_F(CheckpointOnDisk, PythonReadsTheParameters) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "there is no python3";
  const Schema schema = Schema::Create({{"conv.weight", {8, 3, 3, 4}, TensorKind::kTrainable, true},
                                        {"conv.bias", {8}, TensorKind::kTrainable, false},
                                        {"dense.weight", {10, 100}, TensorKind::kTrainable, true},
                                        {"bn.mean", {8}, TensorKind::kStatistic, false}})
                            .value();
  const ShardPlan plan =
      ShardPlan::Create(schema, {.shards = 2, .segment_elements = 256, .block_elements = 64}).value();
  for (uint32_t shard = 0; shard < 2; ++shard) {
    const auto storage = OpenStorage(absl::StrCat(folder_, "/", shard)).value();
    const StateIdentity identity = {.protocol = 3, .shard = shard, .shards = 2};
    const auto writer =
        CheckpointWriter::Begin(storage.get(), {.identity = identity, .step = 12}, schema, plan).value();
    for (const uint32_t id : plan.SegmentsOfShard(shard)) {
      const SegmentPlan& segment = plan.segments()[id];
      std::vector<float> theta(segment.elements);
      for (uint64_t k = 0; k < theta.size(); ++k) theta[k] = static_cast<float>(segment.begin + k);
      ASSERT_TRUE(writer->AddSegment(id, 1, theta, "state").ok());
    }
    const auto committed = writer->Commit(1);
    ASSERT_TRUE(committed.ok()) << committed.status();
    EXPECT_TRUE(Checkpoint::OpenNewest(*storage, identity).ok());
    // The manifest is JSON that anybody reads.
    const std::string checkpoint = absl::StrCat(folder_, "/", shard, "/", committed->name);
    const auto manifest =
        nlohmann::json::parse(ReadFile(checkpoint + "/manifest.json").value(), nullptr, false);
    EXPECT_EQ(manifest["step"], 12);

    const auto process = Process::Start(
        {.program = "/usr/bin/env",
         .arguments = {"python3", FORESHARD_SOURCE_DIR "/tests/end_to_end/read_safetensors.py",
                       absl::StrCat(checkpoint, "/", ParametersFileName(shard, 2))},
         .log_path = folder_ + "/output"});
    ASSERT_TRUE(process.ok()) << process.status();
    const std::optional<ProcessExit> exit = (*process)->Wait(absl::Seconds(60));
    const std::string output = ReadFile(folder_ + "/output").value();
    ASSERT_TRUE(exit.has_value() && exit->signal == 0 && exit->status == 0) << output;
    const auto read = nlohmann::json::parse(output, nullptr, false);
    ASSERT_FALSE(read.is_discarded()) << output;
    EXPECT_EQ(read["metadata"]["format"], "pt");
    EXPECT_EQ(read["metadata"]["foreshard.step"], "12");
    const std::vector<SafetensorsTensor> tensors = ShardTensors(schema, plan, shard);
    ASSERT_EQ(read["tensors"].size(), tensors.size());
    double at = static_cast<double>(plan.segments()[plan.SegmentsOfShard(shard).front()].begin);
    for (const SafetensorsTensor& tensor : tensors) {
      const nlohmann::json& found = read["tensors"][tensor.name];
      EXPECT_EQ(found["shape"], nlohmann::json(tensor.shape)) << tensor.name;
      uint64_t elements = 1;
      for (const uint64_t dimension : tensor.shape) elements *= dimension;
      EXPECT_EQ(found["first"], at);
      EXPECT_EQ(found["last"], at + static_cast<double>(elements - 1));
      at += static_cast<double>(elements);
    }
  }
}

}  // namespace
}  // namespace foreshard
