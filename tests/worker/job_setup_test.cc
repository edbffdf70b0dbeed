#include "worker/job_setup.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_folder.h"
#include "worker/data/token_records.h"

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
  auto test = LoadTestData(job, **train);
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
  EXPECT_TRUE(LoadTestData(job, **train).ok());

  write("b.bin", 10, '\0');
  const absl::Status status = LoadTestData(job, **train).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr((folder / "b.bin").string()));
  std::filesystem::remove_all(folder);
}

class TextData : public DataFolderTest {
 protected:
  TextData() : DataFolderTest("job_setup_text") {}
  void SetUp() override {
    DataFolderTest::SetUp();
    job_.mutable_data()->set_format("tokens");
    job_.mutable_data()->set_directory(directory_);
    job_.mutable_data()->set_train_tokens("train");
    job_.mutable_data()->set_test_tokens("test");
    job_.mutable_data()->set_mask_fraction(0.15f);
  }
  // Two sequences of the words a and b.
  void Pack(const std::string& folder, uint32_t sequence, bool pairs, const std::string& words = "a\nb\n") {
    const std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + words;
    const TokenIndex index{.sequence = sequence,
                           .vocabulary = static_cast<uint32_t>(5 + words.size() / 2),
                           .pairs = pairs,
                           .vocabulary_checksum = Checksum(AsBytes(vocabulary)),
                           .records = {2}};
    std::filesystem::create_directories(directory_ / folder);
    Write(folder + "/vocab.txt", vocabulary);
    const std::string record = PrintTokenRecord(index, {.second = 4, .words = 2, .tokens = {2, 5, 6, 3}});
    Write(folder + "/" + TokenShardName(0), TokenShardHeader(index, 0) + record + record);
    Write(folder + "/index.tokens", PrintTokenIndex(index));
  }
  v1::JobSpec job_;
};

TEST_F(TextData, OfTestsMustFitThatOfTraining) {
  Pack("train", 8, false);
  Pack("test", 8, false);
  const auto train = LoadTrainingData(job_);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_TRUE(LoadTestData(job_, **train).ok());
  const auto expect_refused = [&](const std::string& what) {
    const absl::Status status = LoadTestData(job_, **train).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr((directory_ / "train").string()));
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr((directory_ / "test").string()));
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(what));
  };
  Pack("test", 16, false);
  expect_refused("sequences of 16 tokens, not 8");
  Pack("test", 8, false, "b\na\n");
  expect_refused("another vocabulary (7 tokens, ");
  Pack("test", 8, true);
  expect_refused("packed with --pairs, not without");
}

TEST_F(TextData, IsKnownByVocabularySequenceAndPairs) {
  std::set<uint64_t> identities = {0};
  const auto identity = [&] { return DataIdentity(**LoadTrainingData(job_)); };
  Pack("train", 8, false);
  const uint64_t first = identity();
  identities.insert(first);
  Pack("train", 16, false);
  identities.insert(identity());
  Pack("train", 8, true);
  identities.insert(identity());
  Pack("train", 8, false, "b\na\n");
  identities.insert(identity());
  EXPECT_EQ(identities.size(), 5u);
  Pack("train", 8, false);
  EXPECT_EQ(identity(), first);
  EXPECT_EQ(DataIdentity(*MakeSyntheticDataset(10, {8, 1, 1}, 3)), 0u);
}

TEST(JobSetup, TextIsComputedInMicroBatches) {
  v1::JobSpec job;
  job.mutable_training()->set_batch_size(512);
  job.mutable_training()->set_micro_batches(64);
  job.mutable_model()->set_name("bert_base");
  EXPECT_EQ(LargestBatch(job), 8u);
  job.mutable_model()->set_name("resnet20");  // evaluation recalibrates on whole batches
  EXPECT_EQ(LargestBatch(job), 512u);
}

// The paper's settings on the model that they are for: its patterns find tensors, and a block of the
// codec is a row of a table.
TEST(JobSetup, BertJobsFitTheirModels) {
  auto device = kernels::MakeDevice("cpu").value();
  for (const char* name : {"bert_base", "bert_large"}) {
    SCOPED_TRACE(name);
    const auto job = LoadJobSpec(absl::StrCat(FORESHARD_SOURCE_DIR "/deploy/jobs/", name, "_apmsqueeze.textproto"), {});
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->training().workers() * job->training().batch_size(), 4096u);
    EXPECT_TRUE(job->training().has_clip_norm());
    ModelOptions options{.name = job->model().name(), .input = {128, 1, 1}, .classes = 30522, .batch_size = LargestBatch(*job)};
    EXPECT_LE(options.batch_size, 16u);
    options.text = {.targets = 19, .next_sentence = job->model().next_sentence()};
    const auto model = MakeModel(options, *device);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto plan = ShardPlan::Create((*model)->schema(), MakePlanOptions(*job));
    ASSERT_TRUE(plan.ok()) << plan.status();
    uint64_t full = 0, all = 0;
    for (const SegmentPlan& segment : plan->segments()) {
      for (const Block& block : segment.blocks) {
        all += block.elements;
        full += block.full ? block.elements : 0;
      }
    }
    EXPECT_EQ(all, (*model)->schema().trainable_elements());
    EXPECT_GT(full, 0u);
    EXPECT_LT(full, all / 200);
    for (const TensorSpec& tensor : (*model)->schema().tensors()) {
      if (tensor.name == "bert.embeddings.word_embeddings.weight") {
        EXPECT_EQ(tensor.shape[1], job->compression().block_elements());
      }
    }
  }
}

TEST(JobSetup, MemoryCountsWhatTheRuleKeeps) {
  auto device = kernels::MakeDevice("cpu").value();
  auto model = MakeModel({.name = "mlp", .input = {4, 4, 1}, .classes = 3, .widths = {5}, .batch_size = 2}, *device).value();
  const uint64_t trainable = model->schema().trainable_elements(), statistics = model->schema().statistic_elements();
  v1::JobSpec job;
  job.mutable_compression()->set_push("none");
  const auto vectors = [&](const char* rule) {
    job.mutable_update()->set_rule(rule);
    const WorkerMemory memory = MemoryOf(job, *model);
    EXPECT_EQ(memory.vectors_bytes, 4 * (memory.vectors * trainable + 3 * statistics));
    EXPECT_EQ(memory.step_bytes, model->step_bytes());
    return memory.vectors;
  };
  EXPECT_EQ(vectors("adam"), 2u);
  EXPECT_EQ(vectors("dana_slim"), 3u);
  EXPECT_EQ(vectors("easgd"), 4u);
  EXPECT_EQ(vectors("eamsgd"), 5u);
  job.mutable_compression()->set_push("one_bit");
  EXPECT_EQ(vectors("adam"), 3u);
  EXPECT_EQ(vectors("apmsqueeze"), 5u);
}

}  // namespace
}  // namespace foreshard
