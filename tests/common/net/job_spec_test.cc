#include "common/net/job_spec.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/net/job_parts.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using google::protobuf::util::MessageDifferencer;

constexpr char kJobs[] = FORESHARD_SOURCE_DIR "/deploy/jobs";
const std::string kDefaultJob = std::string(kJobs) + "/fashion_mnist.textproto";

v1::JobSpec DefaultJob(const std::vector<std::string>& overrides = {}) {
  absl::StatusOr<v1::JobSpec> job = LoadJobSpec(kDefaultJob, overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : v1::JobSpec();
}

TEST(JobSpec, EveryReadyJobLoadsUnderItsOwnName) {
  std::set<std::string> fingerprints;
  int jobs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kJobs)) {
    if (entry.path().extension() != ".textproto") continue;  // studies, README.md
    absl::StatusOr<v1::JobSpec> job = LoadJobSpec(entry.path(), {});
    ASSERT_TRUE(job.ok()) << entry.path() << job.status();
    EXPECT_EQ(job->name(), entry.path().stem());
    fingerprints.insert(std::to_string(JobFingerprint(*job)));
    ++jobs;
  }
  EXPECT_GE(jobs, 5);
  EXPECT_EQ(fingerprints.size(), jobs);
}

TEST(JobSpec, JobsOfTheDanaPaper) {
  const auto load = [](const char* name) {
    absl::StatusOr<v1::JobSpec> job = LoadJobSpec(absl::StrCat(kJobs, "/", name, ".textproto"), {});
    EXPECT_TRUE(job.ok()) << job.status();
    return job.value_or(v1::JobSpec());
  };
  const v1::JobSpec resnet = load("cifar10_resnet20_dana");
  EXPECT_EQ(resnet.model().name(), "resnet20");
  EXPECT_EQ(resnet.data().classes(), 10u);  // by default
  EXPECT_EQ(resnet.data().train_files_size(), 5);
  EXPECT_EQ(resnet.data().crop_padding(), 4u);
  EXPECT_TRUE(resnet.data().flip());
  EXPECT_EQ(resnet.training().batch_size(), 128u);
  EXPECT_EQ(resnet.training().epochs(), 160u);
  EXPECT_FLOAT_EQ(resnet.schedule().decay_factor(), 0.1f);
  const v1::JobSpec wide = load("cifar100_wrn16_4_dana");
  EXPECT_EQ(wide.model().name(), "wrn16_4");
  EXPECT_EQ(wide.data().classes(), 100u);
  EXPECT_EQ(wide.training().epochs(), 200u);
  EXPECT_FLOAT_EQ(wide.update().weight_decay(), 5e-4f);
  EXPECT_FLOAT_EQ(wide.schedule().decay_factor(), 0.2f);
  const v1::JobSpec imagenet = load("imagenet_resnet50_dana");
  EXPECT_EQ(imagenet.model().name(), "resnet50");
  EXPECT_EQ(imagenet.data().image_side(), 224u);  // by default
  EXPECT_FLOAT_EQ(imagenet.data().least_area(), 0.08f);
  EXPECT_EQ(imagenet.data().classes(), 1000u);
  EXPECT_EQ(imagenet.training().batch_size(), 256u);
  EXPECT_EQ(imagenet.training().epochs(), 90u);
  EXPECT_THAT(imagenet.schedule().decay_epochs(), ::testing::ElementsAre(30, 60, 80));
  const v1::JobSpec wide10 = load("cifar10_wrn16_4_dana");
  EXPECT_EQ(wide10.data().classes(), 10u);
  for (const v1::JobSpec* job : {&wide, &wide10}) {
    EXPECT_THAT(job->schedule().decay_epochs(), ::testing::ElementsAre(60, 120, 160));
  }
  EXPECT_THAT(resnet.schedule().decay_epochs(), ::testing::ElementsAre(80, 120));
  for (const v1::JobSpec* job : {&resnet, &wide, &wide10, &imagenet}) {
    EXPECT_FLOAT_EQ(job->schedule().learning_rate(), 0.1f);
    EXPECT_FLOAT_EQ(job->schedule().warmup_epochs(), 5);
    EXPECT_FLOAT_EQ(job->update().momentum(), 0.9f);
  }
}

TEST(JobSpec, JobsOfTheApmSqueezePapersBert) {
  for (const char* size : {"base", "large"}) {
    const auto job = LoadJobSpec(absl::StrCat(kJobs, "/bert_", size, "_apmsqueeze.textproto"), {});
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->model().name(), absl::StrCat("bert_", size));
    EXPECT_EQ(job->training().batch_size() * job->training().workers(), 4096u);
    EXPECT_EQ(job->apmsqueeze().warmup_rounds(), 23000u);
    EXPECT_FLOAT_EQ(job->schedule().learning_rate(), 4e-4f);
    EXPECT_FLOAT_EQ(job->schedule().warmup_epochs() / static_cast<float>(job->training().epochs()), 0.1f);
    // By default.
    EXPECT_FLOAT_EQ(job->model().dropout(), 0.1f);
    EXPECT_EQ(job->model().positions(), 512u);
    EXPECT_FLOAT_EQ(job->data().mask_fraction(), 0.15f);
  }
}

TEST(JobSpec, WhereFilesLieIsEachMachinesOwn) {
  const v1::JobSpec plain = DefaultJob();
  const v1::JobSpec job = DefaultJob({"model.initial_weights=a", "model.initial_weights_checksum=0123456789abcdef"});
  const v1::JobSpec moved = DefaultJob({"model.initial_weights=b/a", "model.initial_weights_checksum=0123456789abcdef"});
  const v1::JobSpec other = DefaultJob({"model.initial_weights=a", "model.initial_weights_checksum=0123456789abcdee"});
  EXPECT_EQ(JobFingerprint(job), JobFingerprint(moved));
  EXPECT_NE(JobFingerprint(job), JobFingerprint(other));
  EXPECT_NE(JobFingerprint(job), JobFingerprint(plain));
}

TEST(JobSpec, FillsDefaultsIn) {
  const v1::JobSpec job = DefaultJob();
  EXPECT_EQ(job.training().micro_batches(), 1);
  EXPECT_EQ(job.training().max_workers(), 8);
  EXPECT_EQ(job.training().statistics_interval_steps(), 10);
  EXPECT_FLOAT_EQ(job.training().statistics_weight(), 0.1f);
  EXPECT_EQ(job.compression().block_elements(), 4096);
  EXPECT_EQ(job.servers().segment_elements(), 1 << 20);
  EXPECT_EQ(job.servers().inflight_bytes(), 1ull << 30);
  EXPECT_EQ(job.evaluation().recalibration_batches(), 20);
  EXPECT_FLOAT_EQ(job.timeouts().lease_seconds(), 15);
  EXPECT_FLOAT_EQ(job.timeouts().connect_seconds(), 60);
  EXPECT_EQ(DefaultJob({"training.workers=6"}).training().max_workers(), 12);
  EXPECT_EQ(DefaultJob({"update.rule=ssgd"}).training().max_workers(), 8);
}

TEST(JobSpec, FillsInWhatTheRuleHasDefaultsFor) {
  const v1::UpdateSpec adam = DefaultJob({"update.rule=adam", "update.momentum="}).update();
  EXPECT_FLOAT_EQ(adam.beta1(), 0.9f);
  EXPECT_FLOAT_EQ(adam.beta2(), 0.999f);
  EXPECT_FLOAT_EQ(adam.epsilon(), 1e-8f);
  EXPECT_FALSE(adam.has_dc_lambda());
  const v1::UpdateSpec adaptive = DefaultJob({"update.rule=dana_dc"}).update();
  EXPECT_TRUE(adaptive.dc_adaptive());
  EXPECT_FLOAT_EQ(adaptive.dc_lambda(), 2);
  EXPECT_FLOAT_EQ(adaptive.dc_decay(), 0.95f);
  const v1::UpdateSpec constant =
      DefaultJob({"update.rule=dana_dc", "update.dc_adaptive=false"}).update();
  EXPECT_FLOAT_EQ(constant.dc_lambda(), 0.04f);
  EXPECT_FALSE(constant.has_dc_decay());
  EXPECT_EQ(DefaultJob({"update.rule=lwp"}).update().lag(), "workers");
  EXPECT_EQ(DefaultJob().update().lag(), "");
}

TEST(JobSpec, CodecsHaveDefaults) {
  const v1::CompressionSpec plain = DefaultJob().compression();
  EXPECT_EQ(plain.fraction(), 0);
  EXPECT_EQ(plain.bits(), 0);
  for (const char* codec : {"top_k", "random_k"}) {
    const v1::JobSpec job = DefaultJob({absl::StrCat("compression.push=", codec)});
    EXPECT_EQ(job.compression().fraction(), 1.0f / 32);
    EXPECT_EQ(job.compression().bits(), 0u);
    EXPECT_EQ(MakeCodecSettings(job).fraction, 1.0f / 32);
  }
  const v1::JobSpec quantized = DefaultJob({"compression.push=quantized"});
  EXPECT_EQ(quantized.compression().bits(), 4u);
  EXPECT_EQ(quantized.compression().fraction(), 0);
  const v1::JobSpec said = DefaultJob({"compression.push=quantized", "compression.bits=7",
                                       "compression.full_precision=*.bias,conv1*",
                                       "compression.full_precision_below=100"});
  EXPECT_EQ(MakeCodecSettings(said).bits, 7u);
  EXPECT_THAT(MakePlanOptions(said).full_precision, ::testing::ElementsAre("*.bias", "conv1*"));
  EXPECT_EQ(MakePlanOptions(said).full_precision_below, 100u);
}

TEST(JobSpec, DeadTensorsAreOfThePlan) {
  const std::vector<std::string> squeeze = {"update.rule=apmsqueeze", "update.momentum="};
  EXPECT_THAT(MakePlanOptions(DefaultJob(squeeze)).dead, ::testing::IsEmpty());
  std::vector<std::string> dead = squeeze;
  dead.push_back("apmsqueeze.dead=embed.*,head.bias");
  EXPECT_THAT(MakePlanOptions(DefaultJob(dead)).dead, ::testing::ElementsAre("embed.*", "head.bias"));
  EXPECT_NE(JobFingerprint(DefaultJob(dead)), JobFingerprint(DefaultJob(squeeze)));
}

TEST(JobSpec, ElasticAveragingHasDefaults) {
  const v1::JobSpec job = DefaultJob({"update.rule=eamsgd", "compression.push=none"});
  EXPECT_EQ(job.update().local_steps(), 10);
  EXPECT_FLOAT_EQ(job.update().elasticity(), 0.9f / 4);
  EXPECT_EQ(job.training().max_workers(), 8);
  const v1::JobSpec rounds = DefaultJob({"update.rule=eamsgd", "compression.push=none",
                                         "update.synchronous=true", "update.elasticity=0.25"});
  EXPECT_FLOAT_EQ(rounds.update().elasticity(), 0.25f);
  EXPECT_EQ(rounds.training().max_workers(), 4);
  // One worker's share of seven, as a float, is a little more than a seventh.
  DefaultJob({"update.rule=eamsgd", "compression.push=none", "update.synchronous=true",
              "training.workers=7", "update.elasticity=0.142858"});
  EXPECT_EQ(DefaultJob().update().local_steps(), 0);
  EXPECT_FALSE(DefaultJob().update().has_elasticity());
}

TEST(JobSpec, BoundsGoWithEveryRuleThatAllowsThem) {
  const v1::JobSpec job =
      DefaultJob({"update.rule=dana_ga", "training.staleness_bound=0", "schedule.ramp_epochs=5",
                  "update.delay_threshold=0"});
  EXPECT_TRUE(job.training().has_staleness_bound());
  EXPECT_TRUE(job.update().has_delay_threshold());
  EXPECT_EQ(job.schedule().ramp_epochs(), 5);
  // Momentum at the worker is no obstacle to bounds on dealing.
  DefaultJob({"update.rule=dana_slim", "training.staleness_bound=3", "schedule.ramp_epochs=0.5"});
  EXPECT_FALSE(DefaultJob().training().has_staleness_bound());
  EXPECT_FALSE(DefaultJob().update().has_delay_threshold());
}

TEST(JobSpec, OverridesEveryKindOfField) {
  const v1::JobSpec job = DefaultJob({"training.epochs=3", "schedule.learning_rate=0.5",
                                      "model.widths=8,16", "data.flip=true", "name=other",
                                      "update.weight_decay=", "servers.inflight_bytes=8589934592"});
  EXPECT_EQ(job.training().epochs(), 3);
  EXPECT_FLOAT_EQ(job.schedule().learning_rate(), 0.5f);
  ASSERT_EQ(job.model().widths_size(), 2);
  EXPECT_EQ(job.model().widths(1), 16);
  EXPECT_TRUE(job.data().flip());
  EXPECT_EQ(job.name(), "other");
  EXPECT_FALSE(job.update().has_weight_decay());
  EXPECT_EQ(job.servers().inflight_bytes(), 8589934592);
}

TEST(JobSpec, PrintsBackAsItWasRead) {
  const v1::JobSpec job = DefaultJob({"model.widths=8,16"});
  absl::StatusOr<v1::JobSpec> again = ParseJobSpec(PrintJobSpec(job), "printed", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(MessageDifferencer::Equals(job, *again));
  EXPECT_EQ(JobFingerprint(job), JobFingerprint(*again));
}

TEST(JobSpec, FingerprintIgnoresOnlyWhatMayDiffer) {
  const uint64_t fingerprint = JobFingerprint(DefaultJob());
  EXPECT_EQ(JobFingerprint(DefaultJob({"timeouts.lease_seconds=3", "evaluation.examples=100",
                                       "data.directory=/elsewhere"})),
            fingerprint);
  // A default said aloud is the same job.
  EXPECT_EQ(JobFingerprint(DefaultJob({"compression.block_elements=4096"})), fingerprint);
  for (const char* change :
       {"seed=2", "training.epochs=6", "update.momentum=0.8", "schedule.learning_rate=0.03",
        "compression.push=none", "compression.full_precision=*", "servers.shards=3", "data.mean=0.1", "model.widths=4,4"}) {
    EXPECT_NE(JobFingerprint(DefaultJob({change})), fingerprint) << change;
  }
}

TEST(JobSpec, MissingFileIsNamed) {
  const absl::Status status = LoadJobSpec("/no/such.textproto", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such.textproto"));
  for (const char* path : {kJobs, "/dev/null"}) {
    const absl::Status other = LoadJobSpec(path, {}).status();
    EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument) << other;
    EXPECT_THAT(std::string(other.message()), HasSubstr(path));
  }
}

TEST(JobSpec, ParseErrorsNameLineAndKnownFields) {
  const absl::Status unknown =
      ParseJobSpec("name: \"a\"\ntraining { epoch: 3 }\n", "job", {}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("job:2:"));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("\"epoch\""));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("epochs, batch_size"));

  const absl::Status negative =
      ParseJobSpec("name: \"a\"\ntraining {\n epochs: -3\n}\n", "job", {}).status();
  EXPECT_EQ(negative.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(negative.message()), HasSubstr("job:3:"));
  EXPECT_THAT(std::string(negative.message()), HasSubstr("epochs: -3"));
  EXPECT_THAT(std::string(negative.message()), HasSubstr("cannot be negative"));
}

TEST(JobSpec, AllProblemsAreSaidAtOnce) {
  const absl::Status status =
      LoadJobSpec(kDefaultJob, {"training.epochs=0", "update.rule=adagrad"}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("training.epochs: 0: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("update.rule: 'adagrad': "));
}

struct BadCase {
  const char* name;
  std::vector<std::string> overrides;
  const char* expected;  // in the message
};

class BadJob : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadJob, IsRefusedWithFieldAndRemedy) {
  const absl::Status status = LoadJobSpec(kDefaultJob, GetParam().overrides).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().expected));
}

INSTANTIATE_TEST_SUITE_P(
    JobSpec, BadJob,
    ::testing::Values(
        BadCase{"no_equals", {"training.epochs"}, "write it as path.to.field=value"},
        BadCase{"unknown_path", {"training.epoch=3"}, "known fields: epochs, batch_size"},
        BadCase{"path_into_scalar", {"training.epochs.x=3"}, "plain value"},
        BadCase{"group", {"training=3"}, "set one of them: epochs"},
        BadCase{"negative", {"training.epochs=-3"}, "whole number of 0 or more"},
        BadCase{"not_a_number", {"schedule.learning_rate=fast"}, "give a number"},
        BadCase{"not_a_bool", {"data.flip=perhaps"}, "true or false"},
        BadCase{"nan", {"schedule.learning_rate=nan"}, "schedule.learning_rate: nan: give a finite"},
        BadCase{"infinite", {"training.clip_norm=inf"}, "training.clip_norm: inf: give a finite"},
        BadCase{"name", {"name=a b"}, "use only letters"},
        BadCase{"no_name", {"name="}, "give the job a name"},
        BadCase{"model", {"model.name=resnet"}, "choose one of: cnn, mlp, quadratic, synthetic"},
        BadCase{"model_length", {"model.elements=5"}, "model.elements"},
        BadCase{"zero_width", {"model.widths=8,0"}, "model.widths: 0"},
        BadCase{"mlp_dense", {"model.name=mlp", "model.dense_units=5"}, "model.dense_units"},
        BadCase{"format", {"data.format=csv"}, "choose one of: idx, synthetic"},
        BadCase{"no_file", {"data.train_labels="}, "data.train_labels"},
        BadCase{"residual_widths", {"model.name=resnet20", "model.widths=8"}, "model.widths: set: the layers of resnet20 are given by its name"},
        BadCase{"residual_dense", {"model.name=resnet20", "model.dense_units=8"}, "model.dense_units: set"},
        BadCase{"cifar_idx_files", {"data.format=cifar10"}, "data.train_images: set: files of CIFAR are data.train_files and data.test_files"},
        BadCase{"cifar_mean", {"data.format=cifar10"}, "data.mean: set: CIFAR has data.channel_means"},
        BadCase{"cifar_no_files", {"data.format=cifar10"}, "data.test_files: missing: name the binary files"},
        BadCase{"cifar_empty_file", {"data.format=cifar10", "data.train_files=a,"}, "data.train_files: '': name a file"},
        BadCase{"cifar_classes", {"data.format=cifar100"}, "data.classes: 10: cifar100 has 100"},
        BadCase{"cifar_means", {"data.format=cifar10", "data.channel_means=0.5"}, "data.channel_means: 1 numbers: give one each for red, green and blue"},
        BadCase{"cifar_deviations", {"data.format=cifar10", "data.channel_deviations=1,0,1"}, "data.channel_deviations: 0: pixels are divided by it"},
        BadCase{"cifar_examples", {"data.format=cifar10", "data.examples=5"}, "data.examples: set: the number of examples comes from the CIFAR files"},
        BadCase{"idx_cifar_files", {"data.train_files=a"}, "data.train_files: set: only the formats cifar10 and cifar100 have it"},
        BadCase{"idx_channels", {"data.channel_means=0.5"}, "data.channel_means: set: only the formats cifar10, cifar100 and packed"},
        BadCase{"packed_no_folder", {"data.format=packed"}, "data.test_packed: '': name the folder that foreshard pack-images made"},
        BadCase{"packed_means", {"data.format=packed", "data.channel_means=0.5"}, "data.channel_means: 1 numbers: give one each"},
        BadCase{"packed_area", {"data.format=packed", "data.least_area=1.5"}, "data.least_area: 1.5: make it above 0 and at most 1"},
        BadCase{"packed_side", {"data.format=packed", "data.image_side=5000"}, "data.image_side: 5000: give a whole number from 1 to 4096"},
        BadCase{"packed_threads", {"data.format=packed", "data.decode_threads=257"}, "data.decode_threads: 257"},
        BadCase{"packed_crop", {"data.format=packed", "data.crop_padding=4"}, "data.crop_padding: set: packed images are cut as data.least_area says"},
        BadCase{"packed_idx_files", {"data.format=packed"}, "data.train_images: set: packed images are data.train_packed and data.test_packed"},
        BadCase{"idx_packed", {"data.train_packed=a"}, "data.train_packed: set: only the format packed has it"},
        BadCase{"idx_side", {"data.image_side=32"}, "data.image_side: set: only the format packed has it"},
        BadCase{"bert_images", {"model.name=bert_tiny"}, "data.format: idx: the model bert_tiny reads text; say tokens"},
        BadCase{"images_of_text", {"data.format=tokens"}, "data.format: tokens: the model cnn reads images; choose bert_tiny"},
        BadCase{"tokens_no_folder", {"model.name=bert_tiny", "data.format=tokens"}, "data.test_tokens: '': name the folder that foreshard pack-text made"},
        BadCase{"tokens_classes", {"model.name=bert_tiny", "data.format=tokens"}, "data.classes: set: the number of tokens comes with the vocabulary"},
        BadCase{"tokens_idx_files", {"data.format=tokens"}, "data.train_images: set: packed text is data.train_tokens and data.test_tokens"},
        BadCase{"tokens_mask", {"model.name=bert_tiny", "data.format=tokens", "data.mask_fraction=1"}, "data.mask_fraction: 1: make it above 0 and below 1"},
        BadCase{"idx_tokens", {"data.train_tokens=a"}, "data.train_tokens: set: only the format tokens has it"},
        BadCase{"cnn_dropout", {"model.dropout=0.1"}, "model.dropout: set: only the models bert_tiny, bert_base and bert_large have it"},
        BadCase{"cnn_pairs", {"model.next_sentence=true"}, "model.next_sentence: set"},
        BadCase{"bert_dropout", {"model.name=bert_base", "model.dropout=1"}, "model.dropout: 1: make it at least 0 and below 1"},
        BadCase{"bert_positions", {"model.name=bert_base", "model.positions=7"}, "model.positions: 7: give a whole number from 8 to 65536"},
        BadCase{"bert_widths", {"model.name=bert_base", "model.widths=8"}, "model.widths: set: the layers of bert_base are given by its name"},
        BadCase{"weights_no_checksum", {"model.initial_weights=w.safetensors"}, "model.initial_weights_checksum: '': give the 16 digits that 'foreshard weights --checksum w.safetensors' prints"},
        BadCase{"weights_checksum", {"model.initial_weights=w", "model.initial_weights_checksum=0123456789abcdeG"}, "model.initial_weights_checksum: '0123456789abcdeG'"},
        BadCase{"weights_no_file", {"model.initial_weights_checksum=0123456789abcdef"}, "model.initial_weights: '': name the safetensors file"},
        BadCase{"crop", {"data.crop_padding=65"}, "data.crop_padding: 65: give a whole number from 0 to 64"},
        BadCase{"no_classes", {"data.classes="}, "data.classes: 0"},
        BadCase{"deviation", {"data.deviation=0"}, "data.deviation: 0"},
        BadCase{"examples", {"data.examples=5"}, "data.examples"},
        BadCase{"epochs", {"training.epochs=0"}, "training.epochs: 0"},
        BadCase{"batch", {"training.batch_size=0"}, "training.batch_size: 0"},
        BadCase{"micro", {"training.micro_batches=5"}, "must divide training.batch_size (64)"},
        BadCase{"workers", {"training.workers=0"}, "training.workers: 0"},
        BadCase{"slots", {"training.max_workers=2"}, "is below training.workers (4)"},
        BadCase{"clip", {"training.clip_norm=0"}, "training.clip_norm: 0"},
        BadCase{"statistics", {"training.statistics_weight=1.5"}, "training.statistics_weight"},
        BadCase{"rule", {"update.rule=adagrad"}, "choose one of: asgd, nag_asgd"},
        BadCase{"no_momentum", {"update.momentum="}, "update.momentum: missing"},
        BadCase{"unused_momentum", {"update.rule=asgd"}, "asgd has no use for it"},
        BadCase{"momentum", {"update.momentum=1"}, "at least 0 and below 1"},
        BadCase{"decay", {"update.weight_decay=-1"}, "update.weight_decay: -1"},
        BadCase{"unused_setting", {"update.beta1=0.9"}, "update.beta1: set: the rule dana_slim has no use"},
        BadCase{"unused_lag", {"update.lag=measured"}, "update.lag: set: the rule dana_slim has no use"},
        BadCase{"lag", {"update.rule=lwp", "update.lag=guess"}, "update.lag: 'guess': choose one of: workers, measured"},
        BadCase{"moment", {"update.rule=adam", "update.momentum=", "update.beta2=1"}, "update.beta2: 1: make it at least 0 and below 1"},
        BadCase{"epsilon", {"update.rule=adam", "update.momentum=", "update.epsilon=0"}, "update.epsilon: 0: make it above 0"},
        BadCase{"adam_momentum", {"update.rule=adam"}, "adam has no use for it"},
        BadCase{"dc_lambda", {"update.rule=dana_dc", "update.dc_lambda=-1"}, "update.dc_lambda: -1: make it at least 0"},
        BadCase{"dc_decay", {"update.rule=dana_dc", "update.dc_adaptive=false", "update.dc_decay=0.9"}, "only update.dc_adaptive: true uses it"},
        BadCase{"unused_local_steps", {"update.local_steps=5"}, "update.local_steps: set: the rule dana_slim has no use"},
        BadCase{"unused_elasticity", {"update.elasticity=0.1"}, "update.elasticity: set: the rule dana_slim has no use"},
        BadCase{"always_asynchronous", {"update.synchronous=true"}, "update.synchronous: set: the rule dana_slim is always asynchronous"},
        BadCase{"always_synchronous", {"update.rule=ssgd", "update.synchronous=true"}, "the rule ssgd is always synchronous"},
        BadCase{"local_steps", {"update.rule=eamsgd", "update.local_steps=1001"}, "update.local_steps: 1001: give a whole number from 1 to 1000"},
        BadCase{"elasticity", {"update.rule=eamsgd", "update.elasticity=1.5"}, "update.elasticity: 1.5: make it above 0 and at most 1"},
        BadCase{"no_elasticity", {"update.rule=eamsgd", "update.elasticity=0"}, "update.elasticity: 0: make it above 0"},
        BadCase{"round_elasticity", {"update.rule=eamsgd", "update.synchronous=true", "update.elasticity=0.3"},
                "update.elasticity: 0.3: a synchronous round of training.workers (4) would carry the center beyond the workers' mean; make it at most 0.25"},
        BadCase{"elastic_push", {"update.rule=eamsgd"}, "compression.push: 'one_bit': with eamsgd worker and center move by the same difference"},
        BadCase{"elastic_reply", {"update.rule=easgd", "compression.push=none", "compression.reply=bf16"}, "compression.reply: 'bf16': with easgd"},
        BadCase{"easgd_momentum", {"update.rule=easgd"}, "easgd has no use for it"},
        BadCase{"eamsgd_momentum", {"update.rule=eamsgd", "update.momentum="}, "the rule eamsgd needs it"},
        BadCase{"elastic_members", {"update.rule=eamsgd", "update.synchronous=true", "training.max_workers=6"}, "exactly training.workers"},
        BadCase{"ssp_in_rounds", {"update.rule=ssgd", "training.staleness_bound=2"}, "training.staleness_bound: set: the rule ssgd keeps its workers in step with rounds; take it out"},
        BadCase{"ssp_too_wide", {"training.staleness_bound=2000000"}, "training.staleness_bound: 2000000: give a whole number from 0 to 1048576"},
        BadCase{"ramp_in_rounds", {"update.rule=ssgd", "schedule.ramp_epochs=2"}, "schedule.ramp_epochs: set: the rule ssgd keeps its workers in step with rounds; take it out"},
        BadCase{"ramp_negative", {"schedule.ramp_epochs=-1"}, "schedule.ramp_epochs: -1: make it at least 0"},
        BadCase{"ramp_too_long", {"schedule.ramp_epochs=50"}, "schedule.ramp_epochs: 50: is longer than the run"},
        BadCase{"ramp_alone", {"training.workers=1", "schedule.ramp_epochs=1"}, "schedule.ramp_epochs: 1: one worker (training.workers) has nobody to admit later"},
        BadCase{"delay_in_rounds", {"update.rule=ssgd", "update.delay_threshold=2"}, "update.delay_threshold: set: the rule ssgd keeps its workers in step with rounds; take it out"},
        BadCase{"delay_worker_momentum", {"update.delay_threshold=2"}, "update.delay_threshold: set: the rule dana_slim keeps momentum at the worker, which holds a discarded gradient already; choose another rule"},
        BadCase{"delay_elastic", {"update.rule=eamsgd", "compression.push=none", "update.delay_threshold=2"}, "update.delay_threshold: set: a worker of eamsgd has moved by the difference already that would be discarded; take it out"},
        BadCase{"delay_too_long", {"update.rule=dana_zero", "update.delay_threshold=2000000"}, "update.delay_threshold: 2000000: give a whole number from 0 to 1048576"},
        BadCase{"members", {"update.rule=ssgd", "training.max_workers=3"}, "is below training.workers (4)"},
        BadCase{"straggler", {"training.straggler_seconds=-1"}, "training.straggler_seconds: -1: make it at least 0"},
        BadCase{"straggler_without_rounds", {"training.straggler_seconds=1"},
                "training.straggler_seconds: set: the rule dana_slim has no rounds"},
        BadCase{"straggler_of_elastic", {"update.rule=eamsgd", "compression.push=none", "update.synchronous=true", "training.straggler_seconds=1"},
                "the rule eamsgd needs every worker in every round"},
        BadCase{"squeeze_elsewhere", {"apmsqueeze.fold_rounds=5"}, "apmsqueeze: set: the rule dana_slim has no use for it"},
        BadCase{"squeeze_both_warmups", {"update.rule=apmsqueeze", "update.momentum=", "apmsqueeze.warmup_rounds=5", "apmsqueeze.warmup_fraction=0.2"},
                "apmsqueeze.warmup_rounds says the same in rounds"},
        BadCase{"squeeze_fraction", {"update.rule=apmsqueeze", "update.momentum=", "apmsqueeze.warmup_fraction=1"}, "apmsqueeze.warmup_fraction: 1: make it above 0 and below 1"},
        BadCase{"squeeze_too_early", {"update.rule=apmsqueeze", "update.momentum=", "apmsqueeze.warmup_fraction=0.01", "schedule.warmup_epochs=1"},
                "while the learning rate still rises"},
        BadCase{"squeeze_automatic_fraction", {"update.rule=apmsqueeze", "update.momentum=", "apmsqueeze.automatic_freeze=true", "apmsqueeze.warmup_fraction=0.2"},
                "apmsqueeze.warmup_fraction: set: apmsqueeze.automatic_freeze decides when"},
        BadCase{"squeeze_automatic_rounds", {"update.rule=apmsqueeze", "update.momentum=", "apmsqueeze.automatic_freeze=true", "apmsqueeze.warmup_rounds=20"},
                "apmsqueeze.warmup_rounds: set: apmsqueeze.automatic_freeze decides when"},
        BadCase{"squeeze_error_limit", {"update.rule=apmsqueeze", "update.momentum=", "apmsqueeze.error_limit=-1"}, "apmsqueeze.error_limit: -1: make it above 0"},
        BadCase{"squeeze_form", {"update.rule=apmsqueeze", "update.momentum=", "apmsqueeze.form=weights"}, "choose one of: momentum, gradient"},
        BadCase{"squeeze_floor", {"update.rule=apmsqueeze", "update.momentum=", "apmsqueeze.variance_floor=2"}, "apmsqueeze.variance_floor: 2"},
        BadCase{"squeeze_dead_elsewhere", {"apmsqueeze.dead=a"}, "apmsqueeze: set: the rule dana_slim has no use for it; take it out"},
        BadCase{"squeeze_dead_empty", {"update.rule=apmsqueeze", "update.momentum=", "apmsqueeze.dead=,a"}, "apmsqueeze.dead: '': give a tensor's name"},
        BadCase{"squeeze_dead_plain", {"update.rule=apmsqueeze", "update.momentum=", "compression.push=none", "apmsqueeze.dead=a"},
                "apmsqueeze.dead: set: nothing is compressed here, so that nothing of a tensor can be left out; take it out"},
        BadCase{"squeeze_reply", {"update.rule=apmsqueeze", "update.momentum=", "compression.reply=fp16"}, "answers with a round's result"},
        BadCase{"rate", {"schedule.learning_rate=0"}, "schedule.learning_rate: 0"},
        BadCase{"warmup", {"schedule.warmup_epochs=50"}, "longer than the run"},
        BadCase{"decay_kind", {"schedule.decay=linear"}, "constant, step, cosine"},
        BadCase{"no_steps", {"schedule.decay=step", "schedule.final_fraction="}, "schedule.decay_epochs: missing"},
        BadCase{"no_factor", {"schedule.decay=step", "schedule.decay_epochs=1,2"}, "schedule.decay_factor: missing"},
        BadCase{"falling_steps", {"schedule.decay=step", "schedule.decay_epochs=2,1"}, "rising epochs"},
        BadCase{"unused_steps", {"schedule.decay_epochs=2"}, "only schedule.decay: \"step\" uses it"},
        BadCase{"fraction", {"schedule.final_fraction=2"}, "schedule.final_fraction: 2"},
        BadCase{"unused_fraction", {"schedule.final_fraction=0.5", "schedule.decay=constant"}, "only schedule.decay: \"cosine\""},
        BadCase{"push_codec", {"compression.push=gzip"}, "none, fp16, bf16, one_bit, one_bit_mean, top_k, random_k, quantized"},
        BadCase{"unused_codec_fraction", {"compression.fraction=0.1"}, "compression.fraction: set: it is for top_k, random_k, not for one_bit; take it out"},
        BadCase{"fraction_of_quantized", {"compression.push=quantized", "compression.fraction=0.1"}, "compression.fraction: set: it is for"},
        BadCase{"codec_fraction", {"compression.push=top_k", "compression.fraction=1.5"}, "compression.fraction: 1.5: make it above 0 and at most 1"},
        BadCase{"negative_fraction", {"compression.push=random_k", "compression.fraction=-0.1"}, "compression.fraction: -0.1: make it above 0"},
        BadCase{"unused_bits", {"compression.push=top_k", "compression.bits=4"}, "compression.bits: set: it is for quantized, not for top_k; take it out"},
        BadCase{"few_bits", {"compression.push=quantized", "compression.bits=1"}, "compression.bits: 1: give a whole number from 2 to 8"},
        BadCase{"many_bits", {"compression.push=quantized", "compression.bits=9"}, "compression.bits: 9: give a whole number from 2 to 8"},
        BadCase{"empty_pattern", {"compression.full_precision=,a"}, "compression.full_precision: '': give a tensor's name"},
        BadCase{"plain_pattern", {"compression.push=none", "compression.full_precision=a"}, "compression.full_precision: set: nothing is compressed here; take it out"},
        BadCase{"plain_below", {"compression.push=none", "compression.full_precision_below=5"}, "compression.full_precision_below: set: nothing is compressed here; take it out"},
        BadCase{"reply_codec", {"compression.reply=gzip"}, "compression.reply: 'gzip': choose one of: none, fp16, bf16, one_bit"},
        BadCase{"reply_in_rounds", {"update.rule=ssgd", "compression.reply=one_bit"}, "compression.reply: 'one_bit': it carries the difference to what one worker holds, and a round of ssgd sends all members the same; say none, fp16 or bf16"},
        BadCase{"block", {"compression.block_elements=5000"}, "from 1 to 4096"},
        BadCase{"shards", {"servers.shards=0"}, "servers.shards: 0"},
        BadCase{"segment", {"servers.segment_elements=100"}, "must hold a block"},
        BadCase{"long_segment", {"servers.segment_elements=100000000"}, "servers.segment_elements"},
        BadCase{"budget", {"servers.inflight_bytes=1000"}, "exchange of one segment alone takes"},
        BadCase{"lease", {"timeouts.lease_seconds=-1"}, "timeouts.lease_seconds: -1"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foreshard
