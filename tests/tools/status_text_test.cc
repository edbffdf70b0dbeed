#include "tools/status_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/message_json.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

v1::StatusReply Server(uint32_t shard, uint32_t shards) {
  v1::StatusReply reply;
  reply.set_shard(shard);
  reply.set_shards(shards);
  reply.set_state("training");
  reply.set_lead(shard == 0);
  reply.set_job_name("tiny");
  return reply;
}

TEST(AlignColumns, PadsCellsAndTrimsLines) {
  EXPECT_EQ(AlignColumns({{"a", "bb"}, {"cccc", "d"}, {"e"}}), "a     bb\ncccc  d\ne\n");
}

TEST(StatusText, SaysFirstWhatIsWaitedFor) {
  v1::StatusReply lead = Server(0, 2);
  lead.set_waiting_for("workers: none has registered");
  lead.set_epochs(2);
  lead.set_total_tickets(10);
  lead.set_completed_tickets(5);
  v1::WorkerStatus* worker = lead.add_workers();
  worker->set_name("worker-7");
  worker->set_state("expired");
  worker->set_seconds_since_seen(31.5);
  const std::string text = StatusText({"a:1", "b:2"}, {lead, Server(1, 2)});
  EXPECT_THAT(text, StartsWith("waiting for: workers: none has registered (shard 0)\n"));
  EXPECT_THAT(text, HasSubstr("epoch 1.0 of 2 (50.0 %)"));
  EXPECT_THAT(text, HasSubstr("b:2"));
  EXPECT_THAT(text, HasSubstr("worker-7"));
  EXPECT_THAT(text, HasSubstr("31.5 s ago"));
  EXPECT_THAT(text, Not(HasSubstr("not asked")));
}

TEST(StatusText, NamesServersThatAreSilentOrMissing) {
  const std::string text =
      StatusText({"a:1", "b:2"}, {Server(1, 3), absl::UnavailableError("server b:2: refused")});
  EXPECT_THAT(text, HasSubstr("server b:2, which does not answer"));
  EXPECT_THAT(text, HasSubstr("the lead (shard 0) is not among"));
  EXPECT_THAT(text, HasSubstr("not asked or silent: shard 0, 2"));
}

TEST(StatusText, NothingIsWaitedForInAHealthyJob) {
  EXPECT_THAT(StatusText({"a:1"}, {Server(0, 1)}), StartsWith("waiting for: nothing\n"));
}

TEST(StatusText, SaysWhatAServerCouldGoOnWith) {
  EXPECT_THAT(StatusText({"a:1"}, {Server(0, 1)}), Not(HasSubstr("keeps its state")));
  v1::StatusReply server = Server(0, 1);
  server.set_state_directory("/state/shard-0");
  server.set_journal("failed: no space left on device");
  server.set_checkpoint_age_seconds(-1);
  EXPECT_THAT(StatusText({"a:1"}, {server}),
              HasSubstr("shard 0 keeps its state: journal failed: no space left on device, no checkpoint yet\n"));
  server.set_journal("buffered");
  server.set_checkpoint_age_seconds(75);
  server.set_checkpoint_step(300);
  server.set_restored("checkpoint.0000000001, 5 events of the journal replayed");
  EXPECT_THAT(StatusText({"a:1"}, {server}),
              HasSubstr("journal buffered, newest checkpoint 1:15 ago at step 300; it went on with "
                        "checkpoint.0000000001, 5 events of the journal replayed\n"));
}

TEST(StatusText, SaysWhoIsDealtNothingAndWhatWasDiscarded) {
  v1::StatusReply lead = Server(0, 1);
  lead.set_epochs(2);
  lead.set_total_tickets(10);
  lead.set_completed_tickets(5);
  lead.set_pushes_stale(4);
  lead.add_segments();
  lead.add_segments();
  for (uint32_t slot = 0; slot < 2; ++slot) {
    v1::WorkerStatus* worker = lead.add_workers();
    worker->set_worker(slot);
    worker->set_state("training");
  }
  lead.mutable_workers(1)->set_waiting_for("the worker ramp");
  const std::string text = StatusText({"a:1"}, {lead});
  EXPECT_THAT(text, HasSubstr("worker 1 waits for the worker ramp\n"));
  EXPECT_THAT(text, Not(HasSubstr("worker 0 waits")));
  EXPECT_THAT(text, HasSubstr("2 of 5 gradients came later than update.delay_threshold"));
  EXPECT_THAT(text, HasSubstr("3 updates"));
}

TEST(MessageToJson, NumbersAreNumbersAndNamesAreTheFields) {
  v1::StatusReply reply = Server(1, 2);
  reply.set_push_bytes(1ull << 53);
  reply.add_staleness_counts(3);
  reply.set_gap_sum(std::numeric_limits<double>::infinity());
  reply.add_workers()->mutable_figures()->set_loss(0.1f);
  reply.add_workers();
  const nlohmann::ordered_json json = MessageToJson(reply);
  EXPECT_EQ(json["push_bytes"], 1ull << 53);
  EXPECT_EQ(json["state"], "training");
  EXPECT_EQ(json["staleness_counts"][0], 3);
  EXPECT_TRUE(json["gap_sum"].is_null());
  EXPECT_EQ(json["workers"][0]["figures"]["loss"].dump(), "0.1");
  EXPECT_TRUE(json["workers"][1]["figures"].is_null());
  EXPECT_EQ(json["lead"], false);
}

TEST(PlainText, KeepsTextAndTakesCommandsToTheTerminalOut) {
  EXPECT_EQ(PlainText("Zürich\n  4 °C €"), "Zürich\n  4 °C €");
  EXPECT_EQ(PlainText(std::string("a\x1b[31m\t\r\0\x7f", 10)), "a?[31m????");
  EXPECT_EQ(PlainText("\xc2\x9b" "31m"), "\xc2?31m");
}

}  // namespace
}  // namespace foreshard
