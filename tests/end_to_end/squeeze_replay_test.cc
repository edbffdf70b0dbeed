// A compressed run whose workers are killed, come back and take leave is the run that has the
// same views and absences: from the servers' record of who took part in which round, and
// nothing else, every worker is computed anew, to the last bit.
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/job_machines.h"
#include "tests/end_to_end/in_process_job.h"
#include "tests/server/server_harness.h"
#include "tools/simulate/round_reply.h"

namespace foreshard {
namespace {

// An event as the server recorded it, which owns its payload.
struct Recorded {
  std::string bytes;
  ByteSpan payload;
  Event event;
};

class Recomputed {
 public:
  Recomputed(const v1::JobSpec& job, const std::map<uint64_t, std::string>& records) : job_(job) {
    device_ = kernels::MakeDevice("cpu").value();
    data_ = LoadTrainingData(job).value();
    model_ = MakeJobModel(job, *data_, *device_).value();
    options_ = MakeClientOptions(job, model_->schema(), data_->examples(), {}).value();
    computer_ = std::make_unique<GradientComputer>(MakeGradientOptions(job), model_.get(), data_.get());
    for (const SegmentPlan& plan : options_.plan.segments()) {
      segments.push_back(
          Segment::Create(MakeSegmentOptions(job, plan, BatchesPerEpoch(job, data_->examples()))).value());
    }
    queues_.resize(segments.size());
    for (const auto& [number, bytes] : records) {
      Recorded& recorded = *recorded_.emplace_back(std::make_unique<Recorded>());
      recorded.bytes = bytes;
      uint64_t size = 0;
      recorded.event = ParseRecord(AsBytes(recorded.bytes), &recorded.payload, &size).value();
      recorded.event.payload.pieces = absl::MakeConstSpan(&recorded.payload, 1);
      if (recorded.event.segment == kDealerSegment) continue;
      queues_[recorded.event.segment].push_back(&recorded);
      ++kinds[recorded.event.kind];
      if (OfWorker(recorded.event)) {
        StartOf(recorded.event).events[recorded.event.segment].push_back(&recorded);
      }
    }
  }

  void Run() {
    std::vector<size_t> next(queues_.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < queues_.size(); ++s) {
        while (next[s] < queues_[s].size() && Take(*queues_[s][next[s]])) {
          ++next[s];
          moved = true;
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
    for (size_t s = 0; s < queues_.size(); ++s) {
      ASSERT_EQ(next[s], queues_[s].size()) << "segment " << s << " waits for ever";
    }
  }

  std::vector<std::unique_ptr<Segment>> segments;
  std::map<EventKind, int> kinds;
  uint64_t steps = 0, folds = 0;

 private:
  // One start of a worker.
  struct Start {
    Start(const PushEncoderOptions& options, uint64_t elements)
        : encoder(options),
          parameters(elements),
          events(options.segments),
          taken(options.segments),
          payloads(options.segments) {}
    PushEncoder encoder;
    std::vector<float> parameters;
    std::vector<std::vector<const Recorded*>> events;  // by segment
    std::vector<size_t> taken;                         // of those
    std::vector<std::vector<uint8_t>> payloads;        // of the last step
    PushPlace place;
    uint64_t steps = 0;
    std::optional<uint64_t> ticket;
  };

  static bool OfWorker(const Event& event) {
    return event.kind == EventKind::kPush || event.kind == EventKind::kRead;
  }
  Start& StartOf(const Event& event) {
    return starts_
        .try_emplace(std::pair(event.worker, event.incarnation), MakeEncoderOptions(options_),
                     model_->schema().elements())
        .first->second;
  }

  // All that the worker had when it computed this push.
  bool Ready(const Start& start, uint64_t sequence) const {
    for (size_t s = 0; s < segments.size(); ++s) {
      if (start.taken[s] == start.events[s].size()) continue;  // it was gone before its push
      const Event& next = start.events[s][start.taken[s]]->event;
      if (next.kind != EventKind::kPush || next.sequence != sequence) return false;
    }
    return true;
  }

  void Compute(Start& start, const Event& event) {
    ++start.steps;
    ASSERT_EQ(start.steps, event.sequence);
    start.place = {.worker = event.worker, .sequence = event.sequence, .round = event.argument};
    if (start.ticket == event.ticket) {
      // What a worker hands in before it leaves is of no batch.
      ++folds;
      std::fill_n(computer_->gradient(), model_->schema().trainable_elements(), 0.0f);
      start.encoder.FoldNext();
    } else {
      ++steps;
      const auto step = computer_->Compute(event.ticket, start.parameters.data(), gate_);
      ASSERT_TRUE(step.ok() && step->finite);
    }
    start.ticket = event.ticket;
    for (const SegmentPlan& plan : options_.plan.segments()) {
      float* const gradient = computer_->gradient() + plan.begin;
      start.encoder.Transform(plan, event.ticket, 0, start.parameters.data() + plan.begin, gradient);
      std::vector<uint8_t>& out = start.payloads[plan.id];
      out.resize(start.encoder.EncodedBytes(plan));
      if (start.encoder.plain(plan)) {
        std::memcpy(out.data(), gradient, out.size());
      } else {
        start.encoder.Encode(plan, start.place, gradient, out.data());
      }
    }
  }

  bool Take(const Recorded& recorded) {
    Event event = recorded.event;
    const uint32_t s = event.segment;
    if (event.kind == EventKind::kPush) {
      Start& start = StartOf(event);
      if (start.steps < event.sequence) {
        if (!Ready(start, event.sequence)) return false;
        Compute(start, event);
      }
      Check(event, start.payloads[s]);
    }
    Apply(event);
    return true;
  }

  void Check(const Event& event, const std::vector<uint8_t>& payload) {
    ASSERT_EQ(event.payload.bytes, payload.size());
    ASSERT_EQ(std::memcmp(event.payload.pieces[0].data(), payload.data(), payload.size()), 0)
        << "segment " << event.segment << ", worker " << event.worker << ", round " << event.argument;
  }

  void Apply(Event event) {
    const uint32_t s = event.segment;
    Segment& segment = *segments[s];
    ASSERT_TRUE(segment.CheckPayload(event).ok());
    const EventKind kind = event.kind;
    const absl::Status admitted = segment.Admit(&event);
    ASSERT_TRUE(admitted.ok()) << admitted;
    ASSERT_EQ(event.kind, kind);
    reply_.resize(segment.max_reply_bytes());
    Reply reply = {.data = reply_.data()};
    const Outcome outcome = segment.Apply(event, &reply);
    if (!OfWorker(event)) return;
    Start& start = StartOf(event);
    ++start.taken[s];
    if (event.kind != EventKind::kRead) return;
    const SegmentPlan& plan = options_.plan.segments()[s];
    const ByteSpan payload(reply.data, reply.bytes);
    const absl::Status taken = start.encoder.TakeReply(
        plan, ToRoundReply(outcome, reply.parts), {.pieces = {&payload, 1}, .bytes = payload.size()},
        start.place, start.payloads[s], start.parameters.data() + plan.begin);
    ASSERT_TRUE(taken.ok()) << taken;
  }

  const v1::JobSpec& job_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Dataset> data_;
  std::unique_ptr<Model> model_;
  ParameterClientOptions options_;
  std::unique_ptr<GradientComputer> computer_;
  OpenGate gate_;
  std::vector<std::unique_ptr<Recorded>> recorded_;
  std::vector<std::vector<const Recorded*>> queues_;  // by segment
  std::map<std::pair<uint32_t, uint64_t>, Start> starts_;
  std::vector<uint8_t> reply_;
};

class SqueezeReplay : public ::testing::TestWithParam<const char*> {};

TEST_P(SqueezeReplay, AKilledWorkerGivesTheRunThatHasTheSameViewsAndAbsences) {
  const v1::JobSpec job = SyntheticJob(
      {"update.rule=apmsqueeze", "apmsqueeze.warmup_rounds=10", "apmsqueeze.fold_rounds=17",
       "schedule.learning_rate=0.05", "update.weight_decay=0.01", "servers.shards=1", "training.epochs=4",
       absl::StrCat("apmsqueeze.form=", GetParam())});
  RecordingSink sink;
  InProcessServers servers(job, &sink);
  std::vector<std::unique_ptr<InProcessWorker>> workers;
  for (int w = 0; w < 5; ++w) {
    workers.push_back(std::make_unique<InProcessWorker>(job, servers.addresses()));
  }
  absl::Notification dies, over;
  int pushes = 0, left_after = 0;
  // The first one hangs in the compressed phase, for ever; the second takes leave.
  workers[0]->after_push = [&](const PushFigures&) {
    if (++pushes != 25) return;
    dies.Notify();
    over.WaitForNotification();
  };
  workers[1]->after_push = [&](const PushFigures&) {
    if (++left_after == 40) workers[1]->Stop();
  };
  std::vector<std::thread> threads;
  for (int w = 0; w < 3; ++w) {
    ASSERT_TRUE(workers[w]->Connect(w).ok());
  }
  for (int w = 0; w < 3; ++w) {
    threads.emplace_back([&workers, w] {
      const absl::Status trained = workers[w]->Train();
      EXPECT_EQ(trained.ok(), w == 2) << trained;
      if (w != 0) workers[w]->Leave();
    });
  }
  dies.WaitForNotification();
  // Another start in its slot, and one more in a slot of its own.
  for (int w = 3; w < 5; ++w) {
    ASSERT_TRUE(workers[w]->Connect(w == 3 ? 0 : w).ok());
    threads.emplace_back([&workers, w] {
      const absl::Status trained = workers[w]->Train();
      EXPECT_TRUE(trained.ok()) << trained;
      workers[w]->Leave();
    });
  }
  for (size_t t = 1; t < threads.size(); ++t) threads[t].join();
  over.Notify();
  threads[0].join();
  EXPECT_TRUE(servers[0]->status().finished());
  const std::vector<std::string> saved = servers[0]->SaveSegments();

  Recomputed run(job, sink.records());
  run.Run();
  if (HasFatalFailure()) return;
  ASSERT_EQ(saved.size(), run.segments.size());
  for (size_t s = 0; s < saved.size(); ++s) {
    EXPECT_TRUE(run.segments[s]->Save() == saved[s]) << "segment " << s;
    EXPECT_EQ(run.segments[s]->phase(), Phase::kFrozen);
  }
  EXPECT_GT(run.kinds[EventKind::kViewChange], 2);
  EXPECT_GT(run.steps, 200u);
  EXPECT_GE(run.folds, 1u);
}

INSTANTIATE_TEST_SUITE_P(Forms, SqueezeReplay, ::testing::Values("momentum", "gradient"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace foreshard
