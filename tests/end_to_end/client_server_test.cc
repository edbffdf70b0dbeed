// The worker's library against real servers, in one process.
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/net/channel.h"
#include "foreshard/v1/exchange.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/in_process_job.h"
#include "worker/evaluator.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

uint64_t TrainableSegments(const ShardServer& server) {
  const v1::StatusReply status = server.status();
  uint64_t count = 0;
  for (const auto& segment : status.segments()) count += !segment.statistic();
  return count;
}

TEST(ClientServer, OneWorkerTrainsAsOneProcessWould) {
  const v1::JobSpec job = SyntheticJob({"training.workers=1"});
  InProcessServers servers(job);
  auto workers = RunJob(job, servers, 1);
  InProcessWorker& worker = *workers[0];

  GradientComputer computer(MakeGradientOptions(job), &worker.model(), &worker.data());
  std::vector<float> theta(worker.model().schema().elements());
  worker.model().InitialValues(job.seed(), theta.data());
  OpenGate gate;
  for (uint64_t ticket = 0; ticket < 120; ++ticket) {
    ASSERT_TRUE(computer.Compute(ticket, theta.data(), gate).ok());
    for (size_t k = 0; k < theta.size(); ++k) theta[k] -= 0.5f * computer.gradient()[k];
  }
  EXPECT_EQ(std::memcmp(worker.client().parameters(), theta.data(), theta.size() * sizeof(float)),
            0);
  const v1::StatusReply status = servers[0]->status();
  EXPECT_TRUE(status.finished());
  EXPECT_EQ(status.completed_tickets(), 120u);
  EXPECT_EQ(status.staleness_max(), 0u);
}

class Rules : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

// Whatever the rule and codec: every batch is pushed once to every segment, the
// synthetic loss falls, and both sides count the same bytes.
TEST_P(Rules, UnequalWorkersDoEveryBatchOnce) {
  const auto [rule, codec] = GetParam();
  std::vector<std::string> overrides = {absl::StrCat("update.rule=", rule),
                                        absl::StrCat("compression.push=", codec),
                                        "schedule.learning_rate=0.1"};
  if (std::string(rule) != "asgd") overrides.push_back("update.momentum=0.5");
  const v1::JobSpec job = SyntheticJob(overrides);
  InProcessServers servers(job);
  auto workers = RunJob(job, servers, 3);
  uint64_t steps = 0, push_bytes = 0;
  for (auto& worker : workers) {
    const v1::WorkerFigures figures = worker->progress().Figures(worker->client().traffic());
    steps += figures.steps();
    push_bytes += figures.push_bytes();
  }
  EXPECT_EQ(steps, 120u);
  uint64_t counted = 0;
  for (size_t shard = 0; shard < servers.size(); ++shard) {
    const v1::StatusReply status = servers[shard]->status();
    EXPECT_EQ(status.pushes_applied(), 120 * TrainableSegments(*servers[shard]));
    EXPECT_EQ(status.pushes_duplicate(), 0u);
    EXPECT_EQ(status.pushes_rejected(), 0u);
    for (const auto& segment : status.segments()) EXPECT_EQ(segment.version(), 120u);
    counted += status.push_bytes();
  }
  EXPECT_EQ(counted, push_bytes);

  double before = 0, after = 0;
  std::vector<float> first(workers[0]->model().schema().elements());
  workers[0]->model().InitialValues(job.seed(), first.data());
  for (size_t k = 0; k < first.size(); ++k) {
    before += std::pow(first[k], 2);
    after += std::pow(workers[0]->client().parameters()[k], 2);
  }
  EXPECT_LT(after, before);
}

INSTANTIATE_TEST_SUITE_P(
    All, Rules,
    ::testing::Values(std::pair{"asgd", "none"}, std::pair{"nag_asgd", "fp16"},
                      std::pair{"multi_asgd", "bf16"}, std::pair{"dana_zero", "one_bit_mean"},
                      std::pair{"dana_slim", "one_bit"}, std::pair{"dana_zero", "top_k"},
                      std::pair{"asgd", "random_k"}, std::pair{"dana_slim", "quantized"}),
    [](const auto& info) { return absl::StrCat(info.param.first, "_", info.param.second); });

TEST(ClientServer, SynchronousWorkersHoldTheSameParameters) {
  const v1::JobSpec job = SyntheticJob({"update.rule=ssgd", "training.max_workers=3"});
  InProcessServers servers(job);
  auto workers = RunJob(job, servers, 3);

  // By hand: 20 rounds an epoch, the mean of three gradients in the order of ranks.
  GradientComputer computer(MakeGradientOptions(job), &workers[0]->model(), &workers[0]->data());
  std::vector<float> theta(workers[0]->model().schema().elements());
  workers[0]->model().InitialValues(job.seed(), theta.data());
  OpenGate gate;
  for (uint64_t ticket = 0; ticket < 120; ticket += 3) {
    std::vector<double> mean(theta.size());
    for (uint64_t rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(computer.Compute(ticket + rank, theta.data(), gate).ok());
      for (size_t k = 0; k < theta.size(); ++k) mean[k] += computer.gradient()[k] / 3.0;
    }
    for (size_t k = 0; k < theta.size(); ++k) theta[k] -= static_cast<float>(0.5 * mean[k]);
  }
  double difference = 0, size = 0;
  for (size_t k = 0; k < theta.size(); ++k) {
    difference += std::pow(theta[k] - workers[0]->client().parameters()[k], 2);
    size += std::pow(theta[k], 2);
  }
  EXPECT_LT(std::sqrt(difference / size), 1e-5);
  for (auto& worker : workers) {
    EXPECT_EQ(std::memcmp(worker->client().parameters(), workers[0]->client().parameters(),
                          theta.size() * sizeof(float)),
              0);
  }
}

// Rounds with a codec: workers hold the same parameters, which are those of three encoders
// and their mean, by hand.
class CompressedRounds : public ::testing::TestWithParam<const char*> {};

TEST_P(CompressedRounds, AreTheMeanOfWhatWasDecoded) {
  const v1::JobSpec job =
      SyntheticJob({"update.rule=ssgd", "training.max_workers=3", "schedule.learning_rate=0.1",
                    "compression.fraction=0.125", absl::StrCat("compression.push=", GetParam()),
                    GetParam() == std::string("quantized") ? "compression.fraction=" : "name=rounds"});
  InProcessServers servers(job);
  auto workers = RunJob(job, servers, 3);

  GradientComputer computer(MakeGradientOptions(job), &workers[0]->model(), &workers[0]->data());
  const Schema& schema = workers[0]->model().schema();
  const auto options = MakeClientOptions(job, schema, workers[0]->data().examples(), {}).value();
  const CodecSet codecs(MakeCodecSettings(job));
  const Codec& codec = *codecs.Find(GetParam());
  std::vector<PushEncoder> encoders;
  encoders.reserve(3);
  for (int w = 0; w < 3; ++w) encoders.emplace_back(MakeEncoderOptions(options));
  std::vector<float> theta(schema.elements()), decoded(schema.elements());
  workers[0]->model().InitialValues(job.seed(), theta.data());
  OpenGate gate;
  for (uint64_t round = 0; round < 40; ++round) {
    std::vector<double> mean(theta.size());
    for (uint32_t rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(computer.Compute(3 * round + rank, theta.data(), gate).ok());
      const PushPlace place = {.worker = rank, .sequence = round + 1, .round = round};
      for (const SegmentPlan& plan : options.plan.segments()) {
        std::vector<uint8_t> bytes(encoders[rank].EncodedBytes(plan));
        encoders[rank].Encode(plan, place, computer.gradient() + plan.begin, bytes.data());
        DecodeSegment(codec, plan.blocks, bytes.data(), PushKey(job.seed(), plan.id, place),
                      decoded.data() + plan.begin);
      }
      for (size_t k = 0; k < theta.size(); ++k) mean[k] += decoded[k] / 3.0;
    }
    for (size_t k = 0; k < theta.size(); ++k) theta[k] -= static_cast<float>(0.1 * mean[k]);
  }
  double difference = 0, size = 0;
  for (size_t k = 0; k < theta.size(); ++k) {
    difference += std::pow(theta[k] - workers[0]->client().parameters()[k], 2);
    size += std::pow(theta[k], 2);
  }
  EXPECT_LT(std::sqrt(difference / size), 1e-4);
  for (auto& worker : workers) {
    EXPECT_EQ(std::memcmp(worker->client().parameters(), workers[0]->client().parameters(),
                          theta.size() * sizeof(float)),
              0);
    const Traffic traffic = worker->client().traffic();
    EXPECT_LT(traffic.push_bytes, traffic.push_uncompressed_bytes / 4);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CompressedRounds, ::testing::Values("random_k", "top_k", "quantized"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ClientServer, ALostWorkersBatchesAreDealtAgain) {
  const v1::JobSpec job = SyntheticJob({"timeouts.lease_seconds=0.5", "training.max_workers=4"});
  InProcessServers servers(job);
  InProcessWorker lost(job, servers.addresses());
  ASSERT_TRUE(lost.Connect().ok());
  ASSERT_TRUE(lost.lead().NextTicket().value().has_value());  // and more in hand
  lost.Vanish();
  auto workers = RunJob(job, servers, 2);
  const v1::StatusReply status = servers[0]->status();
  EXPECT_TRUE(status.finished());
  EXPECT_EQ(status.completed_tickets(), 120u);
  EXPECT_GT(status.redealt_tickets(), 0u);
}

// A reply with tickets that never arrives: the worker does not know of them, and
// says so by what it holds.
TEST(ClientServer, TicketsOfALostReplyComeAgain) {
  const v1::JobSpec job = SyntheticJob({});
  InProcessServers servers(job);
  InProcessWorker worker(job, servers.addresses());
  ASSERT_TRUE(worker.Connect().ok());
  ASSERT_TRUE(worker.lead().NextTicket().ok());
  worker.Vanish();  // its thread does not ask any more
  const auto lead = v1::Lead::NewStub(MakeChannel(servers.addresses()[0]));
  v1::RegisterRequest registration;
  {
    const auto options = MakeClientOptions(job, worker.model().schema(), worker.data().examples(),
                                           servers.addresses());
    ASSERT_TRUE(options.ok());
    registration = MakeRegistration(options->hello, "", "");
  }
  grpc::ClientContext registering;
  v1::RegisterReply slot;
  ASSERT_TRUE(lead->Register(&registering, registration, &slot).ok());
  const auto fetch = [&](uint32_t count, const std::vector<uint64_t>& held) {
    grpc::ClientContext context;
    v1::FetchTicketsRequest request;
    request.set_worker(slot.worker());
    request.set_incarnation(slot.incarnation());
    request.set_count(count);
    request.mutable_held()->Assign(held.begin(), held.end());
    v1::FetchTicketsReply reply;
    EXPECT_TRUE(lead->FetchTickets(&context, request, &reply).ok());
    return std::vector<uint64_t>(reply.tickets().begin(), reply.tickets().end());
  };
  const std::vector<uint64_t> first = fetch(3, {});
  ASSERT_EQ(first.size(), 3u);
  // It knows of one of them only: the two others come again, and a new one.
  const std::vector<uint64_t> again = fetch(3, {first[0]});
  ASSERT_EQ(again.size(), 3u);
  EXPECT_EQ(again[0], first[1]);
  EXPECT_EQ(again[1], first[2]);
  EXPECT_GT(again[2], first[2]);
}

TEST(ClientServer, ANewerIncarnationFencesTheOlder) {
  const v1::JobSpec job = SyntheticJob({"training.epochs=1000"});
  InProcessServers servers(job);
  InProcessWorker older(job, servers.addresses());
  ASSERT_TRUE(older.Connect(1).ok());
  absl::Status ended;
  std::thread training([&] { ended = older.Train(); });
  InProcessWorker newer(job, servers.addresses());
  ASSERT_TRUE(newer.Connect(1).ok());
  EXPECT_GT(newer.lead().incarnation(), older.lead().incarnation());
  training.join();
  EXPECT_EQ(ended.code(), absl::StatusCode::kAborted) << ended;
  EXPECT_THAT(std::string(ended.message()), HasSubstr("server "));
}

TEST(ClientServer, AnotherJobModelOrPlanIsRefusedByName) {
  const v1::JobSpec job = SyntheticJob({});
  InProcessServers servers(job);
  InProcessWorker first(job, servers.addresses());
  ASSERT_TRUE(first.Connect().ok());
  for (const auto& [override, named] :
       std::vector<std::pair<std::string, std::string>>{{"schedule.learning_rate=0.4", "job"},
                                                        {"data.examples=700", "job"}}) {
    InProcessWorker other(SyntheticJob({override}), servers.addresses());
    const absl::Status status = other.Connect();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << override << ": " << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("server 0 at"), HasSubstr(named)));
  }
}

TEST(ClientServer, AServerThatComesBackWithoutItsStateEndsTheRun) {
  const v1::JobSpec job =
      SyntheticJob({"training.epochs=100000", "training.workers=1", "timeouts.connect_seconds=20"});
  InProcessServers servers(job);
  InProcessWorker worker(job, servers.addresses());
  ASSERT_TRUE(worker.Connect().ok());
  absl::Status ended;
  std::thread training([&] { ended = worker.Train(); });
  const std::string address = servers.addresses()[1];
  servers[1]->Shutdown().IgnoreError();
  servers[1].reset();
  auto again = ShardServer::Start({.job = job, .shard = 1, .listen = address});
  ASSERT_TRUE(again.ok()) << again.status();
  training.join();
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
  EXPECT_THAT(std::string(ended.message()),
              AllOf(HasSubstr("server 1 at " + address), HasSubstr("started again")));
}

TEST(ClientServer, AServerThatStaysAwayEndsTheRun) {
  const v1::JobSpec job =
      SyntheticJob({"training.epochs=100000", "training.workers=1", "timeouts.connect_seconds=0.5"});
  InProcessServers servers(job);
  InProcessWorker worker(job, servers.addresses());
  ASSERT_TRUE(worker.Connect().ok());
  absl::Status ended;
  std::thread training([&] { ended = worker.Train(); });
  servers[1]->Shutdown().IgnoreError();
  training.join();
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
  EXPECT_THAT(std::string(ended.message()),
              AllOf(HasSubstr("server 1 at"), HasSubstr("timeouts.connect_seconds")));
}

TEST(ClientServer, TheEvaluatorFollowsAJobToItsEnd) {
  const v1::JobSpec job = SyntheticJob({"training.workers=2", "update.rule=dana_zero",
                                        "update.momentum=0.5", "schedule.learning_rate=0.05"});
  InProcessServers servers(job);
  auto device = kernels::MakeDevice("cpu").value();
  auto train = LoadTrainingData(job).value();
  auto test = LoadTestData(job, *train).value();
  auto model = MakeJobModel(job, *train, *device).value();
  auto options = MakeClientOptions(job, model->schema(), train->examples(), servers.addresses());
  ASSERT_TRUE(options.ok());
  options->hello.set_reader(true);
  absl::Status ended;
  std::thread evaluating([&] {
    auto client = ParameterClient::Connect(*options);
    ASSERT_TRUE(client.ok()) << client.status();
    ended = (*client)->AwaitInitialised();
    ASSERT_TRUE(ended.ok()) << ended;
    Evaluator evaluator({.batch_size = 10}, model.get(), train.get(), test.get());
    EvaluatorRun run;
    run.lead = servers.addresses()[0];
    run.contract = options->hello.contract();
    run.lookahead = true;
    ended = RunEvaluator(run, &evaluator, client->get());
  });
  RunJob(job, servers, 2);
  evaluating.join();
  ASSERT_TRUE(ended.ok()) << ended;
  const v1::StatusReply status = servers[0]->status();
  ASSERT_GE(status.evaluations_size(), 2);
  std::map<std::string, double> final_loss;
  for (const auto& evaluation : status.evaluations()) {
    if (!evaluation.final()) continue;
    EXPECT_EQ(evaluation.epoch(), 2u);
    EXPECT_EQ(evaluation.examples(), test->examples());
    final_loss[evaluation.parameters()] = evaluation.loss();
  }
  ASSERT_EQ(final_loss.size(), 2u);
  EXPECT_GT(final_loss["master"], 0);
  // Once all workers have left there is no momentum to look ahead along.
  EXPECT_NEAR(final_loss["lookahead"], final_loss["master"], 0.1 * final_loss["master"]);
}

}  // namespace
}  // namespace foreshard
