#include "tests/golden/conversation.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/core/random.h"
#include "common/net/exchange_message.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "kernels/codecs/codec.h"
#include "tests/fuzz/fuzz.h"

namespace foreshard::golden {
namespace {

constexpr uint32_t kWorker = 0;
constexpr uint64_t kIncarnation = 5;

std::string Joined(grpc::ByteBuffer message) {
  std::vector<grpc::Slice> slices;
  FUZZ_CHECK(message.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

class Speaker {
 public:
  Speaker()
      : job_(ConversationJob()),
        schema_(ConversationSchema()),
        plan_(ShardPlan::Create(schema_, MakePlanOptions(job_)).value()),
        contract_(MakeContract(job_, schema_, plan_)) {}

  template <typename Message>
  void Say(const char* method, const Message& message) {
    Add(method, message.SerializeAsString());
  }
  template <typename Request>
  Request Introduced() const {
    Request request;
    *request.mutable_contract() = contract_;
    request.set_job_name(job_.name());
    *request.mutable_model() = ToProto(schema_);
    request.set_train_examples(kConversationExamples);
    request.set_worker_name("golden");
    request.set_job_text(PrintJobSpec(job_));
    return request;
  }
  void Exchange(v1::ExchangeHeader::Kind kind, const SegmentPlan& segment, uint64_t sequence,
                CodecId codec_id = CodecId::kNone) {
    v1::ExchangeHeader header;
    header.set_kind(kind);
    *header.mutable_contract() = contract_;
    header.set_segment(segment.id);
    header.set_worker(kWorker);
    header.set_incarnation(kIncarnation);
    header.set_sequence(sequence);
    header.set_ticket(sequence);
    header.set_codec(static_cast<uint32_t>(codec_id));
    header.set_lookahead(true);
    std::string payload;
    if (kind != v1::ExchangeHeader::READ) {
      std::vector<float> values(segment.elements);
      for (size_t k = 0; k < values.size(); ++k) {
        values[k] = static_cast<float>(RandomBits(7, segment.id + 100 * sequence, k) % 2001) / 1000 - 1;
      }
      const Codec& codec = *FindCodec(codec_id);
      payload.resize(EncodedBytes(codec, segment.blocks));
      EncodeSegment(codec, segment.blocks, values.data(), nullptr, {}, reinterpret_cast<uint8_t*>(payload.data()));
      header.set_checksum(Checksum(AsBytes(payload)));
    }
    std::vector<grpc::Slice> slices;
    if (!payload.empty()) slices.emplace_back(payload);
    Add("Exchange", Joined(MakeMessage(header, slices)));
  }

  const std::vector<SegmentPlan>& segments() const { return plan_.segments(); }
  const v1::Contract& contract() const { return contract_; }
  std::vector<Said> Take() { return std::move(said_); }

 private:
  void Add(const char* method, std::string request) {
    const std::string name = absl::StrFormat("%02d-%s", said_.size(), method);
    said_.push_back({name, MethodOf(name), std::move(request)});
  }

  const v1::JobSpec job_;
  const Schema schema_;
  const ShardPlan plan_;
  const v1::Contract contract_;
  std::vector<Said> said_;
};

}  // namespace

v1::JobSpec ConversationJob() {
  return ParseJobSpec("name: 'golden' seed: 1 model { name: 'synthetic' elements: 350 } "
                      "data { format: 'synthetic' examples: 1000 } "
                      "training { epochs: 20 batch_size: 10 workers: 2 max_workers: 4 } "
                      "update { rule: 'dana_zero' momentum: 0.9 } schedule { learning_rate: 0.01 } "
                      "compression { block_elements: 64 } servers { shards: 1 segment_elements: 128 }",
                      "the golden job", {})
      .value();
}

Schema ConversationSchema() {
  return Schema::Create({{"w", {300}, TensorKind::kTrainable, true},
                         {"b", {50}, TensorKind::kTrainable, false},
                         {"mean", {20}, TensorKind::kStatistic, false}})
      .value();
}

std::vector<Said> Conversation() {
  Speaker speaker;
  auto hello = speaker.Introduced<v1::HelloRequest>();
  hello.set_worker(kWorker);
  hello.set_incarnation(kIncarnation);
  speaker.Say("Hello", hello);
  for (const SegmentPlan& segment : speaker.segments()) {
    speaker.Exchange(v1::ExchangeHeader::INITIALISE, segment, 0);
  }
  for (const uint64_t sequence : {1, 2}) {
    for (const SegmentPlan& segment : speaker.segments()) {
      const bool statistic = segment.kind == TensorKind::kStatistic;
      speaker.Exchange(v1::ExchangeHeader::PUSH, segment, sequence,
                       sequence == 1 || statistic ? CodecId::kNone : CodecId::kOneBit);
    }
  }
  speaker.Exchange(v1::ExchangeHeader::READ, speaker.segments().front(), 0);
  v1::HeartbeatRequest heartbeat;
  heartbeat.set_worker(kWorker);
  heartbeat.set_incarnation(kIncarnation);
  speaker.Say("Heartbeat", heartbeat);
  auto registration = speaker.Introduced<v1::RegisterRequest>();
  registration.set_device("cpu");
  registration.set_wanted_slot(1);
  speaker.Say("Register", registration);
  v1::ReportRequest report;
  *report.mutable_contract() = speaker.contract();
  v1::Evaluation& evaluation = *report.add_evaluations();
  evaluation.set_parameters("master");
  evaluation.set_epoch(1);
  evaluation.set_loss(0.5);
  evaluation.set_accuracy(0.75);
  evaluation.set_examples(kConversationExamples);
  speaker.Say("Report", report);
  return speaker.Take();
}

std::string MethodOf(const std::string& name) {
  const std::string method = name.substr(name.find('-') + 1);
  const bool to_lead = method == "Register" || method == "Report";
  return absl::StrCat("/foreshard.v1.", to_lead ? "Lead" : "ParameterServer", "/", method);
}

}  // namespace foreshard::golden
