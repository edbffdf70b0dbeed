#include "tools/state/whole_model.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/tools/state/stored_run.h"
#include "tools/files.h"
#include "tools/process.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class WholeModel : public StoredRunTest {
 protected:
  const std::string file_ = folder_ + "/model.safetensors";
  std::vector<float> ReadAll(const ParameterSource& source) {
    std::vector<float> values(run_.schema.elements());
    // In pieces that cross every boundary.
    for (size_t at = 0; at < values.size(); at += 77) {
      const size_t count = std::min<size_t>(77, values.size() - at);
      const absl::Status read = source.Read(at, absl::MakeSpan(values).subspan(at, count));
      EXPECT_TRUE(read.ok()) << read;
    }
    return values;
  }
};

TEST_F(WholeModel, CheckpointsJoinedAreTheServersParametersInBothLayouts) {
  Make(StoredJob());
  for (auto& shard : shards_) shard->Push(5);
  std::vector<float> expected;
  // The first segment of a shard moves on while its checkpoint is written: what counts is in the manifest.
  for (auto& shard : shards_) shard->Checkpoint(5);
  const StoredRun run = Open();
  const auto cut = ChooseCheckpoints(run, 0, &watch_);
  ASSERT_TRUE(cut.ok()) << cut.status();
  const auto source = CheckpointSource::Open(run, cut->checkpoints);
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<float> whole = ReadAll(**source);
  for (size_t s = 0; s < 2; ++s) {
    auto machines = ShardMachines::Create(run, static_cast<uint32_t>(s)).value();
    for (const uint32_t id : machines->machines()) {
      ASSERT_TRUE(machines->Load(id, cut->checkpoints[s]->ReadState(id)->state).ok());
    }
    for (const auto& segment : machines->segments()) {
      expected.insert(expected.end(), segment->theta().begin(), segment->theta().end());
    }
  }
  EXPECT_EQ(whole, expected);
  for (const Layout layout : {Layout::kCanonical, Layout::kPyTorch}) {
    SCOPED_TRACE(ToString(layout));
    const absl::Status exported =
        ExportModel(run.schema, **source, layout, {{"foreshard.job", "stored"}}, file_, true, &watch_);
    ASSERT_TRUE(exported.ok()) << exported;
    // The file says its layout, so it is read as what it is.
    const auto read = FileSource::Open(run_.schema, file_, Layout::kCanonical);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ((*read)->layout(), layout);
    EXPECT_EQ(ReadAll(**read), whole);
  }
  EXPECT_FALSE(fs::exists(file_ + ".part"));
  EXPECT_TRUE(absl::IsAlreadyExists(ExportModel(run.schema, **source, Layout::kCanonical, {}, file_, false, &watch_)));
}

TEST_F(WholeModel, PythonReadsTheFileAndFindsFiltersWherePyTorchHasThem) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "there is no python3";
  Make(StoredJob());
  const StoredRun run = Open();
  const auto machines = ReplayRun(run, &watch_);
  ASSERT_TRUE(machines.ok()) << machines.status();
  const auto source = MachinesSource::Open(*machines);
  ASSERT_TRUE(source.ok()) << source.status();
  const std::vector<float> whole = ReadAll(**source);
  EXPECT_EQ(whole, Vector());
  ASSERT_TRUE(ExportModel(run.schema, **source, Layout::kPyTorch, {{"foreshard.step", "12"}}, file_, false, &watch_).ok());
  const auto process = Process::Start(
      {.program = "/usr/bin/env",
       .arguments = {"python3", FORESHARD_SOURCE_DIR "/tests/end_to_end/read_safetensors.py", file_},
       .log_path = folder_ + "/output"});
  ASSERT_TRUE(process.ok()) << process.status();
  const auto ended = (*process)->Wait(absl::Seconds(60));
  ASSERT_TRUE(ended.has_value());
  ASSERT_TRUE(ended->ok()) << ReadFile(folder_ + "/output").value();
  const auto said = nlohmann::json::parse(ReadFile(folder_ + "/output").value(), nullptr, false);
  EXPECT_EQ(said["metadata"]["format"], "pt");
  EXPECT_EQ(said["metadata"]["foreshard.layout"], "pytorch");
  EXPECT_EQ(said["metadata"]["foreshard.step"], "12");
  EXPECT_EQ(said["tensors"].size(), 5u);
  EXPECT_EQ(said["tensors"]["bn.num_batches_tracked"]["shape"], std::vector<int>());
  EXPECT_EQ(said["tensors"]["conv.weight"]["shape"], (std::vector<int>{8, 4, 3, 3}));
  EXPECT_EQ(said["tensors"]["dense.weight"]["shape"], (std::vector<int>{10, 200}));
  EXPECT_EQ(said["tensors"]["conv.weight"]["first"].get<float>(), whole[0]);
  EXPECT_EQ(said["tensors"]["conv.weight"]["last"].get<float>(), whole[287]);
  EXPECT_EQ(said["tensors"]["bn.running_mean"]["first"].get<float>(), whole[2296]);
  // [o, i, y, x] of one filter, by its place in either layout.
  const SafetensorsReader reader =
      SafetensorsReader::Open([this](uint64_t offset, uint64_t bytes) -> absl::StatusOr<std::string> {
        return ReadFile(file_).value().substr(offset, bytes);
      }, fs::file_size(file_), file_).value();
  std::vector<float> filters(288);
  ASSERT_TRUE(reader.ReadFloats(*reader.Find("conv.weight"), 0, absl::MakeSpan(filters)).ok());
  const int o = 5, i = 2, y = 1, x = 0;
  EXPECT_EQ(filters[((o * 4 + i) * 3 + y) * 3 + x], whole[((o * 3 + y) * 3 + x) * 4 + i]);
}

TEST(Layouts, ModelsWhoseDenseLayerReadsAnImageHaveNoneOfPyTorch) {
  EXPECT_TRUE(CheckLayout("resnet20", Layout::kPyTorch).ok());
  EXPECT_TRUE(CheckLayout("bert_tiny", Layout::kPyTorch).ok());
  EXPECT_TRUE(CheckLayout("cnn", Layout::kCanonical).ok());
  EXPECT_THAT(std::string(CheckLayout("cnn", Layout::kPyTorch).message()),
              HasSubstr("--layout: pytorch: model cnn has a dense layer that reads an image"));
}

TEST_F(WholeModel, TheNewestCheckpointsThatGoTogetherAreTaken) {
  Make(StoredJob());
  shards_[0]->Push(5);
  shards_[0]->Checkpoint(5);
  shards_[0]->Push(5);
  const std::string late = shards_[0]->Checkpoint(10);
  shards_[1]->Push(5);
  shards_[1]->Checkpoint(5);
  const StoredRun run = Open();
  const auto exact = ChooseCheckpoints(run, 0, &watch_);
  ASSERT_TRUE(exact.ok()) << exact.status();
  EXPECT_EQ(exact->greatest_step, 5u);
  EXPECT_EQ(exact->least_step, 5u);
  const auto near = ChooseCheckpoints(run, 5, &watch_);
  ASSERT_TRUE(near.ok()) << near.status();
  EXPECT_EQ(near->greatest_step, 10u);
  EXPECT_EQ(near->least_step, 5u);
  // A damaged one is passed over.
  const std::string path = state() + "/shard-0/" + late + "/state.bin";
  FlipBit(path, fs::file_size(path) / 2);
  EXPECT_EQ(ChooseCheckpoints(run, 5, &watch_)->greatest_step, 5u);
}

TEST_F(WholeModel, AShardWithoutACheckpointIsNamed) {
  Make(StoredJob());
  shards_[0]->Checkpoint(1);
  const auto cut = ChooseCheckpoints(Open(), 0, &watch_);
  EXPECT_TRUE(absl::IsNotFound(cut.status()));
  EXPECT_THAT(std::string(cut.status().message()), HasSubstr("shard-1"));
}

TEST_F(WholeModel, FilesOfAnotherModelAreRefusedByTensor) {
  Make(StoredJob());
  const StoredRun run = Open();
  const auto machines = ReplayRun(run, &watch_);
  const auto source = MachinesSource::Open(*machines);
  ASSERT_TRUE(ExportModel(run.schema, **source, Layout::kCanonical, {}, file_, false, &watch_).ok());
  const auto refusal = [&](std::vector<TensorSpec> tensors) {
    const Schema schema = Schema::Create(std::move(tensors)).value();
    return std::string(FileSource::Open(schema, file_, Layout::kPyTorch).status().message());
  };
  std::vector<TensorSpec> tensors = run.schema.tensors();
  tensors[1].shape = {9};
  EXPECT_THAT(refusal(tensors), HasSubstr("conv.bias has the shape [8]"));
  tensors = run.schema.tensors();
  tensors[1].name = "other";
  EXPECT_THAT(refusal(tensors), HasSubstr("other of the model is missing"));
  tensors = run.schema.tensors();
  tensors.pop_back();
  EXPECT_THAT(refusal(tensors), HasSubstr("bn.running_mean is none of the model's"));
}

TEST_F(WholeModel, AnExportReplacesNothingButFiles) {
  Make(StoredJob());
  const auto machines = ReplayRun(Open(), &watch_);
  const auto source = MachinesSource::Open(*machines);
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  const absl::Status refused = ExportModel(run_.schema, **source, Layout::kCanonical, {}, file_, true, &watch_);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--output: " + file_));
  EXPECT_TRUE(fs::is_fifo(file_));
  fs::remove(file_);
  std::ofstream(file_) << "a file";
  EXPECT_TRUE(ExportModel(run_.schema, **source, Layout::kCanonical, {}, file_, true, &watch_).ok());
}

TEST_F(WholeModel, NothingIsLeftOfAnExportThatWasInterrupted) {
  class Never final : public WorkWatch {
   public:
    bool Proceed(const std::string&, uint64_t) override { return false; }
  } never;
  Make(StoredJob());
  const auto machines = ReplayRun(Open(), &watch_);
  const auto source = MachinesSource::Open(*machines);
  EXPECT_TRUE(absl::IsCancelled(ExportModel(run_.schema, **source, Layout::kCanonical, {}, file_, false, &never)));
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_FALSE(fs::exists(file_ + ".part"));
}

}  // namespace
}  // namespace foreshard
