// The shard and its neighbours under threads, without any gRPC: what thread
// sanitizer is run on.
#include "server/shard.h"

#include <atomic>
#include <thread>

#include "gmock/gmock.h"
#include "server/apply_threads.h"
#include "server/membership.h"
#include "server/reply_buffers.h"
#include "tests/server/server_harness.h"

namespace foreshard {
namespace {

class ShardUnderThreads : public ::testing::Test {
 protected:
  void Begin(const v1::JobSpec& spec) {
    job = spec;
    schema = TestSchema();
    plan = ShardPlan::Create(schema, MakePlanOptions(job)).value();
    contract = MakeContract(job, schema, plan);
    shard = std::make_unique<Shard>(job, 0, &sink);
    // Everybody at once: one makes the segments, the others agree.
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([this] {
        EXPECT_TRUE(shard->Agree(contract, job.name(), ToProto(schema), kTestExamples).ok());
        for (const SegmentPlan& segment : plan.segments()) Initialise(segment);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(shard->MissingSegments().empty());
  }

  void Initialise(const SegmentPlan& segment) {
    const std::vector<float> values(segment.elements, 1.0f);
    const ByteSpan piece(reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4);
    EXPECT_TRUE(shard
                    ->Perform(**shard->FindCell(segment.id),
                              {.kind = EventKind::kInitialise,
                               .segment = segment.id,
                               .payload = {absl::MakeConstSpan(&piece, 1), piece.size()}},
                              nullptr)
                    .ok());
  }

  // A worker's push of constant values; the reply goes to `buffer`.
  absl::StatusOr<Shard::Performed> Push(uint32_t segment, uint32_t worker, uint64_t step,
                                        uint64_t held_version, std::vector<uint8_t>& buffer) {
    Shard::Cell& cell = **shard->FindCell(segment);
    const std::vector<float> values(cell.plan->elements, 0.5f);
    const ByteSpan piece(reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4);
    Event event = {.kind = EventKind::kPush,
                   .segment = segment,
                   .worker = worker,
                   .incarnation = 1,
                   .sequence = step + 1,
                   .ticket = step,
                   .held_version = held_version,
                   .argument = cell.synchronous ? step : 0,
                   .payload = {absl::MakeConstSpan(&piece, 1), piece.size()}};
    EXPECT_TRUE(cell.checks->CheckPayload(event).ok());
    buffer.resize(cell.reply_bytes);
    Reply reply{.data = buffer.data()};
    return shard->Perform(cell, event, &reply);
  }

  RecordingSink sink;
  v1::JobSpec job;
  Schema schema;
  ShardPlan plan;
  v1::Contract contract;
  std::unique_ptr<Shard> shard;
};

TEST_F(ShardUnderThreads, AppliesEveryPushOnce) {
  Begin(TestJob());
  constexpr uint64_t kSteps = 100;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < 3; ++worker) {
    threads.emplace_back([this, worker] {
      std::vector<uint8_t> buffer;
      std::vector<uint64_t> held(plan.segments().size());
      for (uint64_t step = 0; step < kSteps; ++step) {
        for (uint32_t segment = 0; segment < held.size(); ++segment) {
          const auto performed = Push(segment, worker, step, held[segment], buffer);
          ASSERT_TRUE(performed.ok()) << performed.status();
          held[segment] = performed->outcome.version;
        }
      }
    });
  }
  // Meanwhile leases end and status is asked for.
  std::thread other([&] {
    while (!done) {
      shard->Release(EventKind::kExpire, 1, 1);
      EXPECT_TRUE(shard->MissingSegments().empty());
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  other.join();
  for (const auto& cell : shard->agreement()->cells) {
    absl::MutexLock lock(&cell->mutex);
    EXPECT_EQ(cell->segment->version(), 3 * kSteps);
  }
  EXPECT_EQ(sink.records().rbegin()->first, sink.records().size());
}

TEST_F(ShardUnderThreads, RoundsReleaseEveryWaiterOnce) {
  Begin(SynchronousJob());
  constexpr uint64_t kRounds = 50;
  std::atomic<uint64_t> closed{0};
  std::atomic<int> resumed{0};
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < 2; ++worker) {
    threads.emplace_back([&, worker] {
      std::vector<uint8_t> buffer;
      for (uint64_t round = 0; round < kRounds; ++round) {
        const auto performed = Push(0, worker, round, round, buffer);
        ASSERT_TRUE(performed.ok()) << performed.status();
        for (RoundWaiter* waiter : performed->released) {
          EXPECT_EQ(waiter->round, round);
          ++resumed;
          delete waiter;
        }
        if (performed->round_closed) ++closed;
        auto* waiter = new RoundWaiter;
        waiter->round = round;
        const auto parked = shard->Park(**shard->FindCell(0), waiter);
        ASSERT_TRUE(parked.ok()) << parked.status();
        if (!*parked) {
          ++resumed;
          delete waiter;
        }
        while (closed <= round) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(closed, kRounds);
  EXPECT_EQ(resumed, 2 * static_cast<int>(kRounds));
  EXPECT_TRUE(shard->TakeWaiters(**shard->FindCell(0), 0, true).empty());
}

TEST_F(ShardUnderThreads, WaitersComeOutByTheirDeadline) {
  Begin(SynchronousJob());
  Shard::Cell& cell = **shard->FindCell(0);
  RoundWaiter early, late;
  early.deadline = 10;
  late.deadline = 20;
  ASSERT_TRUE(*shard->Park(cell, &early));
  ASSERT_TRUE(*shard->Park(cell, &late));
  EXPECT_THAT(shard->TakeWaiters(cell, 10, false), ::testing::ElementsAre(&early));
  EXPECT_FALSE(shard->Unpark(cell, &early));
  EXPECT_TRUE(shard->Unpark(cell, &late));
  EXPECT_FALSE(shard->Unpark(cell, &late));
}

class ShardOfText : public ::testing::Test {
 protected:
  ShardOfText() {
    job_.mutable_data()->set_format("tokens");
    plan_ = ShardPlan::Create(schema_, MakePlanOptions(job_)).value();
    shard_ = std::make_unique<Shard>(job_, 0, nullptr);
  }
  absl::Status Agree(uint64_t data_identity) {
    return shard_->Agree(MakeContract(job_, schema_, plan_), job_.name(), ToProto(schema_), kTestExamples, "",
                         data_identity);
  }

  v1::JobSpec job_ = TestJob();
  const Schema schema_ = TestSchema();
  ShardPlan plan_;
  std::unique_ptr<Shard> shard_;
};

TEST_F(ShardOfText, RefusesWorkersOfOtherData) {
  ASSERT_TRUE(Agree(123).ok());
  EXPECT_TRUE(Agree(123).ok());
  const absl::Status refused = Agree(124);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("other training data: the text here was packed with another"));
  EXPECT_TRUE(Agree(0).ok()) << "a worker that does not say";
}

TEST_F(ShardOfText, TheFirstWhoSaysDecides) {
  ASSERT_TRUE(Agree(0).ok());
  ASSERT_TRUE(Agree(123).ok());
  EXPECT_FALSE(Agree(124).ok());
}

TEST(ApplyThreads, RunsEverythingBeforeItEnds) {
  std::atomic<int> ran{0};
  {
    ApplyThreads threads(3);
    for (int i = 0; i < 1000; ++i) threads.Run([&] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

TEST(ReplyBuffersUnderThreads, KeepTheirBudgetStraight) {
  ReplyBuffers buffers(40'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const auto buffer = buffers.Take(10'000);
        ASSERT_TRUE(buffer.has_value());
        buffer->data[i % 10'000] = 1;
        const grpc::Slice slice = buffers.Share(*buffer, 10'000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(buffers.used_bytes(), 0);
  EXPECT_LE(buffers.allocations(), 4);
}

TEST(MembershipUnderThreads, TouchJoinAndExpireMayMeet) {
  Membership members(1, 0);
  ASSERT_TRUE(members.Join(0, 1, "a", "", 0).ok());
  std::atomic<bool> done{false};
  std::thread sweeping([&] {
    for (int64_t now = 1; !done; ++now) members.ExpireSilent(now);
  });
  std::thread reading([&] {
    while (!done) {
      EXPECT_EQ(members.Members().size(), 1);
    }
  });
  for (int64_t now = 1; now < 5000; ++now) EXPECT_TRUE(members.Touch(0, 1, now).ok());
  ASSERT_TRUE(members.Join(0, 2, "b", "", 5000).ok());
  EXPECT_EQ(members.Touch(0, 1, 5000).code(), absl::StatusCode::kAborted);
  done = true;
  sweeping.join();
  reading.join();
}

}  // namespace
}  // namespace foreshard
