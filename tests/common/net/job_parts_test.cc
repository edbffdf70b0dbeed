#include "common/net/job_parts.h"

#include "common/net/exchange_message.h"
#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

v1::JobSpec Job(const std::vector<std::string>& overrides = {}) {
  absl::StatusOr<v1::JobSpec> job =
      LoadJobSpec(FORESHARD_SOURCE_DIR "/deploy/jobs/fashion_mnist.textproto", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

Schema SomeSchema() {
  return Schema::Create({{"w", {10, 3}, TensorKind::kTrainable, true},
                         {"b", {10}, TensorKind::kTrainable, false},
                         {"mean", {10}, TensorKind::kStatistic, false}})
      .value();
}

TEST(JobParts, RoundsAreTheRulesOrTheJobsChoice) {
  EXPECT_FALSE(IsSynchronous(Job()));
  EXPECT_TRUE(IsSynchronous(Job({"update.rule=ssgd"})));
  EXPECT_FALSE(IsSynchronous(Job({"update.rule=eamsgd", "compression.push=none"})));
  EXPECT_TRUE(IsSynchronous(
      Job({"update.rule=eamsgd", "compression.push=none", "update.synchronous=true"})));
}

TEST(JobParts, CountsBatches) {
  EXPECT_EQ(BatchesPerEpoch(Job(), 60'000), 938);
  EXPECT_EQ(BatchesPerEpoch(Job(), 64), 1);
  EXPECT_EQ(BatchesPerEpoch(Job(), 1), 1);
}

TEST(JobParts, ScheduleFollowsTheJob) {
  const Schedule cosine = MakeSchedule(Job(), 938);
  EXPECT_EQ(cosine.decay, Decay::kCosine);
  EXPECT_EQ(cosine.workers, 4);
  EXPECT_EQ(cosine.batches_per_epoch, 938);
  EXPECT_EQ(cosine.epochs, Job().training().epochs());
  const Schedule step =
      MakeSchedule(Job({"schedule.decay=step", "schedule.final_fraction=",
                        "schedule.decay_epochs=1,2", "schedule.decay_factor=0.5"}),
                   10);
  EXPECT_EQ(step.decay, Decay::kStep);
  EXPECT_THAT(step.decay_epochs, ::testing::ElementsAre(1, 2));
  EXPECT_DOUBLE_EQ(step.decay_factor, 0.5);
}

TEST(JobParts, SchemaGoesThereAndBack) {
  const Schema schema = SomeSchema();
  absl::StatusOr<Schema> again = FromProto(ToProto(schema));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(schema.Difference(*again), "");
  EXPECT_EQ(schema.fingerprint(), again->fingerprint());
  v1::ModelSchema bad = ToProto(schema);
  bad.mutable_tensors(0)->set_shape(0, -5);
  EXPECT_EQ(FromProto(bad).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(JobParts, ContractNamesWhatDiffers) {
  const Schema schema = SomeSchema();
  const ShardPlan plan = ShardPlan::Create(schema, MakePlanOptions(Job())).value();
  const v1::Contract ours = MakeContract(Job(), schema, plan);
  EXPECT_EQ(ours.protocol(), kProtocolVersion);
  EXPECT_TRUE(CheckContract(ours, ours).ok());
  const auto refused = [&](auto change) {
    v1::Contract theirs = ours;
    change(theirs);
    const absl::Status status = CheckContract(ours, theirs);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refused([](auto& c) { c.set_protocol(9), c.set_oldest_protocol(9); }), HasSubstr("protocol version"));
  EXPECT_THAT(refused([](auto& c) { c.set_job(9); }), HasSubstr("another job"));
  EXPECT_THAT(refused([](auto& c) { c.set_schema(9); }), HasSubstr("model schema"));
  EXPECT_THAT(refused([](auto& c) { c.set_plan(9); }), HasSubstr("shard plan"));
}

v1::Contract Speaks(uint32_t oldest, uint32_t newest) {
  v1::Contract contract;
  contract.set_protocol(newest);
  contract.set_oldest_protocol(oldest);
  return contract;
}

TEST(Protocols, TheNewestThatBothSpeakIsUsed) {
  EXPECT_EQ(CommonProtocol(Speaks(3, 4), Speaks(3, 4)), 4u);
  EXPECT_EQ(CommonProtocol(Speaks(3, 4), Speaks(3, 3)), 3u) << "a worker of the last release";
  EXPECT_EQ(CommonProtocol(Speaks(3, 4), Speaks(4, 5)), 4u) << "a worker of the next release";
  EXPECT_EQ(CommonProtocol(Speaks(3, 4), Speaks(0, 4)), 4u) << "one that says no oldest";
  EXPECT_EQ(CommonProtocol(Speaks(3, 4), Speaks(9, 4)), 4u) << "an oldest that cannot be";
}

TEST(Protocols, OthersAreRefusedByName) {
  EXPECT_EQ(CommonProtocol(Speaks(3, 4), Speaks(1, 2)), 0u);
  EXPECT_EQ(CommonProtocol(Speaks(3, 4), Speaks(5, 6)), 0u);
  EXPECT_EQ(CommonProtocol(Speaks(3, 4), Speaks(0, 0)), 0u);
  EXPECT_TRUE(CheckContract(Speaks(3, 4), Speaks(4, 5)).ok());
  const absl::Status refused = CheckContract(Speaks(3, 4), Speaks(0, 5));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("this server speaks 3 to 4, the caller 5; upgrade this server"), std::string::npos)
      << refused;
  const absl::Status older = CheckContract(Speaks(3, 4), Speaks(1, 2));
  EXPECT_NE(older.message().find("the caller 1 to 2; upgrade the caller"), std::string::npos) << older;
}

TEST(Protocols, AWorkerTakesWhatItSpeaksFromAServer) {
  EXPECT_EQ(AgreedProtocol(Speaks(3, 4), 3, "server 1").value(), 3u);
  EXPECT_EQ(AgreedProtocol(Speaks(3, 4), 4, "server 1").value(), 4u);
  EXPECT_EQ(AgreedProtocol(Speaks(3, 4), 0, "server 1").value(), 4u) << "a server that says none";
  const absl::Status newer = AgreedProtocol(Speaks(3, 4), 5, "server 1").status();
  EXPECT_EQ(newer.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(newer.message().find("this worker speaks 3 to 4, and server 1 wants to speak 5; upgrade this worker"),
            std::string::npos)
      << newer;
  EXPECT_NE(AgreedProtocol(Speaks(3, 4), 2, "server 1").status().message().find("upgrade the server"),
            std::string::npos);
}

}  // namespace
}  // namespace foreshard
