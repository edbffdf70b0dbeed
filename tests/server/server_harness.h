// Real servers in this process, and a worker that says exactly what a test wants
// it to say.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/core/random.h"
#include "common/net/channel.h"
#include "common/net/exchange_message.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "foreshard/v1/admin.grpc.pb.h"
#include "foreshard/v1/exchange.grpc.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "kernels/codecs/codec.h"
#include "server/shard_server.h"

namespace foreshard {

// Keeps every event as its record, by number.
class RecordingSink final : public EventSink {
 public:
  void Record(const Event& event) override {
    std::string record;
    AppendRecord(event, &record);
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(records_.emplace(event.number, std::move(record)).second) << event.number;
  }
  std::map<uint64_t, std::string> records() const {
    absl::MutexLock lock(&mutex_);
    return records_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<uint64_t, std::string> records_;
};

inline v1::JobSpec TestJob(const std::vector<std::string>& overrides = {}) {
  constexpr char kText[] = R"(
    name: "test" seed: 1
    model { name: "synthetic" elements: 350 }
    data { format: "synthetic" examples: 1000 }
    training { epochs: 20 batch_size: 10 workers: 2 max_workers: 4 }
    update { rule: "dana_zero" momentum: 0.9 }
    schedule { learning_rate: 0.01 }
    compression { block_elements: 64 }
    servers { shards: 1 segment_elements: 128 }
  )";
  absl::StatusOr<v1::JobSpec> job = ParseJobSpec(kText, "test job", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

inline v1::JobSpec SynchronousJob(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"update.rule=ssgd", "training.max_workers="});
  return TestJob(overrides);
}

inline Schema TestSchema(int64_t elements = 300) {
  return Schema::Create({{"w", {elements}, TensorKind::kTrainable, true},
                         {"b", {50}, TensorKind::kTrainable, false},
                         {"mean", {20}, TensorKind::kStatistic, false}})
      .value();
}

constexpr uint64_t kTestExamples = 1000;

// All servers of a job.
struct TestServers {
  explicit TestServers(const v1::JobSpec& job, Schema model = TestSchema(),
                       EventSink* sink = nullptr, const std::string& state_directory = "")
      : job(job), schema(std::move(model)) {
    plan = ShardPlan::Create(schema, MakePlanOptions(job)).value();
    contract = MakeContract(job, schema, plan);
    for (uint32_t shard = 0; shard < job.servers().shards(); ++shard) {
      absl::StatusOr<std::unique_ptr<ShardServer>> server =
          ShardServer::Start({.job = job,
                              .shard = shard,
                              .events = sink,
                              .state_directory = state_directory,
                              .apply_threads = 2});
      EXPECT_TRUE(server.ok()) << server.status();
      servers.push_back(*std::move(server));
      channels.push_back(MakeChannel(servers.back()->address()));
    }
  }

  v1::HelloRequest Hello(uint32_t worker, uint64_t incarnation) const {
    v1::HelloRequest request;
    *request.mutable_contract() = contract;
    request.set_job_name(job.name());
    *request.mutable_model() = ToProto(schema);
    request.set_train_examples(kTestExamples);
    request.set_worker(worker);
    request.set_incarnation(incarnation);
    request.set_reader(incarnation == 0);
    request.set_worker_name("w" + std::to_string(worker));
    return request;
  }

  absl::Status Say(uint32_t shard, const v1::HelloRequest& request,
                   v1::HelloReply* reply = nullptr) const {
    grpc::ClientContext context;
    v1::HelloReply unused;
    return FromGrpc(v1::ParameterServer::NewStub(channels[shard])
                        ->Hello(&context, request, reply == nullptr ? &unused : reply));
  }

  v1::RegisterRequest Registration(const std::string& name) const {
    v1::RegisterRequest request;
    *request.mutable_contract() = contract;
    request.set_job_name(job.name());
    *request.mutable_model() = ToProto(schema);
    request.set_train_examples(kTestExamples);
    request.set_worker_name(name);
    request.set_device("cpu");
    return request;
  }

  v1::StatusReply Status(uint32_t shard = 0) const {
    grpc::ClientContext context;
    v1::StatusReply reply;
    EXPECT_TRUE(v1::Admin::NewStub(channels[shard])->GetStatus(&context, {}, &reply).ok());
    return reply;
  }

  v1::JobSpec job;
  Schema schema;
  ShardPlan plan;
  v1::Contract contract;
  std::vector<std::unique_ptr<ShardServer>> servers;
  std::vector<std::shared_ptr<grpc::Channel>> channels;
};

struct Answer {
  absl::Status status;
  v1::ReplyHeader header;
  std::vector<float> values;  // decoded
};

// One call of bytes for bytes, an Exchange if not said otherwise.
inline absl::StatusOr<grpc::ByteBuffer> SendRaw(
    const std::shared_ptr<grpc::Channel>& channel, const grpc::ByteBuffer& request,
    double deadline_seconds = 30,
    const std::string& method = "/foreshard.v1.ParameterServer/Exchange") {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(static_cast<int>(deadline_seconds * 1000)));
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel);
  grpc::CompletionQueue queue;
  grpc::ByteBuffer reply;
  grpc::Status status;
  auto reader = stub.PrepareUnaryCall(&context, method, request, &queue);
  reader->StartCall();
  reader->Finish(&reply, &status, &status);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return FromGrpc(status);
  return reply;
}

class TestWorker {
 public:
  TestWorker(const TestServers& servers, uint32_t worker, uint64_t incarnation)
      : servers_(servers),
        worker_(worker),
        incarnation_(incarnation),
        sequences_(servers.plan.segments().size()),
        held_versions_(servers.plan.segments().size()),
        codecs_(MakeCodecSettings(servers.job)) {}

  uint32_t worker() const { return worker_; }
  uint64_t incarnation() const { return incarnation_; }
  uint64_t& sequence(uint32_t segment) { return sequences_[segment]; }

  absl::Status SayHello() {
    for (uint32_t shard = 0; shard < servers_.servers.size(); ++shard) {
      if (absl::Status status = servers_.Say(shard, servers_.Hello(worker_, incarnation_));
          !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  v1::ExchangeHeader Header(v1::ExchangeHeader::Kind kind, uint32_t segment) const {
    v1::ExchangeHeader header;
    header.set_kind(kind);
    *header.mutable_contract() = servers_.contract;
    header.set_segment(segment);
    header.set_worker(worker_);
    header.set_incarnation(incarnation_);
    header.set_held_version(held_versions_[segment]);
    header.set_lookahead(true);
    return header;
  }

  std::string Encode(uint32_t segment, const std::vector<float>& values,
                     CodecId id = CodecId::kNone) const {
    const Codec& codec = *codecs_.Find(id);
    const std::vector<Block>& blocks = servers_.plan.segments()[segment].blocks;
    std::string bytes(EncodedBytes(codec, blocks), '\0');
    EncodeSegment(codec, blocks, values.data(), nullptr, {}, reinterpret_cast<uint8_t*>(bytes.data()));
    return bytes;
  }

  // Sends header and payload with a right checksum, unless `checksum` is false.
  Answer Send(v1::ExchangeHeader header, const std::string& payload = "", bool checksum = true,
              double deadline_seconds = 30) {
    if (checksum && !payload.empty()) {
      header.set_checksum(
          Checksum(ByteSpan(reinterpret_cast<const uint8_t*>(payload.data()), payload.size())));
    }
    std::vector<grpc::Slice> slices;
    if (!payload.empty()) slices.emplace_back(payload);
    const uint32_t segment = header.segment();
    const uint32_t shard = segment < servers_.plan.segments().size()
                               ? servers_.plan.segments()[segment].shard
                               : 0;
    Answer answer;
    absl::StatusOr<grpc::ByteBuffer> reply =
        SendRaw(servers_.channels[shard], MakeMessage(header, slices), deadline_seconds);
    answer.status = reply.status();
    if (!reply.ok()) return answer;
    auto parsed = ParsedMessage<v1::ReplyHeader>::Parse(*reply);
    answer.status = parsed.status();
    if (!parsed.ok()) return answer;
    answer.header = parsed->header();
    const Payload received = parsed->payload();
    if (received.bytes == 0) return answer;
    EXPECT_EQ(Checksum(received), answer.header.checksum());
    const Codec& codec = *codecs_.Find(static_cast<CodecId>(answer.header.codec()));
    const SegmentPlan& plan = servers_.plan.segments()[segment];
    EXPECT_EQ(received.bytes, EncodedBytes(codec, plan.blocks));
    std::vector<uint8_t> bytes;
    for (const ByteSpan piece : received.pieces) bytes.insert(bytes.end(), piece.begin(), piece.end());
    answer.values.resize(plan.elements);
    DecodeSegment(codec, plan.blocks, bytes.data(), {}, answer.values.data());
    held_versions_[segment] = answer.header.version();
    return answer;
  }

  Answer Initialise(uint32_t segment, float value) {
    const std::vector<float> values(servers_.plan.segments()[segment].elements, value);
    return Send(Header(v1::ExchangeHeader::INITIALISE, segment), Encode(segment, values));
  }
  void InitialiseAll(float value = 1) {
    for (const SegmentPlan& segment : servers_.plan.segments()) {
      const Answer answer = Initialise(segment.id, value);
      ASSERT_TRUE(answer.status.ok()) << answer.status;
    }
  }
  Answer Read(uint32_t segment) { return Send(Header(v1::ExchangeHeader::READ, segment)); }

  v1::ExchangeHeader PushHeader(uint32_t segment, uint64_t ticket, CodecId codec = CodecId::kNone) {
    v1::ExchangeHeader header = Header(v1::ExchangeHeader::PUSH, segment);
    header.set_sequence(++sequences_[segment]);
    header.set_ticket(ticket);
    header.set_codec(static_cast<uint32_t>(codec));
    return header;
  }
  std::vector<float> Gradient(uint32_t segment, uint64_t key) const {
    std::vector<float> gradient(servers_.plan.segments()[segment].elements);
    for (size_t k = 0; k < gradient.size(); ++k) {
      gradient[k] = static_cast<float>(RandomNormal(9, key, k));
    }
    return gradient;
  }
  Answer Push(uint32_t segment, uint64_t ticket, CodecId codec = CodecId::kNone) {
    return Send(PushHeader(segment, ticket, codec),
                Encode(segment, Gradient(segment, ticket), codec));
  }

 private:
  const TestServers& servers_;
  const uint32_t worker_;
  const uint64_t incarnation_;
  std::vector<uint64_t> sequences_;
  std::vector<uint64_t> held_versions_;
  CodecSet codecs_;
};

}  // namespace foreshard
