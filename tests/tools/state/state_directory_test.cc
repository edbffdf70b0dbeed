#include "tools/state/state_directory.h"

#include <fstream>

#include "gmock/gmock.h"
#include "tests/tools/state/stored_run.h"
#include "tools/files.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

class StateDirectories : public StoredRunTest {};

TEST_F(StateDirectories, TakesAFolderOfShardsOrEachOfThem) {
  Make(StoredJob());
  const StoredRun run = Open();
  ASSERT_EQ(run.shards.size(), 2u);
  EXPECT_EQ(run.job.name(), "stored");
  EXPECT_EQ(run.schema.fingerprint(), run_.schema.fingerprint());
  EXPECT_EQ(run.plan.fingerprint(), run_.plan.fingerprint());
  EXPECT_EQ(run.batches_per_epoch, 100u);
  EXPECT_FALSE(run.synchronous);
  const auto turned = OpenRun({state() + "/shard-1", state() + "/shard-0"}, Shards::kAll);
  ASSERT_TRUE(turned.ok()) << turned.status();
  EXPECT_EQ(turned->shards[0].shard, 0u);
  EXPECT_EQ(turned->shards[1].shard, 1u);
}

// For who makes another run of it: what a server is told meanwhile would not be in it.
TEST_F(StateDirectories, OneThatAServerHasIsRefusedWhereItMustNot) {
  Make(StoredJob());
  const auto in_use = OpenRun({state()}, Shards::kAll, Others::kMustNotWrite);
  EXPECT_TRUE(absl::IsFailedPrecondition(in_use.status())) << in_use.status();
  EXPECT_THAT(std::string(in_use.status().message()), HasSubstr("shard-0 is in use by another process"));
  EXPECT_TRUE(OpenRun({state()}, Shards::kAll).ok());
  shards_.clear();
  const auto alone = OpenRun({state()}, Shards::kAll, Others::kMustNotWrite);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_TRUE(absl::IsUnavailable(OpenStorage(state() + "/shard-0").status()));
}

TEST_F(StateDirectories, SaysWhichShardsAreMissing) {
  Make(StoredJob());
  const auto one = OpenRun({state() + "/shard-1"}, Shards::kAll);
  EXPECT_TRUE(absl::IsFailedPrecondition(one.status()));
  EXPECT_THAT(std::string(one.status().message()), HasSubstr("missing is shard 0"));
  EXPECT_TRUE(OpenRun({state() + "/shard-1"}, Shards::kAny).ok());
  const auto twice = OpenRun({state(), state() + "/shard-1"}, Shards::kAny);
  EXPECT_THAT(std::string(twice.status().message()), HasSubstr("both of shard 1"));
}

TEST_F(StateDirectories, RefusesSeveralRuns) {
  Make(StoredJob());
  const StoredRun other = PlanRun(StoredJob({"update.momentum=0.5"}), SmallSchema(), 1000).value();
  const StoredShard stranger(other, 1, folder_ + "/stranger");
  const auto mixed = OpenRun({state() + "/shard-0", folder_ + "/stranger"}, Shards::kAll);
  EXPECT_TRUE(absl::IsFailedPrecondition(mixed.status()));
  EXPECT_THAT(std::string(mixed.status().message()), HasSubstr("not of one run"));
}

// Of the same job, so that all else is the same.
TEST_F(StateDirectories, RefusesTwoRunsOfOneJob) {
  Make(StoredJob());
  shards_.clear();
  const auto say = [&](uint32_t shard, uint64_t run) {
    const auto storage = OpenStorage(absl::StrCat(state(), "/shard-", shard)).value();
    v1::RunDescription description = *ReadRunDescription(*storage).value();
    description.set_common_run_id(run);
    ASSERT_TRUE(WriteRunDescription(storage.get(), description).ok());
  };
  say(0, 0xabc);
  EXPECT_TRUE(OpenRun({state()}, Shards::kAll).ok()) << "of a program that knew no runs";
  say(1, 0xdef);
  const auto mixed = OpenRun({state()}, Shards::kAll);
  EXPECT_TRUE(absl::IsFailedPrecondition(mixed.status()));
  EXPECT_THAT(std::string(mixed.status().message()),
              ::testing::AllOf(HasSubstr("two runs of the same job"), HasSubstr("0000000000000def")));
  say(1, 0xabc);
  EXPECT_TRUE(OpenRun({state()}, Shards::kAll).ok());
}

TEST_F(StateDirectories, SaysWhatIsNoState) {
  EXPECT_TRUE(absl::IsNotFound(OpenRun({folder_ + "/none"}, Shards::kAny).status()));
  std::filesystem::create_directories(folder_ + "/empty");
  const auto empty = OpenRun({folder_ + "/empty"}, Shards::kAny);
  EXPECT_TRUE(absl::IsNotFound(empty.status()));
  EXPECT_THAT(std::string(empty.status().message()), HasSubstr("holds no state"));
}

TEST_F(StateDirectories, ADamagedDescriptionIsNamed) {
  Make(StoredJob());
  const std::string path = state() + "/shard-0/run.textproto";
  std::string text = ReadFile(path).value();
  {
    // A bit that leaves it readable.
    std::string flipped = text;
    flipped[flipped.find("momentum: 0.9") + 12] ^= 1;
    std::ofstream(path) << flipped;
    const auto found = OpenRun({state() + "/shard-0"}, Shards::kAny);
    EXPECT_TRUE(absl::IsDataLoss(found.status())) << found.status();
    EXPECT_THAT(std::string(found.status().message()), HasSubstr("checksum"));
  }
  text = text.substr(text.find('\n') + 1);  // as a program has written it that knew no checksum
  const size_t at = text.find("segment_elements: 1000");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 22, "segment_elements: 2000");
  std::ofstream(path) << text;
  const auto changed = OpenRun({state() + "/shard-0"}, Shards::kAny);
  EXPECT_TRUE(absl::IsDataLoss(changed.status())) << changed.status();
  EXPECT_THAT(std::string(changed.status().message()), HasSubstr("run.textproto"));
  std::ofstream(path) << "{{{";
  EXPECT_TRUE(absl::IsDataLoss(OpenRun({state() + "/shard-0"}, Shards::kAny).status()));
}

}  // namespace
}  // namespace foreshard
