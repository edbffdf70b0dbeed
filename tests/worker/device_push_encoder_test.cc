// A worker whose gradients stay on an (emulated) GPU says to the servers what one says whose
// gradients are in host memory, to the byte.
#include "worker/device_push_encoder.h"

#include <atomic>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "common/net/exchange_message.h"
#include "gtest/gtest.h"
#include "kernels/device_failure.h"
#include "tests/worker/emulated_device.h"
#include "tests/worker/fake_shard.h"
#include "worker/data/random_text.h"
#include "worker/gradient.h"
#include "worker/job_setup.h"
#include "worker/lead_client.h"
#include "worker/progress.h"
#include "worker/segment_exchange.h"
#include "worker/training_loop.h"

namespace foreshard {
namespace {

constexpr CodecSettings kSettings = {.fraction = 0.125f, .bits = 5};

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

struct Case {
  std::string codec;
  std::string rule;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const std::string_view codec : CodecNames()) {
    for (const char* rule : {"asgd", "dana_slim"}) cases.push_back({std::string(codec), rule});
  }
  return cases;
}

class DevicePushEncoderTest : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr uint64_t kTrainable = 5000;
  static constexpr uint64_t kElements = kTrainable + 8;

  DevicePushEncoderTest() {
    options_.schema =
        Schema::Create({{"w", {4900}, TensorKind::kTrainable, true},
                        {"b", {100}, TensorKind::kTrainable, false},
                        {"mean", {8}, TensorKind::kStatistic, false}})
            .value();
    options_.plan = ShardPlan::Create(options_.schema,
                                      {.shards = 1, .segment_elements = 2048, .block_elements = 512})
                        .value();
    options_.servers = {"a"};
    options_.rule = GetParam().rule;
    options_.half = {.momentum = 0.9f, .weight_decay = 0.01f};
    options_.push_codec = GetParam().codec;
    options_.codec_settings = kSettings;
    options_.seed = 17;
    options_.schedule = {.learning_rate = 0.1, .warmup_epochs = 4, .workers = 4, .batches_per_epoch = 3};
    options_.hello.set_worker(2);
    options_.hello.set_incarnation(1);
    memory_ = device_.MakeStepMemory(kTrainable, kElements).value();
    const CodecSet codecs(kSettings);
    encoder_ = memory_->MakeEncoder(
                          MakeStepEncoderOptions(MakeEncoderOptions(options_), options_.plan, codecs))
                   .value();
    host_ = Make(nullptr);
    device_exchange_ = Make(encoder_.get());
  }

  std::unique_ptr<SegmentExchange> Make(kernels::StepEncoder* encoder) {
    ParameterClientOptions& options = kept_.emplace_back(options_);
    options.step_encoder = encoder;
    return std::make_unique<SegmentExchange>(
        options, std::vector<uint64_t>{5}, [](uint32_t) -> absl::StatusOr<ServerNow> { return ServerNow{5}; });
  }

  static std::vector<uint32_t> Trainable(const ShardPlan& plan) {
    std::vector<uint32_t> ids;
    for (const SegmentPlan& segment : plan.segments()) {
      if (segment.kind == TensorKind::kTrainable) ids.push_back(segment.id);
    }
    return ids;
  }

  // Runs the operation at both, whose messages must be the same, and gives both the same replies.
  void Exchange(const SegmentExchange::Operation& at_host, const SegmentExchange::Operation& at_device,
                v1::ReplyHeader::Result result) {
    host_->Begin(at_host);
    device_exchange_->Begin(at_device);
    EXPECT_EQ(host_->PayloadBytes(), device_exchange_->PayloadBytes());
    for (size_t k = 0; k < at_host.segments.size(); ++k) {
      const auto one = host_->Next({true}), other = device_exchange_->Next({true});
      ASSERT_TRUE(one.has_value());
      ASSERT_TRUE(other.has_value());
      ASSERT_EQ(BytesOf(one->message), BytesOf(other->message)) << "segment " << one->token;
      const SegmentPlan& plan = options_.plan.segments()[one->token];
      v1::ReplyHeader reply;
      reply.set_segment(one->token);
      reply.set_version(++version_);
      reply.set_clock(at_host.ticket);
      reply.set_server_incarnation(5);
      reply.set_result(result);
      std::vector<float> values(plan.elements);
      for (uint64_t i = 0; i < plan.elements; ++i) {
        values[i] = static_cast<float>(RandomNormal(3, version_, i));
      }
      const grpc::Slice slice(values.data(), plan.elements * sizeof(float));
      reply.set_checksum(Checksum(ByteSpan(slice.begin(), slice.size())));
      const grpc::ByteBuffer message = MakeMessage(reply, {slice});
      ASSERT_TRUE(host_->Received(one->token, message).ok());
      ASSERT_TRUE(device_exchange_->Received(other->token, message).ok());
    }
    ASSERT_EQ(host_->WaitDone(), absl::OkStatus());
    ASSERT_EQ(device_exchange_->WaitDone(), absl::OkStatus());
  }

  ParameterClientOptions options_;
  std::deque<ParameterClientOptions> kept_;
  EmulatedDevice device_;
  std::unique_ptr<kernels::StepMemory> memory_;
  std::unique_ptr<kernels::StepEncoder> encoder_;
  std::unique_ptr<SegmentExchange> host_, device_exchange_;
  uint64_t version_ = 0;
};

INSTANTIATE_TEST_SUITE_P(All, DevicePushEncoderTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.codec + "_" + info.param.rule; });

TEST_P(DevicePushEncoderTest, MessagesAreTheHostsOverSeveralSteps) {
  const std::vector<uint32_t> segments = Trainable(options_.plan);
  ASSERT_GT(segments.size(), 2u);
  SegmentExchange::Operation read = {.kind = v1::ExchangeHeader::READ, .segments = segments};
  read.lookahead = true;
  Exchange(read, read, v1::ReplyHeader::CURRENT);
  for (uint64_t step = 0; step < 7; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    std::vector<float> gradient(kTrainable);
    for (uint64_t i = 0; i < kTrainable; ++i) gradient[i] = static_cast<float>(RandomNormal(4, step, i));
    const bool finite = step != 3;
    if (!finite) gradient[777] = std::numeric_limits<float>::infinity();
    ASSERT_EQ(memory_->Upload(device_exchange_->parameters(), 0, kElements), absl::OkStatus());
    ASSERT_EQ(kernels::cuda::CopyToDevice(memory_->gradient(), gradient.data(),
                                          kTrainable * sizeof(float), device_.stream()),
              absl::OkStatus());
    ASSERT_EQ(device_exchange_->Prepare({.ticket = step}, std::nullopt), absl::OkStatus());
    const auto norm = encoder_->Norm();
    ASSERT_TRUE(norm.ok()) << norm.status();
    ASSERT_EQ(norm->finite, finite);
    SegmentExchange::Operation push = {
        .kind = finite ? v1::ExchangeHeader::PUSH : v1::ExchangeHeader::SKIP, .segments = segments};
    push.ticket = step;
    SegmentExchange::Operation on_device = push;
    push.gradient = gradient.data();
    Exchange(push, on_device, finite ? v1::ReplyHeader::APPLIED : v1::ReplyHeader::SKIPPED);
    if (step == 5 && GetParam().rule == "dana_slim") {
      SegmentExchange::Operation repair = {.kind = v1::ExchangeHeader::REPAIR, .segments = segments};
      repair.ticket = 6;
      Exchange(repair, repair, v1::ReplyHeader::APPLIED);
    }
  }
  EXPECT_EQ(device_exchange_->keeps_error(), GetParam().codec != "none");
  EXPECT_TRUE(device_exchange_->error().empty());
}

// Its bytes cannot come back: the computing thread hears of it, and nothing more is sent.
TEST_P(DevicePushEncoderTest, ALostDeviceEndsTheStep) {
  class Lost final : public kernels::StepEncoder {
   public:
    absl::Status Give(std::optional<double>, absl::Span<const kernels::SegmentPush>) override {
      return absl::OkStatus();
    }
    absl::StatusOr<kernels::StepNorm> Norm() override { return kernels::StepNorm{}; }
    absl::StatusOr<absl::Span<const uint8_t>> Bytes(size_t) override {
      return kernels::DeviceFailure(absl::UnavailableError("GPU 0 is lost"));
    }
    bool has_momentum() const override { return false; }
    absl::Status ReadMomentum(size_t, float*) override { return absl::OkStatus(); }
    bool has_error() const override { return false; }
    absl::StatusOr<double> ErrorRatio() override { return 0.0; }
    absl::Status ClearGradient() override { return absl::OkStatus(); }
  } lost;
  const std::unique_ptr<SegmentExchange> exchange = Make(&lost);
  ASSERT_EQ(exchange->Prepare({.ticket = 1}, std::nullopt), absl::OkStatus());
  SegmentExchange::Operation push = {.kind = v1::ExchangeHeader::PUSH,
                                     .segments = Trainable(options_.plan)};
  exchange->Begin(push);
  EXPECT_FALSE(exchange->Next({true}).has_value());
  const absl::Status ended = exchange->WaitDone();
  EXPECT_TRUE(kernels::IsDeviceFailure(ended)) << ended;
  EXPECT_FALSE(exchange->Next({true}).has_value());
}

// Points in a plane, in classes by their angle.
class Angles final : public Dataset {
 public:
  uint64_t examples() const override { return 96; }
  InputShape shape() const override { return {1, 1, 2}; }
  uint32_t classes() const override { return 4; }
  absl::Status Gather(absl::Span<const uint32_t> indices, uint64_t, Batch* batch) const override {
    batch->examples = indices.size();
    batch->inputs.clear();
    batch->labels.clear();
    for (const uint32_t i : indices) {
      batch->inputs.push_back(std::cos(0.1f * static_cast<float>(i)));
      batch->inputs.push_back(std::sin(0.1f * static_cast<float>(i)));
      batch->labels.push_back(static_cast<int32_t>(i / 15 % 4));
    }
    return absl::OkStatus();
  }
};

// Made-up sequences, of which a few have padding.
class Sentences final : public Dataset {
 public:
  static ModelOptions Model(uint32_t batch_size) {
    return {.name = "bert_tiny",
            .input = {12, 1, 1},
            .classes = 40,
            .batch_size = batch_size,
            .text = {.targets = 3, .positions = 12, .dropout = 0.1f, .next_sentence = true}};
  }
  uint64_t examples() const override { return all_.examples; }
  InputShape shape() const override { return {12, 1, 1}; }
  uint32_t classes() const override { return 40; }
  uint32_t targets() const override { return 3; }
  bool has_pairs() const override { return true; }
  uint64_t Targets(absl::Span<const uint32_t> indices) const override {
    uint64_t count = 0;
    for (const uint32_t i : indices) {
      for (uint32_t t = 0; t < 3; ++t) count += all_.targets[3 * i + t] != kernels::kNoTarget;
    }
    return count;
  }
  absl::Status Gather(absl::Span<const uint32_t> indices, uint64_t key, Batch* batch) const override {
    *batch = {.examples = indices.size()};
    const auto take = [](const std::vector<int32_t>& from, uint32_t i, uint32_t each, std::vector<int32_t>* to) {
      to->insert(to->end(), from.begin() + i * each, from.begin() + (i + 1) * each);
    };
    for (const uint32_t i : indices) {
      take(all_.tokens, i, 12, &batch->tokens);
      take(all_.segments, i, 12, &batch->segments);
      take(all_.lengths, i, 1, &batch->lengths);
      take(all_.labels, i, 1, &batch->labels);
      take(all_.targets, i, 3, &batch->targets);
      take(all_.target_positions, i, 3, &batch->target_positions);
      batch->keys.push_back(key + i);
    }
    return absl::OkStatus();
  }

 private:
  const Batch all_ = RandomText(Model(96), 5, /*full=*/false);
};

struct Trained {
  std::vector<float> parameters;
  double loss = 0;
};

// A whole worker with a server of the test's own.
Trained Train(const Case& c, bool pushes_on_device, bool text = false) {
  EmulatedDevice device;
  const Angles angles;
  const Sentences sentences;
  const Dataset& data = text ? static_cast<const Dataset&>(sentences) : angles;
  auto model = MakeModel(text ? Sentences::Model(12)
                              : ModelOptions{.name = "mlp",
                                             .input = data.shape(),
                                             .classes = data.classes(),
                                             .widths = {16},
                                             .batch_size = 12},
                         device)
                   .value();
  const uint32_t segment = text ? 1 << 16 : 64;
  const ShardPlan plan =
      ShardPlan::Create(model->schema(), {.shards = 1, .segment_elements = segment, .block_elements = text ? 4096u : 32u})
          .value();
  FakeShard server(plan, {.tickets = text ? 3u : 20u, .codec_settings = kSettings, .seed = 9});
  std::atomic<bool> stop{false};
  Progress progress(nullptr, "");
  auto lead = LeadClient::Register({.address = server.address(), .stop = &stop}).value();
  ParameterClientOptions options;
  options.servers = {server.address()};
  options.schema = model->schema();
  options.plan = plan;
  options.rule = c.rule;
  options.half = {.momentum = 0.9f, .weight_decay = 0.01f};
  options.push_codec = c.codec;
  options.reply_codec = c.codec;
  options.codec_settings = kSettings;
  options.seed = 9;
  options.schedule = {.learning_rate = 0.1, .batches_per_epoch = 8};
  options.hello.set_worker(2);
  options.hello.set_incarnation(1);
  options.stop = &stop;
  options.connect_seconds = 20;
  options.acknowledged = [&](const PushFigures& push) {
    lead->Completed(push.ticket, push.earlier);
    progress.Acknowledged(push);
  };
  DeviceExchange on_device;
  if (pushes_on_device) on_device = MakeDeviceExchange(options, *model).value();
  EXPECT_EQ(on_device.encoder != nullptr, pushes_on_device);
  options.step_encoder = on_device.encoder.get();
  options.step_receiver = on_device.receiver.get();
  GradientComputer computer({.seed = 3, .batch_size = 12, .micro_batches = 2, .clip_norm = 0.5},
                            model.get(), &data, on_device.encoder.get());
  auto client = ParameterClient::Connect(options).value();
  model->InitialValues(1, client->parameters());
  EXPECT_TRUE(client->Initialise({client->parameters(), model->schema().elements()}).ok());
  TrainingLoopOptions loop_options;
  loop_options.stop = &stop;
  loop_options.batches_per_epoch = 8;
  TrainingLoop loop(loop_options, &computer, client.get(), lead.get(), &progress);
  const absl::Status status = loop.Run();
  EXPECT_TRUE(status.ok()) << status;
  lead->Leave("finished");
  Trained trained;
  trained.parameters.assign(client->parameters(),
                            client->parameters() + model->schema().trainable_elements());
  if (pushes_on_device) {
    EXPECT_TRUE(client->WaitFor(0, trained.parameters.size()).ok());
    EXPECT_TRUE(kernels::cuda::CopyToHost(trained.parameters.data(), model->step_memory()->vector(),
                                          trained.parameters.size() * sizeof(float), device.stream())
                    .ok());
    EXPECT_TRUE(kernels::cuda::WaitFor(device.stream()).ok());
  }
  trained.loss = progress.Figures(client->traffic()).loss();
  return trained;
}

TEST_P(DevicePushEncoderTest, AWorkerTrainsTheSame) {
  const Trained host = Train(GetParam(), false), device = Train(GetParam(), true);
  EXPECT_EQ(host.parameters, device.parameters);
  EXPECT_EQ(host.loss, device.loss);
  EXPECT_TRUE(std::isfinite(host.loss));
}

// Of text, whose loss is a mean over targets, in micro-batches that differ in them.
TEST(DeviceTextTest, AWorkerTrainsTheSame) {
  const Case c = {.codec = "one_bit", .rule = "asgd"};
  const Trained host = Train(c, false, /*text=*/true), device = Train(c, true, /*text=*/true);
  EXPECT_EQ(host.parameters, device.parameters);
  EXPECT_EQ(host.loss, device.loss);
  EXPECT_TRUE(std::isfinite(host.loss));
}

}  // namespace
}  // namespace foreshard
