#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "server/shard.h"
#include "common/net/retry_after.h"
#include "tests/server/server_harness.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(Hello, TheFirstBringsTheSchemaAndTheRestMustMatch) {
  TestServers servers(TestJob());
  EXPECT_EQ(servers.Status().state(), "waiting for schema");
  TestWorker early(servers, 0, 5);
  EXPECT_EQ(early.Read(0).status.code(), Code::kFailedPrecondition);

  const v1::HelloRequest good = servers.Hello(0, 5);
  v1::HelloReply reply;
  ASSERT_TRUE(servers.Say(0, good, &reply).ok());
  EXPECT_EQ(reply.missing_segments_size(), 4);  // 350 in pieces of 128, and the statistics
  EXPECT_EQ(servers.Status().state(), "initialising");
  EXPECT_THAT(servers.Status().waiting_for(), HasSubstr("first values of 4 of 4 segments"));

  const auto refused = [&](auto change) {
    v1::HelloRequest request = servers.Hello(1, 5);
    change(request);
    const absl::Status status = servers.Say(0, request);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status;
    return Message(status);
  };
  EXPECT_THAT(refused([](auto& r) {
                r.mutable_contract()->set_protocol(99);
                r.mutable_contract()->set_oldest_protocol(98);
              }),
              HasSubstr("another protocol version"));
  const std::string job = refused([](auto& r) {
    r.mutable_contract()->set_job(1);
    r.set_job_name("other");
  });
  EXPECT_THAT(job, HasSubstr("another job"));
  EXPECT_THAT(job, HasSubstr("'test' here, 'other' there"));
  const std::string schema = refused([&](auto& r) {
    const Schema other = TestSchema(301);
    *r.mutable_model() = ToProto(other);
    r.mutable_contract()->set_schema(other.fingerprint());
  });
  EXPECT_THAT(schema, HasSubstr("another model schema"));
  EXPECT_THAT(schema, HasSubstr("w"));
  EXPECT_THAT(refused([](auto& r) { r.mutable_contract()->set_plan(1); }),
              HasSubstr("another shard plan"));
  EXPECT_THAT(refused([](auto& r) { r.set_train_examples(999); }), HasSubstr("train_examples: 999"));
  EXPECT_THAT(refused([](auto& r) { r.set_train_examples(0); }), HasSubstr("train_examples: 0"));
  EXPECT_TRUE(servers.Say(0, servers.Hello(1, 5)).ok());
  EXPECT_EQ(servers.Say(0, servers.Hello(1, 4)).code(), Code::kAborted);
  EXPECT_EQ(servers.Say(0, servers.Hello(4, 5)).code(), Code::kInvalidArgument);
}

TEST(Hello, ContradictionsInTheFirstOneLeaveTheServerFree) {
  TestServers servers(TestJob());
  v1::HelloRequest request = servers.Hello(0, 5);
  request.mutable_contract()->set_schema(1);
  EXPECT_EQ(servers.Say(0, request).code(), Code::kFailedPrecondition);
  request = servers.Hello(0, 5);
  request.mutable_model()->mutable_tensors(0)->set_shape(0, -1);
  EXPECT_EQ(servers.Say(0, request).code(), Code::kFailedPrecondition);
  request = servers.Hello(0, 5);
  request.mutable_model()->clear_tensors();
  EXPECT_EQ(servers.Say(0, request).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(servers.Say(0, servers.Hello(0, 5)).ok());
}

TEST(Hello, ModelsThatDoNotFitAreRefusedWithTheFigures) {
  TestServers servers(TestJob());
  v1::HelloRequest request = servers.Hello(0, 5);
  request.mutable_model()->mutable_tensors(0)->set_shape(0, int64_t{1} << 39);
  const absl::Status status = servers.Say(0, request);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(Message(status), HasSubstr("MiB are available"));
  EXPECT_TRUE(servers.Say(0, servers.Hello(0, 5)).ok());
}

TEST(Exchange, InitialisesReadsAndPushes) {
  TestServers servers(TestJob({"servers.shards=2"}));
  TestWorker worker(servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  EXPECT_EQ(worker.Read(0).status.code(), Code::kFailedPrecondition);  // no values yet
  worker.InitialiseAll(3);
  EXPECT_EQ(worker.Initialise(0, 4).header.result(), v1::ReplyHeader::INITIALISED);  // ignored
  Answer read = worker.Read(0);
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.header.result(), v1::ReplyHeader::CURRENT);
  EXPECT_THAT(read.values, ::testing::Each(3.0f));

  const std::vector<float> gradient = worker.Gradient(0, 0);
  const Answer pushed = worker.Push(0, 0);
  ASSERT_TRUE(pushed.status.ok()) << pushed.status;
  EXPECT_EQ(pushed.header.result(), v1::ReplyHeader::APPLIED);
  EXPECT_EQ(pushed.header.version(), 1);
  EXPECT_EQ(pushed.header.lag(), 0);
  // dana_zero: theta - eta v, then the look-ahead by eta gamma v; warm-up is off.
  for (size_t k = 0; k < gradient.size(); ++k) {
    EXPECT_NEAR(pushed.values[k], 3 - 0.01 * 1.9 * gradient[k], 1e-5);
  }
  // A reader sees the master's, and changes nothing.
  TestWorker reader(servers, 0, 0);
  v1::ExchangeHeader header = reader.Header(v1::ExchangeHeader::READ, 0);
  header.set_lookahead(false);
  const Answer master = reader.Send(header);
  ASSERT_TRUE(master.status.ok()) << master.status;
  for (size_t k = 0; k < gradient.size(); ++k) {
    EXPECT_NEAR(master.values[k], 3 - 0.01 * gradient[k], 1e-5);
  }
  // The last segment is of the statistics, on the last shard.
  const auto statistics = static_cast<uint32_t>(servers.plan.segments().size() - 1);
  EXPECT_EQ(worker.Push(statistics, 0).header.result(), v1::ReplyHeader::APPLIED);
  EXPECT_EQ(servers.Status(0).pushes_applied(), 1);
  EXPECT_EQ(servers.Status(1).pushes_applied(), 0);  // statistics are no pushes
  EXPECT_GT(servers.Status(1).statistics_push_bytes(), 80);
  EXPECT_EQ(servers.Status(1).push_bytes(), 0);
}

TEST(Exchange, DuplicatesAreAnsweredButNotApplied) {
  TestServers servers(TestJob());
  TestWorker worker(servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.InitialiseAll();
  worker.Read(0);
  const v1::ExchangeHeader header = worker.PushHeader(0, 3);
  const std::string payload = worker.Encode(0, worker.Gradient(0, 3));
  const Answer first = worker.Send(header, payload);
  const Answer again = worker.Send(header, payload);
  EXPECT_EQ(first.header.result(), v1::ReplyHeader::APPLIED);
  EXPECT_EQ(again.header.result(), v1::ReplyHeader::DUPLICATE);
  EXPECT_EQ(again.header.version(), 1);
  EXPECT_EQ(again.values, first.values);
  const v1::StatusReply status = servers.Status();
  EXPECT_EQ(status.pushes_applied(), 1);
  EXPECT_EQ(status.pushes_duplicate(), 1);
}

TEST(Exchange, SkipsAreCountedAndConsumed) {
  TestServers servers(TestJob());
  TestWorker worker(servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.InitialiseAll();
  worker.Read(0);
  v1::ExchangeHeader header = worker.PushHeader(0, 7);
  header.set_kind(v1::ExchangeHeader::SKIP);
  const Answer skipped = worker.Send(header);
  EXPECT_EQ(skipped.header.result(), v1::ReplyHeader::SKIPPED);
  EXPECT_EQ(skipped.header.version(), 0);
  EXPECT_EQ(skipped.header.clock(), 7);
  EXPECT_EQ(servers.Status().pushes_skipped(), 1);
  EXPECT_EQ(servers.Status().pushes_applied(), 0);
}

// Two workers at a step of the rate.
TEST(Exchange, RepairsWaitUntilAllHaveBroughtTheirMomentum) {
  TestServers servers(TestJob({"update.rule=dana_slim", "schedule.decay=step",
                               "schedule.decay_epochs=0.125", "schedule.decay_factor=0.5"}));
  TestWorker a(servers, 0, 5), b(servers, 1, 5);
  ASSERT_TRUE(a.SayHello().ok() && b.SayHello().ok());
  a.InitialiseAll(1);
  for (TestWorker* worker : {&a, &b}) {
    ASSERT_TRUE(worker->Read(0).status.ok());
    ASSERT_TRUE(worker->Push(0, worker->worker()).status.ok());
  }
  const std::vector<float> before = a.Read(0).values;
  const auto repair = [&](TestWorker& worker, const std::string& payload) {
    v1::ExchangeHeader header = worker.Header(v1::ExchangeHeader::REPAIR, 0);
    header.set_ticket(13);
    return worker.Send(header, payload);
  };
  const std::string ones = a.Encode(0, std::vector<float>(128, 1));
  Answer answer = repair(a, ones);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.header.result(), v1::ReplyHeader::PENDING);
  ASSERT_EQ(answer.header.missing_workers_size(), 1);
  EXPECT_EQ(answer.header.missing_workers(0), 1u);
  EXPECT_TRUE(answer.values.empty());
  EXPECT_THAT(servers.Status().waiting_for(), HasSubstr("momentum of workers 1"));
  // Neither may push beyond, and the other has something to bring.
  EXPECT_EQ(a.Push(0, 13).status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(b.Push(0, 14).status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(repair(b, "").status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(repair(a, "").header.result(), v1::ReplyHeader::PENDING);
  answer = repair(b, ones);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.header.result(), v1::ReplyHeader::CURRENT);
  EXPECT_EQ(answer.header.clock(), 13u);
  EXPECT_FLOAT_EQ(answer.header.learning_rate(), 0.005f);
  // By half a rate of 0.01 times 0.9, of each.
  for (size_t k = 0; k < before.size(); ++k) EXPECT_NEAR(answer.values[k], before[k] + 0.009f, 1e-6f);
  EXPECT_EQ(repair(a, "").values, answer.values);
  EXPECT_EQ(servers.Status().waiting_for(), "");
  EXPECT_EQ(servers.Status().pushes_applied(), 2u);
  EXPECT_EQ(a.Push(0, 13).status.code(), Code::kOk);
}

TEST(Exchange, CountsStalenessAndBytesExactly) {
  TestServers servers(TestJob());
  TestWorker slow(servers, 0, 5), fast(servers, 1, 5);
  ASSERT_TRUE(slow.SayHello().ok());
  ASSERT_TRUE(fast.SayHello().ok());
  slow.InitialiseAll();
  for (uint32_t segment = 0; segment < 3; ++segment) {
    slow.Read(segment);
    fast.Read(segment);
  }
  for (uint64_t ticket = 0; ticket < 3; ++ticket) fast.Push(0, ticket, CodecId::kOneBit);
  EXPECT_EQ(slow.Push(0, 3, CodecId::kOneBit).header.lag(), 3);
  const v1::StatusReply status = servers.Status();
  ASSERT_EQ(status.staleness_counts_size(), 4);
  EXPECT_EQ(status.staleness_counts(0), 3);
  EXPECT_EQ(status.staleness_counts(3), 1);
  EXPECT_EQ(status.staleness_sum(), 3);
  EXPECT_EQ(status.staleness_max(), 3);
  const uint64_t elements = servers.plan.segments()[0].elements;
  EXPECT_EQ(status.push_uncompressed_bytes(), 4 * elements * 4);
  // Signs and two scales, and a header of some dozens of bytes.
  EXPECT_GT(status.push_bytes(), 4 * (elements / 8 + 8));
  EXPECT_LT(status.push_bytes(), 4 * (elements / 8 + 8 + 120));
  EXPECT_GT(status.pull_bytes(), status.pull_uncompressed_bytes());
  EXPECT_EQ(status.gap_count(), 4);
  EXPECT_GT(status.gap_sum(), 0);
  // All of that was the first segment's.
  ASSERT_GT(status.segments_size(), 1);
  EXPECT_EQ(status.segments(0).pushes(), 4);
  EXPECT_DOUBLE_EQ(status.segments(0).staleness_mean(), 0.75);
  EXPECT_EQ(status.segments(0).staleness_max(), 3);
  EXPECT_DOUBLE_EQ(status.segments(0).gap_mean(), status.gap_sum() / 4);
  EXPECT_DOUBLE_EQ(status.segments(0).surprise_mean(), status.surprise_sum() / 4);
  EXPECT_EQ(status.segments(1).pushes(), 0);
  EXPECT_EQ(status.segments(1).gap_mean(), 0);
  ASSERT_EQ(status.workers_size(), 2);
  EXPECT_EQ(status.workers(0).pushes(), 1);
  EXPECT_EQ(status.workers(0).staleness_max(), 3);
  EXPECT_EQ(status.workers(1).pushes(), 3);
  EXPECT_EQ(status.workers(1).staleness_mean(), 0);
  EXPECT_EQ(status.workers(1).state(), "training");
  EXPECT_EQ(status.workers(1).name(), "w1");
  EXPECT_FLOAT_EQ(status.learning_rate(), 0.01f);
}

TEST(Exchange, LargeSegmentsGoThroughTheApplyThreads) {
  const v1::JobSpec job = TestJob({"model.elements=400050", "compression.block_elements=4096",
                                   "servers.segment_elements=200000", "compression.reply=fp16"});
  TestServers servers(job, TestSchema(400'000));
  TestWorker worker(servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.InitialiseAll();
  Answer answer = worker.Read(0);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.values.size(), servers.plan.segments()[0].elements);
  for (uint64_t ticket = 0; ticket < 60; ++ticket) {
    answer = worker.Push(0, ticket);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.header.version(), ticket + 1);
  }
  // Buffers come back, if at times only after the next request is there.
  EXPECT_LE(servers.servers[0]->reply_allocations(), 4);
}

struct BadExchange {
  const char* name;
  Code code;
  const char* expected;
  void (*change)(v1::ExchangeHeader&, std::string&);
};

class RefusedExchange : public ::testing::TestWithParam<BadExchange> {};

// One bad push each; the server stays what it was, and takes the next good one.
TEST_P(RefusedExchange, SaysWhyAndChangesNothing) {
  TestServers servers(TestJob({"servers.shards=2"}));
  TestWorker worker(servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.InitialiseAll();
  worker.Read(0);
  const std::vector<std::string> before = servers.servers[0]->SaveSegments();
  v1::ExchangeHeader header = worker.PushHeader(0, 0);
  std::string payload = worker.Encode(0, worker.Gradient(0, 0));
  GetParam().change(header, payload);
  const bool checksum = header.checksum() == 0;
  const Answer answer = worker.Send(header, payload, checksum);
  EXPECT_EQ(answer.status.code(), GetParam().code) << answer.status;
  EXPECT_THAT(Message(answer.status), HasSubstr(GetParam().expected));
  EXPECT_EQ(servers.servers[0]->SaveSegments(), before);
  const bool push = header.kind() == v1::ExchangeHeader::PUSH || header.kind() == v1::ExchangeHeader::SKIP;
  EXPECT_EQ(servers.Status().pushes_rejected(), push ? 1 : 0);
  worker.sequence(0) = 0;
  EXPECT_EQ(worker.Push(0, 0).header.result(), v1::ReplyHeader::APPLIED);
}

void PutFloat(std::string& payload, size_t index, float value) {
  std::memcpy(payload.data() + index * 4, &value, 4);
}

INSTANTIATE_TEST_SUITE_P(
    Exchange, RefusedExchange,
    ::testing::Values(
        BadExchange{"protocol", Code::kFailedPrecondition, "another protocol version",
                    [](auto& h, auto&) { h.mutable_contract()->set_protocol(1); }},
        BadExchange{"job", Code::kFailedPrecondition, "another job",
                    [](auto& h, auto&) { h.mutable_contract()->set_job(2); }},
        BadExchange{"schema", Code::kFailedPrecondition, "another model schema",
                    [](auto& h, auto&) { h.mutable_contract()->set_schema(2); }},
        BadExchange{"plan", Code::kFailedPrecondition, "another shard plan",
                    [](auto& h, auto&) { h.mutable_contract()->set_plan(2); }},
        BadExchange{"no_contract", Code::kFailedPrecondition, "another protocol version",
                    [](auto& h, auto&) { h.clear_contract(); }},
        BadExchange{"segment", Code::kInvalidArgument, "segment 1000 is not of shard 0",
                    [](auto& h, auto&) { h.set_segment(1000); }},
        BadExchange{"largest_segment", Code::kInvalidArgument, "is not of shard 0",
                    [](auto& h, auto&) { h.set_segment(0xffffffff); }},
        BadExchange{"worker", Code::kInvalidArgument, "beyond the job's 4 slots",
                    [](auto& h, auto&) { h.set_worker(4); }},
        BadExchange{"largest_worker", Code::kInvalidArgument, "beyond the job's 4 slots",
                    [](auto& h, auto&) { h.set_worker(0xffffffff); }},
        BadExchange{"stranger", Code::kFailedPrecondition, "say Hello first",
                    [](auto& h, auto&) { h.set_worker(1); }},
        BadExchange{"fenced", Code::kAborted, "fenced",
                    [](auto& h, auto&) { h.set_incarnation(4); }},
        BadExchange{"future", Code::kFailedPrecondition, "say Hello first",
                    [](auto& h, auto&) { h.set_incarnation(6); }},
        BadExchange{"reader", Code::kInvalidArgument, "may only read",
                    [](auto& h, auto&) { h.set_incarnation(0); }},
        BadExchange{"short", Code::kInvalidArgument, "a payload of 508 bytes",
                    [](auto&, auto& p) { p.resize(p.size() - 4); }},
        BadExchange{"long", Code::kInvalidArgument, "a payload of 516 bytes",
                    [](auto&, auto& p) { p.resize(p.size() + 4); }},
        BadExchange{"empty", Code::kInvalidArgument, "a payload of 0 bytes",
                    [](auto&, auto& p) { p.clear(); }},
        BadExchange{"other_codec", Code::kInvalidArgument, "a payload of 512 bytes",
                    [](auto& h, auto&) { h.set_codec(3); }},
        BadExchange{"unknown_codec", Code::kInvalidArgument, "codec 77 is unknown",
                    [](auto& h, auto&) { h.set_codec(77); }},
        BadExchange{"wide_codec", Code::kInvalidArgument, "codec 256 is unknown",
                    [](auto& h, auto&) { h.set_codec(256); }},
        BadExchange{"reply_codec", Code::kInvalidArgument, "codec 3 is none that a reply of this job can have",
                    [](auto& h, auto&) { h.set_reply_codec(3); }},
        BadExchange{"nan", Code::kInvalidArgument, "not finite, element 77",
                    [](auto&, auto& p) { PutFloat(p, 77, std::nanf("")); }},
        BadExchange{"infinity", Code::kInvalidArgument, "worker 0 sent a value that is not finite",
                    [](auto&, auto& p) { PutFloat(p, 0, -std::numeric_limits<float>::infinity()); }},
        BadExchange{"damaged", Code::kDataLoss, "checksum of the payload is wrong",
                    [](auto& h, auto&) { h.set_checksum(12345); }},
        BadExchange{"sequence", Code::kInvalidArgument, "sequence 0",
                    [](auto& h, auto&) { h.set_sequence(0); }},
        BadExchange{"ticket", Code::kInvalidArgument, "ticket 2000; the job has 2000",
                    [](auto& h, auto&) { h.set_ticket(2000); }},
        BadExchange{"version", Code::kOutOfRange, "claims version 9",
                    [](auto& h, auto&) { h.set_held_version(9); }},
        BadExchange{"kind", Code::kInvalidArgument, "kind 9 is unknown",
                    [](auto& h, auto&) { h.set_kind(static_cast<v1::ExchangeHeader::Kind>(9)); }},
        BadExchange{"fetch", Code::kInvalidArgument, "no rounds to fetch",
                    [](auto& h, auto& p) { h.set_kind(v1::ExchangeHeader::FETCH); p.clear(); }},
        BadExchange{"skip_with_payload", Code::kInvalidArgument, "where none belong",
                    [](auto& h, auto&) { h.set_kind(v1::ExchangeHeader::SKIP); }},
        BadExchange{"read_with_payload", Code::kInvalidArgument, "where none belong",
                    [](auto& h, auto&) { h.set_kind(v1::ExchangeHeader::READ); }},
        BadExchange{"initialise_encoded", Code::kInvalidArgument, "plain fp32",
                    [](auto& h, auto&) {
                      h.set_kind(v1::ExchangeHeader::INITIALISE);
                      h.set_codec(1);
                    }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Exchange, GarbageIsRefused) {
  TestServers servers(TestJob());
  TestWorker worker(servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.InitialiseAll();
  worker.Read(0);
  const std::vector<std::string> before = servers.servers[0]->SaveSegments();
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    grpc::Slice slice(bytes);
    const auto reply = SendRaw(servers.channels[0], grpc::ByteBuffer(&slice, 1));
    EXPECT_FALSE(reply.ok());
    EXPECT_NE(reply.status().code(), Code::kUnavailable) << reply.status();
  }
  // A good push with bits turned over: refused, or the push it says it is.
  const std::string payload = worker.Encode(0, worker.Gradient(0, 0));
  v1::ExchangeRequest request;
  *request.mutable_header() = worker.PushHeader(0, 0);
  request.set_payload(payload);
  const std::string good = request.SerializeAsString();
  for (int round = 0; round < 1000; ++round) {
    std::string bytes = good;
    bytes[random() % bytes.size()] ^= static_cast<char>(1 << (random() % 8));
    grpc::Slice slice(bytes);
    const auto reply = SendRaw(servers.channels[0], grpc::ByteBuffer(&slice, 1));
    if (!reply.ok()) {
      EXPECT_NE(reply.status().code(), Code::kUnavailable) << reply.status();
    }
  }
  EXPECT_EQ(servers.servers[0]->SaveSegments(), before);  // none has a checksum
  EXPECT_EQ(worker.Push(0, 0).header.result(), v1::ReplyHeader::APPLIED);
}

TEST(Exchange, IsBoundedByTheByteBudget) {
  TestServers servers(TestJob({"servers.inflight_bytes=1100000"}));
  TestWorker worker(servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.InitialiseAll();
  const Answer answer =
      worker.Send(worker.PushHeader(0, 0), std::string(1'200'000, 'x'));
  EXPECT_EQ(answer.status.code(), Code::kResourceExhausted);
  EXPECT_THAT(Message(answer.status), HasSubstr("servers.inflight_bytes"));
  EXPECT_TRUE(worker.Read(0).status.ok());
  EXPECT_EQ(servers.Status().pushes_rejected(), 0);  // it may come again
}

TEST(Exchange, WithoutRoomCallersAreToldWhenToComeAgain) {
  TestServers servers(TestJob({"servers.inflight_bytes=1100000"}));
  const grpc::Slice slice(std::string(1'200'000, 'x'));
  const grpc::ByteBuffer request(&slice, 1);
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(servers.channels[0]);
  absl::Duration last = absl::ZeroDuration();
  for (int k = 0; k < 5; ++k) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    grpc::ByteBuffer reply;
    grpc::Status status;
    auto reader = stub.PrepareUnaryCall(&context, "/foreshard.v1.ParameterServer/Exchange", request, &queue);
    reader->StartCall();
    reader->Finish(&reply, &status, &status);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    ASSERT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    const absl::Duration wait = RetryAfter(context.GetServerTrailingMetadata());
    EXPECT_GT(wait, last) << "one behind the other";
    last = wait;
  }
  EXPECT_LE(last, kLongestRetryAfter);
}

TEST(Hello, IsBoundedByItsLengthAndTheByteBudget) {
  TestServers servers(TestJob({"servers.inflight_bytes=1100000"}));
  const auto say = [&](size_t bytes) {
    v1::HelloRequest request = servers.Hello(0, 5);
    request.set_job_text(std::string(bytes, 'x'));
    return servers.Say(0, request);
  };
  EXPECT_TRUE(say(1000).ok());
  const absl::Status refused = say(50'000);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(Message(refused), HasSubstr("40 times as many must fit into servers.inflight_bytes (1100000)"));
  const grpc::Slice slice("\xff");
  const auto nonsense = SendRaw(servers.channels[0], grpc::ByteBuffer(&slice, 1), 30, "/foreshard.v1.Lead/Register");
  EXPECT_EQ(nonsense.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(Message(nonsense.status()), HasSubstr("bytes that are no RegisterRequest"));
}

// The highest would leave the lead none to give out.
TEST(Hello, AnIncarnationThatNoLeadCanHaveGivenIsRefused) {
  TestServers servers(TestJob({"servers.shards=2"}));
  const auto registration = [&] {
    grpc::ClientContext context;
    v1::RegisterReply reply;
    v1::RegisterRequest request = servers.Registration("a");
    request.set_wanted_slot(0);
    EXPECT_TRUE(v1::Lead::NewStub(servers.channels[0])->Register(&context, request, &reply).ok());
    return reply.incarnation();
  };
  const uint64_t first = registration();
  for (const uint32_t shard : {0u, 1u}) {
    for (const uint64_t incarnation : {~uint64_t{0}, ~uint64_t{0} - 1, 2 * first}) {
      const absl::Status refused = servers.Say(shard, servers.Hello(0, incarnation));
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("none that a lead can have given"));
    }
    EXPECT_TRUE(servers.Say(shard, servers.Hello(0, first)).ok());
  }
  // The lead knows what it gave; others allow for clocks that differ.
  constexpr uint64_t kMinute = 60'000'000;
  EXPECT_FALSE(servers.Say(0, servers.Hello(1, first + kMinute)).ok());
  EXPECT_TRUE(servers.Say(1, servers.Hello(1, first + kMinute)).ok());
  EXPECT_EQ(registration(), first + 1);
}

TEST(Hello, TextsAreBoundedAtTheDoor) {
  TestServers servers(TestJob());
  v1::HelloRequest hello = servers.Hello(0, 5);
  hello.set_worker_name("a\nb");
  EXPECT_EQ(servers.Say(0, hello).code(), absl::StatusCode::kInvalidArgument);
  hello.set_worker_name(std::string(900'000, 'n'));
  EXPECT_THAT(std::string(servers.Say(0, hello).message()), HasSubstr("worker_name: 900000 bytes; at most 256"));
  EXPECT_EQ(servers.Status().workers_size(), 0);
}

TEST(Hello, AgreesOnTheNewestProtocolThatBothSpeak) {
  TestServers servers(TestJob());
  v1::HelloRequest request = servers.Hello(0, 5);
  v1::HelloReply reply;
  const auto say = [&](uint32_t oldest, uint32_t newest) {
    request.mutable_contract()->set_oldest_protocol(oldest);
    request.mutable_contract()->set_protocol(newest);
    return servers.Say(0, request, &reply);
  };
  EXPECT_TRUE(say(kProtocolVersion, kProtocolVersion + 1).ok());
  EXPECT_EQ(reply.protocol(), kProtocolVersion);
  EXPECT_TRUE(say(0, kProtocolVersion).ok());
  EXPECT_EQ(reply.protocol(), kProtocolVersion);
  EXPECT_TRUE(say(0, kOldestProtocol).ok());
  EXPECT_EQ(reply.protocol(), kOldestProtocol);
  for (const absl::Status& refused : {say(0, kProtocolVersion + 1), say(0, kOldestProtocol - 1)}) {
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
    EXPECT_THAT(Message(refused), HasSubstr("another protocol version"));
  }
  // The worker says in every message what it speaks.
  TestWorker worker(servers, 0, 5);
  worker.InitialiseAll();
  v1::ExchangeHeader header = worker.PushHeader(0, 0);
  header.mutable_contract()->set_protocol(kProtocolVersion + 1);
  header.mutable_contract()->set_oldest_protocol(kProtocolVersion + 1);
  const std::string payload = worker.Encode(0, worker.Gradient(0, 0));
  EXPECT_EQ(worker.Send(header, payload).status.code(), Code::kFailedPrecondition);
  header.mutable_contract()->set_oldest_protocol(kProtocolVersion);
  EXPECT_EQ(worker.Send(header, payload).header.result(), v1::ReplyHeader::APPLIED);
}

TEST(Exchange, RepliesCarryDifferencesWhereTheJobSaysSo) {
  TestServers servers(TestJob({"compression.reply=one_bit"}));
  TestWorker worker(servers, 0, 5), other(servers, 1, 6), reader(servers, 0, 0);
  ASSERT_TRUE(worker.SayHello().ok());
  ASSERT_TRUE(other.SayHello().ok());
  worker.InitialiseAll();
  std::vector<float> held = worker.Read(0).values;
  other.Read(0);
  const auto header = [](TestWorker& of, uint64_t ticket) {
    v1::ExchangeHeader push = of.PushHeader(0, ticket);
    push.set_reply_codec(static_cast<uint32_t>(CodecId::kOneBit));
    return push;
  };
  const auto payload = [&](uint64_t ticket) { return worker.Encode(0, worker.Gradient(0, ticket)); };
  ASSERT_TRUE(other.Send(header(other, 0), payload(0)).status.ok());
  const v1::ExchangeHeader push = header(worker, 1);
  Answer answer = worker.Send(push, payload(1));
  EXPECT_EQ(answer.header.result(), v1::ReplyHeader::APPLIED);
  EXPECT_TRUE(answer.header.delta());
  EXPECT_EQ(answer.header.codec(), static_cast<uint32_t>(CodecId::kOneBit));
  EXPECT_EQ(answer.header.delta_base(), 0u);
  EXPECT_EQ(answer.header.version(), 2u);
  ASSERT_EQ(answer.values.size(), held.size());
  for (size_t k = 0; k < held.size(); ++k) held[k] += answer.values[k];
  // The same again: the parameters themselves, near what the difference gave.
  answer = worker.Send(push, payload(1));
  EXPECT_EQ(answer.header.result(), v1::ReplyHeader::DUPLICATE);
  EXPECT_FALSE(answer.header.delta());
  EXPECT_EQ(answer.header.codec(), 0u);
  for (size_t k = 0; k < held.size(); ++k) EXPECT_NEAR(answer.values[k], held[k], 0.1);
  // Whoever reads, and statistics, want nothing to add to.
  v1::ExchangeHeader read = reader.Header(v1::ExchangeHeader::READ, 0);
  read.set_reply_codec(static_cast<uint32_t>(CodecId::kOneBit));
  answer = reader.Send(read);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.header.codec(), 0u);
  v1::ExchangeHeader bf16 = header(worker, 2);
  bf16.set_reply_codec(static_cast<uint32_t>(CodecId::kBf16));
  EXPECT_EQ(worker.Send(bf16, payload(2)).status.code(), Code::kInvalidArgument);
  EXPECT_LT(servers.Status().pull_bytes(), servers.Status().pull_uncompressed_bytes());
}

class EventsReplay : public ::testing::TestWithParam<std::string> {};

// The whole run from its events: every segment, bit for bit.
TEST_P(EventsReplay, ToTheSameState) {
  RecordingSink sink;
  const auto reply_codec = static_cast<uint32_t>(CodecSet().Find(GetParam())->id());
  const v1::JobSpec job = TestJob({"compression.reply=" + GetParam()});
  TestServers servers(job, TestSchema(), &sink);
  const auto segments = static_cast<uint32_t>(servers.plan.segments().size());
  std::vector<std::unique_ptr<TestWorker>> workers;
  for (uint32_t w = 0; w < 4; ++w) {
    workers.push_back(std::make_unique<TestWorker>(servers, w, 5));
    ASSERT_TRUE(workers.back()->SayHello().ok());
  }
  workers[0]->InitialiseAll();
  std::vector<std::thread> threads;
  for (auto& worker : workers) {
    threads.emplace_back([&, w = worker.get()] {
      for (uint32_t segment = 0; segment < segments; ++segment) w->Read(segment);
      for (uint64_t step = 0; step < 40; ++step) {
        const uint64_t ticket = 4 * step + w->worker();
        for (uint32_t segment = 0; segment < segments; ++segment) {
          const bool trainable = servers.plan.segments()[segment].kind == TensorKind::kTrainable;
          v1::ExchangeHeader header =
              w->PushHeader(segment, ticket, trainable ? CodecId::kOneBit : CodecId::kNone);
          header.set_reply_codec(trainable ? reply_codec : 0);
          const std::string payload =
              w->Encode(segment, w->Gradient(segment, ticket), static_cast<CodecId>(header.codec()));
          EXPECT_TRUE(w->Send(header, payload).status.ok());
          if (step % 7 == 0) {  // its answer was lost
            EXPECT_TRUE(w->Send(header, payload).status.ok());
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  v1::HeartbeatRequest leave;
  leave.set_worker(3);
  leave.set_incarnation(5);
  leave.set_leaving(true);
  grpc::ClientContext context;
  v1::HeartbeatReply left;
  ASSERT_TRUE(
      v1::ParameterServer::NewStub(servers.channels[0])->Heartbeat(&context, leave, &left).ok());

  Shard replayed(job, 0, nullptr);
  ASSERT_TRUE(
      replayed.Agree(servers.contract, job.name(), ToProto(servers.schema), kTestExamples).ok());
  uint64_t last = 0;
  for (const auto& [number, record] : sink.records()) {
    EXPECT_EQ(number, ++last);  // none is missing
    ByteSpan piece;
    uint64_t size = 0;
    const absl::StatusOr<Event> event = ParseRecord(
        ByteSpan(reinterpret_cast<const uint8_t*>(record.data()), record.size()), &piece, &size);
    ASSERT_TRUE(event.ok()) << event.status();
    Shard::Cell& cell = **replayed.FindCell(event->segment);
    absl::MutexLock lock(&cell.mutex);
    const absl::Status status = cell.segment->Replay(*event);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_GT(last, 4 * 40 * segments);
  const std::vector<std::string> saved = servers.servers[0]->SaveSegments();
  ASSERT_EQ(saved.size(), segments);
  for (uint32_t segment = 0; segment < segments; ++segment) {
    Shard::Cell& cell = **replayed.FindCell(segment);
    absl::MutexLock lock(&cell.mutex);
    EXPECT_EQ(cell.segment->Save(), saved[segment]) << segment;
  }
  EXPECT_EQ(servers.Status().pushes_applied(), 4 * 40 * (segments - 1));
}

INSTANTIATE_TEST_SUITE_P(Replies, EventsReplay, ::testing::Values("fp16", "one_bit", "random_k"),
                         [](const auto& info) { return info.param; });

TEST(Exchange, ANewerIncarnationFencesTheOlder) {
  TestServers servers(TestJob());
  TestWorker old(servers, 0, 5), fresh(servers, 0, 6);
  ASSERT_TRUE(old.SayHello().ok());
  old.InitialiseAll();
  old.Read(0);
  EXPECT_TRUE(old.Push(0, 0).status.ok());
  ASSERT_TRUE(fresh.SayHello().ok());
  EXPECT_EQ(old.Push(0, 1).status.code(), Code::kAborted);
  EXPECT_TRUE(fresh.Read(0).status.ok());
  EXPECT_EQ(fresh.Push(0, 1).header.result(), v1::ReplyHeader::APPLIED);
  EXPECT_EQ(old.SayHello().code(), Code::kAborted);
}

}  // namespace
}  // namespace foreshard
