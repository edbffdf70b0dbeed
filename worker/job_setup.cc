#include "worker/job_setup.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/core/bytes.h"
#include "common/core/catalogue.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "glog/logging.h"
#include "worker/device_push_encoder.h"
#include "worker/models/pytorch_weights.h"

namespace foreshard {
namespace {

// Synthetic examples have the size of the default job's, so that its models run
// on them; analytic models read none.
constexpr InputShape kSyntheticShape{28, 28, 1};
constexpr InputShape kNoShape{1, 1, 1};

std::string Resolve(const v1::DataSpec& data, const std::string& path) {
  return (std::filesystem::path(data.directory()) / path).string();
}

absl::StatusOr<std::unique_ptr<Dataset>> LoadFiles(const v1::DataSpec& data, bool training) {
  const bool flip = training && data.flip();
  const uint32_t crop_padding = training ? data.crop_padding() : 0;
  if (data.format() == "idx") {
    IdxOptions options{.classes = data.classes(), .flip = flip, .crop_padding = crop_padding};
    options.mean = data.has_mean() ? data.mean() : 0;
    options.deviation = data.has_deviation() ? data.deviation() : 1;
    return LoadIdx(Resolve(data, training ? data.train_images() : data.test_images()),
                   Resolve(data, training ? data.train_labels() : data.test_labels()), options);
  }
  ImageOptions options{.flip = flip, .crop_padding = crop_padding};
  options.means.assign(data.channel_means().begin(), data.channel_means().end());
  options.deviations.assign(data.channel_deviations().begin(), data.channel_deviations().end());
  if (data.format() == "packed") {
    return LoadPacked(Resolve(data, training ? data.train_packed() : data.test_packed()),
                      {.images = options,
                       .classes = data.classes(),
                       .side = data.image_side(),
                       .least_area = training ? data.least_area() : 1,
                       .decode_threads = data.decode_threads()});
  }
  if (data.format() == "tokens") {
    return LoadTokens(Resolve(data, training ? data.train_tokens() : data.test_tokens()),
                      {.mask_fraction = data.mask_fraction()});
  }
  std::vector<std::string> paths;
  for (const std::string& file : training ? data.train_files() : data.test_files()) {
    paths.push_back(Resolve(data, file));
  }
  return LoadCifar(paths, data.classes(), options);
}

absl::StatusOr<std::unique_ptr<Dataset>> Load(const v1::JobSpec& job, bool training) {
  const v1::DataSpec& data = job.data();
  if (data.format() == "synthetic") {
    return MakeSyntheticDataset(
        data.examples(), IsAnalytic(job.model().name()) ? kNoShape : kSyntheticShape,
        // Without classes, analytic objectives take the label for what makes one example differ
        // from another.
        data.classes() > 0 ? data.classes() : static_cast<uint32_t>(data.examples()));
  }
  auto loaded = LoadFiles(data, training);
  // Damaged files are the user's to replace, as missing ones are: exit status 2.
  if (absl::IsDataLoss(loaded.status())) {
    return absl::InvalidArgumentError(loaded.status().message());
  }
  return loaded;
}

// What a refusal calls the data: their folder or first file.
std::string Name(const v1::DataSpec& data, bool training) {
  if (data.format() == "idx") return Resolve(data, training ? data.train_images() : data.test_images());
  if (data.format() == "packed") return Resolve(data, training ? data.train_packed() : data.test_packed());
  if (data.format() == "tokens") return Resolve(data, training ? data.train_tokens() : data.test_tokens());
  const auto& files = training ? data.train_files() : data.test_files();
  return files.empty() ? data.format() : Resolve(data, files[0]);
}

// What makes test data none for the training data's model; empty: nothing.
std::string Difference(const Dataset& test, const Dataset& train) {
  const InputShape ours = test.shape(), theirs = train.shape();
  std::vector<std::string> differences;
  const bool text = train.targets() > 0;
  if (text && ours.height != theirs.height) {
    differences.push_back(absl::StrCat("sequences of ", ours.height, " tokens, not ", theirs.height));
  } else if (ours.height != theirs.height || ours.width != theirs.width || ours.channels != theirs.channels) {
    differences.push_back(absl::StrCat("images of ", ours.height, " x ", ours.width, " x ", ours.channels, ", not ",
                                       theirs.height, " x ", theirs.width, " x ", theirs.channels));
  }
  if (test.vocabulary_checksum() != train.vocabulary_checksum()) {
    differences.push_back(absl::StrCat("another vocabulary (", test.classes(), " tokens, ",
                                       absl::Hex(test.vocabulary_checksum(), absl::kZeroPad16), ", not ",
                                       train.classes(), ", ",
                                       absl::Hex(train.vocabulary_checksum(), absl::kZeroPad16), ")"));
  }
  if (test.has_pairs() != train.has_pairs()) {
    differences.emplace_back(test.has_pairs() ? "packed with --pairs, not without" : "packed without --pairs, not with");
  }
  return absl::StrJoin(differences, "; ");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> LoadTrainingData(const v1::JobSpec& job) {
  auto data = Load(job, /*training=*/true);
  if (data.ok() && (*data)->examples() < job.training().batch_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.batch_size: ", job.training().batch_size(), ": is more than the ",
                     (*data)->examples(), " examples of the training data; make it smaller"));
  }
  return data;
}

absl::StatusOr<std::unique_ptr<Dataset>> LoadTestData(const v1::JobSpec& job, const Dataset& train) {
  auto test = Load(job, /*training=*/false);
  if (!test.ok()) return test;
  const std::string difference = Difference(**test, train);
  if (difference.empty()) return test;
  return absl::InvalidArgumentError(absl::StrCat(
      Name(job.data(), /*training=*/false), ": these test data do not fit the training data in ",
      Name(job.data(), /*training=*/true), ": ", difference,
      job.data().format() == "tokens" ? "; pack both in one run, with --held-out, or with the same vocabulary and options"
                                      : "; give both in the same size"));
}

uint64_t DataIdentity(const Dataset& data) {
  if (data.vocabulary_checksum() == 0) return 0;
  ByteWriter writer;
  writer.Put(data.vocabulary_checksum());
  writer.Put(data.shape().height);
  writer.Put(static_cast<uint32_t>(data.has_pairs()));
  return Checksum(AsBytes(writer.data()));
}

uint32_t LargestBatch(const v1::JobSpec& job) {
  const uint32_t batch = job.training().batch_size();
  return ReadsText(job.model().name()) ? batch / std::max(job.training().micro_batches(), 1u) : batch;
}

absl::StatusOr<std::unique_ptr<Model>> MakeJobModel(const v1::JobSpec& job, const Dataset& data,
                                                    kernels::Device& device) {
  ModelOptions options;
  options.name = job.model().name();
  options.input = data.shape();
  options.classes = data.classes();
  options.widths.assign(job.model().widths().begin(), job.model().widths().end());
  options.dense_units = job.model().dense_units();
  options.elements = job.model().elements();
  options.batch_size = LargestBatch(job);
  options.text = {.targets = data.targets(),
                  .positions = job.model().positions(),
                  .dropout = job.model().dropout(),
                  .next_sentence = job.model().next_sentence()};
  if (options.text.next_sentence && !data.has_pairs()) {
    return absl::InvalidArgumentError(
        "model.next_sentence: true: the text was packed without pairs; pack it with --pairs, or take the field out");
  }
  return MakeModel(options, device);
}

absl::StatusOr<JobModel> LoadJobModel(const v1::JobSpec& job) {
  auto train = LoadTrainingData(job);
  if (!train.ok()) return train.status();
  auto device = kernels::MakeDevice("cpu");
  if (!device.ok()) return device.status();
  auto model = MakeJobModel(job, **train, **device);
  if (!model.ok()) return model.status();
  return JobModel{*std::move(device), *std::move(train), *std::move(model)};
}

WorkerMemory MemoryOf(const v1::JobSpec& job, const Model& model) {
  const RuleTraits* rule = FindRule(job.update().rule());
  WorkerMemory memory{.step_bytes = model.step_bytes(), .vectors = 2};
  if (job.compression().push() != "none") ++memory.vectors;  // the error
  if (rule != nullptr && rule->squeezes) memory.vectors += 2;  // momentum and denominator
  if (rule != nullptr && rule->worker_half) ++memory.vectors;  // momentum
  if (rule != nullptr && rule->elastic) {
    // Own parameters and the difference; momentum.
    memory.vectors += rule->momentum == Setting::kRequired ? 3 : 2;
  }
  memory.vectors_bytes =
      sizeof(float) * (memory.vectors * model.schema().trainable_elements() +
                       3 * model.schema().statistic_elements());  // known, of a batch, averaged
  return memory;
}

absl::Status WriteFirstValues(const v1::JobSpec& job, const Model& model, float* vector) {
  const std::string& path = job.model().initial_weights();
  if (path.empty()) {
    model.InitialValues(job.seed(), vector);
    return absl::OkStatus();
  }
  const auto in_words = [](const absl::Status& status) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.initial_weights: ", std::string(status.message())));
  };
  const auto checksum = FileChecksum(path);
  if (!checksum.ok()) return in_words(checksum.status());
  if (*checksum != job.model().initial_weights_checksum()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.initial_weights: ", path, " has the checksum ", *checksum,
        ", but model.initial_weights_checksum is ", job.model().initial_weights_checksum(),
        "; every worker must start from the same file: fetch the right one, or say this checksum "
        "everywhere"));
  }
  if (absl::Status status = LoadPytorchWeights(model, path, vector); !status.ok()) {
    return in_words(status);
  }
  return absl::OkStatus();
}

GradientOptions MakeGradientOptions(const v1::JobSpec& job) {
  GradientOptions options;
  options.seed = job.seed();
  options.batch_size = job.training().batch_size();
  options.micro_batches = std::max(job.training().micro_batches(), 1u);
  if (job.training().has_clip_norm()) options.clip_norm = job.training().clip_norm();
  return options;
}

absl::StatusOr<ParameterClientOptions> MakeClientOptions(const v1::JobSpec& job,
                                                         const Schema& schema,
                                                         uint64_t train_examples,
                                                         const std::vector<std::string>& servers,
                                                         uint64_t data_identity) {
  auto plan = ShardPlan::Create(schema, MakePlanOptions(job));
  if (!plan.ok()) return plan.status();
  ParameterClientOptions options;
  options.servers = servers;
  options.schema = schema;
  options.plan = *std::move(plan);
  options.schedule = MakeSchedule(job, BatchesPerEpoch(job, train_examples));
  *options.hello.mutable_contract() = MakeContract(job, schema, options.plan);
  options.hello.set_data_identity(data_identity);
  options.hello.set_job_name(job.name());
  options.hello.set_job_text(PrintJobSpec(job));
  *options.hello.mutable_model() = ToProto(schema);
  options.hello.set_train_examples(train_examples);
  options.rule = job.update().rule();
  options.half = {.momentum = job.update().momentum(), .weight_decay = job.update().weight_decay()};
  if (const RuleTraits* rule = FindRule(options.rule); rule != nullptr && rule->squeezes) {
    options.squeeze = {.beta1 = job.update().beta1(),
                       .weight_decay = job.update().weight_decay(),
                       .compress_gradients = job.apmsqueeze().form() == "gradient"};
  }
  options.push_codec = job.compression().push();
  options.reply_codec = job.compression().reply();
  options.codec_settings = MakeCodecSettings(job);
  options.seed = job.seed();
  options.synchronous = IsSynchronous(job);
  options.views = HasViews(job);
  options.statistics_interval_steps = job.training().statistics_interval_steps();
  options.connect_seconds = job.timeouts().connect_seconds();
  return options;
}

std::optional<ElasticOptions> MakeElasticOptions(const v1::JobSpec& job,
                                                 uint64_t batches_per_epoch) {
  const v1::UpdateSpec& update = job.update();
  if (const RuleTraits* rule = FindRule(update.rule()); rule == nullptr || !rule->elastic) {
    return std::nullopt;
  }
  ElasticOptions options;
  options.local = {.momentum = update.momentum(), .weight_decay = update.weight_decay()};
  options.elasticity = update.elasticity();
  options.local_steps = update.local_steps();
  options.schedule = MakeSchedule(job, batches_per_epoch);
  if (IsSynchronous(job)) {
    options.synchronous_steps =
        batches_per_epoch / job.training().workers() * job.training().epochs();
  }
  return options;
}

std::unique_ptr<GradientUse> MakeGradientUse(const v1::JobSpec& job,
                                             const ParameterClientOptions& options,
                                             ParameterClient* client) {
  const auto elastic =
      MakeElasticOptions(job, BatchesPerEpoch(job, options.hello.train_examples()));
  if (!elastic.has_value()) return std::make_unique<PushGradients>(client);
  return std::make_unique<ElasticSteps>(*elastic, options.plan, options.schema, client);
}

absl::StatusOr<DeviceExchange> MakeDeviceExchange(const ParameterClientOptions& options,
                                                  Model& model) {
  kernels::StepMemory* const memory = model.step_memory();
  if (memory == nullptr) return DeviceExchange();
  const RuleTraits* rule = FindRule(options.rule);
  std::string why;
  if (rule != nullptr && rule->elastic) {
    why = absl::StrCat("the worker's half of ", options.rule);
  } else {
    const CodecSet codecs(options.codec_settings);
    auto encoder = memory->MakeEncoder(
        MakeStepEncoderOptions(MakeEncoderOptions(options), options.plan, codecs));
    if (encoder.ok()) {
      auto receiver = memory->MakeReceiver(MakeReceiverOptions(options, codecs, encoder->get()));
      if (!receiver.ok()) return receiver.status();
      LOG(INFO) << "pushes (" << options.push_codec << ") are made on the GPU, and replies ("
                << options.reply_codec << ") are read there";
      return DeviceExchange{*std::move(encoder), *std::move(receiver)};
    }
    if (encoder.status().code() != absl::StatusCode::kUnimplemented) return encoder.status();
    why = std::string(encoder.status().message());
  }
  LOG(INFO) << "gradients and parameters pass between GPU and CPU in fp32, and pushes are made on the "
               "CPU: "
            << why;
  return DeviceExchange();
}

v1::RegisterRequest MakeRegistration(const v1::HelloRequest& hello, const std::string& worker_name,
                                     const std::string& device) {
  v1::RegisterRequest request;
  *request.mutable_contract() = hello.contract();
  request.set_job_name(hello.job_name());
  request.set_job_text(hello.job_text());
  *request.mutable_model() = hello.model();
  request.set_train_examples(hello.train_examples());
  request.set_data_identity(hello.data_identity());
  request.set_worker_name(worker_name);
  request.set_device(device);
  return request;
}

}  // namespace foreshard
