// ValidateJobSpec of job_spec.h: one line for each contradiction.
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/core/block.h"
#include "common/core/catalogue.h"
#include "common/core/codec_settings.h"
#include "common/net/channel.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace foreshard {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr uint32_t kMaxEpochs = 1'000'000;
constexpr uint32_t kMaxBatch = 1 << 20;
constexpr uint32_t kMaxWorkers = 4096;
constexpr uint32_t kMaxStalenessBound = 1 << 20;  // batches
constexpr uint32_t kMaxDelayThreshold = 1 << 20;  // updates
constexpr uint32_t kMaxShards = 1024;
constexpr uint32_t kMaxWidth = 1 << 16;
constexpr uint32_t kMaxLocalSteps = 1000;
constexpr uint32_t kMaxCheckpoints = 1000;
constexpr uint32_t kMaxCropPadding = 64;  // pixels
constexpr uint32_t kMaxImageSide = 4096;  // pixels
constexpr uint32_t kMaxDecodeThreads = 256;
constexpr uint32_t kMaxPositions = 65536;
constexpr size_t kChecksumDigits = 16;
// What rounding may add to workers times update.elasticity.
constexpr double kElasticityRounding = 1e-5;
constexpr uint64_t kMaxElements = 1ull << 40;
// A whole segment in fp32 and its header must fit into one message.
constexpr uint32_t kMaxSegmentElements = (kMaxMessageBytes - (1 << 20)) / 4;
constexpr size_t kMaxNameLength = 100;

// Debian's abseil has a string_view type of its own.
std::string Text(std::string_view text) { return std::string(text); }

// Collects problems as lines "field: value: remedy".
class Problems {
 public:
  template <typename Value>
  void Add(absl::string_view field, const Value& value, absl::string_view remedy) {
    lines_.push_back(absl::StrCat(field, ": ", value, ": ", remedy));
  }
  // Says that a count is out of [low, high].
  void CheckCount(absl::string_view field, uint64_t value, uint64_t low, uint64_t high) {
    if (value < low || value > high) {
      Add(field, value, absl::StrCat("give a whole number from ", low, " to ", high));
    }
  }
  void CheckUnused(bool set, absl::string_view field, absl::string_view why) {
    if (set) Add(field, "set", absl::StrCat(why, "; take it out"));
  }
  absl::Status status() const {
    if (lines_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(lines_, "\n"));
  }

 private:
  std::vector<std::string> lines_;
};

// Every float anywhere in the message must be finite.
void CheckFinite(const Message& message, const std::string& prefix, Problems* problems) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string path = prefix + field->name();
    const int repeated = field->is_repeated() ? reflection.FieldSize(message, field) : 0;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated()) {
      CheckFinite(reflection.GetMessage(message, field), path + ".", problems);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
      const auto check = [&](float value) {
        if (!std::isfinite(value)) problems->Add(path, value, "give a finite number");
      };
      if (!field->is_repeated()) check(reflection.GetFloat(message, field));
      for (int i = 0; i < repeated; ++i) check(reflection.GetRepeatedFloat(message, field, i));
    }
  }
}

std::string ModelNames() {
  const std::vector<std::string> names(Models().begin(), Models().end());
  return absl::StrJoin(names, ", ");
}

void CheckInitialWeights(const v1::ModelSpec& model, Problems* problems) {
  const std::string& checksum = model.initial_weights_checksum();
  if (model.initial_weights().empty()) {
    if (!checksum.empty()) {
      problems->Add("model.initial_weights", "''",
                    "name the safetensors file of model.initial_weights_checksum, or take both out");
    }
    return;
  }
  problems->CheckUnused(IsAnalytic(model.name()), "model.initial_weights",
                        absl::StrCat("the model ", model.name(), " has no layers"));
  bool good = checksum.size() == kChecksumDigits;
  for (char c : checksum) good = good && ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'));
  if (!good) {
    problems->Add("model.initial_weights_checksum", absl::StrCat("'", checksum, "'"),
                  absl::StrCat("give the ", kChecksumDigits,
                               " digits that 'foreshard weights --checksum ",
                               model.initial_weights(), "' prints"));
  }
}

void CheckModel(const v1::ModelSpec& model, Problems* problems) {
  bool known = false;
  for (std::string_view name : Models()) known = known || name == model.name();
  if (!known) {
    problems->Add("model.name", absl::StrCat("'", model.name(), "'"),
                  absl::StrCat("choose one of: ", ModelNames()));
    return;
  }
  for (uint32_t width : model.widths()) {
    problems->CheckCount("model.widths", width, 1, kMaxWidth);
  }
  if (model.dense_units() > kMaxWidth) {
    problems->CheckCount("model.dense_units", model.dense_units(), 1, kMaxWidth);
  }
  if (IsAnalytic(model.name())) {
    problems->CheckCount("model.elements", model.elements(), 1, kMaxElements);
    problems->CheckUnused(model.widths_size() > 0, "model.widths",
                          absl::StrCat("the model ", model.name(), " has no layers"));
  } else {
    problems->CheckUnused(model.elements() != 0, "model.elements",
                          "only the models quadratic and synthetic have a given length");
    problems->CheckUnused(!HasWidths(model.name()) && model.widths_size() > 0, "model.widths",
                          absl::StrCat("the layers of ", model.name(), " are given by its name"));
  }
  problems->CheckUnused(model.name() != "cnn" && model.dense_units() != 0, "model.dense_units",
                        "only the model cnn has it");
  if (ReadsText(model.name())) {
    if (!(model.dropout() >= 0 && model.dropout() < 1)) {
      problems->Add("model.dropout", model.dropout(), "make it at least 0 and below 1");
    }
    problems->CheckCount("model.positions", model.positions(), 8, kMaxPositions);
  } else {
    constexpr absl::string_view kOnlyBert = "only the models bert_tiny, bert_base and bert_large have it";
    problems->CheckUnused(model.has_dropout(), "model.dropout", kOnlyBert);
    problems->CheckUnused(model.next_sentence(), "model.next_sentence", kOnlyBert);
    problems->CheckUnused(model.positions() != 0, "model.positions", kOnlyBert);
  }
  CheckInitialWeights(model, problems);
}

// What only text has.
void CheckTokens(const v1::DataSpec& data, Problems* problems) {
  const auto need_folder = [&](absl::string_view field, const std::string& value) {
    if (value.empty()) {
      problems->Add(field, "''", "name the folder that foreshard pack-text made, relative to data.directory");
    }
  };
  need_folder("data.train_tokens", data.train_tokens());
  need_folder("data.test_tokens", data.test_tokens());
  if (!(data.mask_fraction() > 0 && data.mask_fraction() < 1)) {
    problems->Add("data.mask_fraction", data.mask_fraction(), "make it above 0 and below 1");
  }
}

// Of images in color.
void CheckChannels(const v1::DataSpec& data, Problems* problems) {
  const auto need_three = [&](absl::string_view field, int count) {
    if (count != 0 && count != 3) {
      problems->Add(field, absl::StrCat(count, " numbers"),
                    "give one each for red, green and blue");
    }
  };
  need_three("data.channel_means", data.channel_means_size());
  need_three("data.channel_deviations", data.channel_deviations_size());
  for (float deviation : data.channel_deviations()) {
    if (!(deviation > 0)) {
      problems->Add("data.channel_deviations", deviation, "pixels are divided by it; make it above 0");
    }
  }
}

// What only packed images have.
void CheckPacked(const v1::DataSpec& data, Problems* problems) {
  const auto need_folder = [&](absl::string_view field, const std::string& value) {
    if (value.empty()) {
      problems->Add(field, "''",
                    "name the folder that foreshard pack-images made, relative to data.directory");
    }
  };
  need_folder("data.train_packed", data.train_packed());
  need_folder("data.test_packed", data.test_packed());
  problems->CheckCount("data.image_side", data.image_side(), 1, kMaxImageSide);
  problems->CheckCount("data.decode_threads", data.decode_threads(), 0, kMaxDecodeThreads);
  if (!(data.least_area() > 0 && data.least_area() <= 1)) {
    problems->Add("data.least_area", data.least_area(), "make it above 0 and at most 1");
  }
  CheckChannels(data, problems);
}

// What only CIFAR has.
void CheckCifar(const v1::DataSpec& data, Problems* problems) {
  const auto need_files = [&](absl::string_view field, const auto& files) {
    if (files.empty()) {
      problems->Add(field, "missing",
                    "name the binary files (they may be gzipped), relative to data.directory");
    }
    for (const std::string& file : files) {
      if (file.empty()) problems->Add(field, "''", "name a file, or take it out");
    }
  };
  need_files("data.train_files", data.train_files());
  need_files("data.test_files", data.test_files());
  if (const uint32_t classes = CifarClasses(data.format()); data.classes() != classes) {
    problems->Add("data.classes", data.classes(),
                  absl::StrCat(data.format(), " has ", classes, "; leave it out"));
  }
  CheckChannels(data, problems);
}

// Settings of one format that another has no use for.
void CheckUnusedData(const v1::DataSpec& data, Problems* problems) {
  const bool idx = data.format() == "idx", synthetic = data.format() == "synthetic";
  const bool cifar = CifarClasses(data.format()) != 0, packed = data.format() == "packed";
  problems->CheckUnused(!idx && (!data.train_images().empty() || !data.train_labels().empty() ||
                                 !data.test_images().empty() || !data.test_labels().empty()),
                        "data.train_images",
                        synthetic ? "synthetic data has no files"
                        : data.format() == "tokens"
                                  ? "packed text is data.train_tokens and data.test_tokens"
                        : packed  ? "packed images are data.train_packed and data.test_packed"
                                  : "files of CIFAR are data.train_files and data.test_files");
  problems->CheckUnused(!idx && (data.has_mean() || data.has_deviation()), "data.mean",
                        synthetic ? "synthetic data is not normalised"
                        : data.format() == "tokens" ? "text is not normalised"
                        : packed  ? "packed images have data.channel_means and data.channel_deviations"
                                  : "CIFAR has data.channel_means and data.channel_deviations");
  problems->CheckUnused(!cifar && (data.train_files_size() > 0 || data.test_files_size() > 0),
                        "data.train_files", "only the formats cifar10 and cifar100 have it");
  problems->CheckUnused(
      !cifar && !packed && (data.channel_means_size() > 0 || data.channel_deviations_size() > 0),
      "data.channel_means", "only the formats cifar10, cifar100 and packed have it");
  problems->CheckUnused(!packed && (!data.train_packed().empty() || !data.test_packed().empty()),
                        "data.train_packed", "only the format packed has it");
  problems->CheckUnused(!packed && data.image_side() != 0, "data.image_side",
                        "only the format packed has it");
  problems->CheckUnused(!packed && data.least_area() != 0, "data.least_area",
                        "only the format packed has it");
  problems->CheckUnused(!packed && data.decode_threads() != 0, "data.decode_threads",
                        "only the format packed has it");
  problems->CheckUnused(packed && data.crop_padding() > 0, "data.crop_padding",
                        "packed images are cut as data.least_area says");
  problems->CheckUnused(synthetic && data.crop_padding() > 0, "data.crop_padding",
                        "synthetic data has no images");
  const bool tokens = data.format() == "tokens";
  problems->CheckUnused(!tokens && (!data.train_tokens().empty() || !data.test_tokens().empty()),
                        "data.train_tokens", "only the format tokens has it");
  problems->CheckUnused(!tokens && data.mask_fraction() != 0, "data.mask_fraction",
                        "only the format tokens has it");
  problems->CheckUnused(tokens && data.crop_padding() > 0, "data.crop_padding", "text has no images");
  problems->CheckUnused(tokens && data.flip(), "data.flip", "text has no images");
  problems->CheckUnused(tokens && data.classes() != 0, "data.classes",
                        "the number of tokens comes with the vocabulary of the packed text");
  problems->CheckUnused(!synthetic && data.examples() != 0, "data.examples",
                        absl::StrCat("the number of examples comes from the ",
                                     idx      ? "IDX"
                                     : packed || tokens ? "packed"
                                              : "CIFAR",
                                     " files"));
}

void CheckData(const v1::JobSpec& job, Problems* problems) {
  const v1::DataSpec& data = job.data();
  const bool analytic = IsAnalytic(job.model().name());
  const bool tokens = data.format() == "tokens", text = ReadsText(job.model().name());
  if (data.format() != "idx" && data.format() != "synthetic" && data.format() != "packed" && !tokens &&
      CifarClasses(data.format()) == 0) {
    problems->Add("data.format", absl::StrCat("'", data.format(), "'"),
                  "choose one of: idx, synthetic, cifar10, cifar100, packed, tokens");
    return;
  }
  if (text != tokens && !analytic) {
    problems->Add("data.format", data.format(),
                  text ? absl::StrCat("the model ", job.model().name(), " reads text; say tokens")
                       : absl::StrCat("the model ", job.model().name(),
                                      " reads images; choose bert_tiny, bert_base or bert_large for text"));
  }
  if (analytic && data.format() != "synthetic") {
    problems->Add("data.format", data.format(),
                  absl::StrCat("the model ", job.model().name(),
                               " reads no data; say synthetic and data.examples"));
  }
  CheckUnusedData(data, problems);
  problems->CheckCount("data.crop_padding", data.crop_padding(), 0, kMaxCropPadding);
  if (CifarClasses(data.format()) != 0) {
    CheckCifar(data, problems);
    return;
  }
  if (tokens) {
    CheckTokens(data, problems);
    return;
  }
  if (!analytic && !text) problems->CheckCount("data.classes", data.classes(), 2, 65536);
  if (data.format() == "packed") {
    CheckPacked(data, problems);
    return;
  }
  if (data.format() == "synthetic") {
    problems->CheckCount("data.examples", data.examples(), 1, UINT32_MAX);
    if (data.examples() > 0 && job.training().batch_size() > data.examples()) {
      problems->Add("training.batch_size", job.training().batch_size(),
                    absl::StrCat("is more than data.examples (", data.examples(),
                                 "); make it smaller"));
    }
    return;
  }
  const auto need_file = [&](absl::string_view field, const std::string& value) {
    if (value.empty()) {
      problems->Add(field, "''", "name the IDX file (it may be gzipped), relative to data.directory");
    }
  };
  need_file("data.train_images", data.train_images());
  need_file("data.train_labels", data.train_labels());
  need_file("data.test_images", data.test_images());
  need_file("data.test_labels", data.test_labels());
  if (!(data.deviation() > 0)) {
    problems->Add("data.deviation", data.deviation(), "pixels are divided by it; make it above 0");
  }
}

void CheckTraining(const v1::TrainingSpec& training, Problems* problems) {
  problems->CheckCount("training.epochs", training.epochs(), 1, kMaxEpochs);
  problems->CheckCount("training.batch_size", training.batch_size(), 1, kMaxBatch);
  problems->CheckCount("training.workers", training.workers(), 1, kMaxWorkers);
  problems->CheckCount("training.max_workers", training.max_workers(), 1, kMaxWorkers);
  const uint32_t parts = training.micro_batches();
  if (parts == 0 || (training.batch_size() > 0 && training.batch_size() % parts != 0)) {
    problems->Add("training.micro_batches", parts,
                  absl::StrCat("must divide training.batch_size (", training.batch_size(), ")"));
  }
  if (training.has_clip_norm() && !(training.clip_norm() > 0)) {
    problems->Add("training.clip_norm", training.clip_norm(),
                  "make it above 0, or take it out for no clipping");
  }
  problems->CheckCount("training.statistics_interval_steps", training.statistics_interval_steps(),
                       1, kMaxEpochs);
  if (!(training.statistics_weight() > 0 && training.statistics_weight() <= 1)) {
    problems->Add("training.statistics_weight", training.statistics_weight(),
                  "make it above 0 and at most 1");
  }
}

void CheckSetting(Setting setting, bool set, absl::string_view field, absl::string_view rule,
                  absl::string_view example, Problems* problems) {
  if (setting == Setting::kRequired && !set) {
    problems->Add(field, "missing",
                  absl::StrCat("the rule ", rule, " needs it, as in ", example));
  }
  problems->CheckUnused(setting == Setting::kUnused && set, field,
                        absl::StrCat("the rule ", rule, " has no use for it"));
}

// Settings that only some rules have, all with defaults.
void CheckRuleSettings(const v1::UpdateSpec& update, const RuleTraits& rule, Problems* problems) {
  const auto check = [&](Setting setting, bool set, absl::string_view field) {
    CheckSetting(setting, set, field, Text(rule.name), "", problems);
  };
  check(rule.delay_compensation, update.has_dc_adaptive(), "update.dc_adaptive");
  check(rule.delay_compensation, update.has_dc_lambda(), "update.dc_lambda");
  check(rule.delay_compensation, update.has_dc_decay(), "update.dc_decay");
  check(rule.moments, update.has_beta1(), "update.beta1");
  check(rule.moments, update.has_beta2(), "update.beta2");
  check(rule.moments, update.has_epsilon(), "update.epsilon");
  check(rule.moments, update.has_bias_correction(), "update.bias_correction");
  check(rule.lag, !update.lag().empty(), "update.lag");

  const auto check_decay = [&](bool set, absl::string_view field, float value) {
    if (set && !(value >= 0 && value < 1)) {
      problems->Add(field, value, "make it at least 0 and below 1");
    }
  };
  check_decay(update.has_dc_decay(), "update.dc_decay", update.dc_decay());
  check_decay(update.has_beta1(), "update.beta1", update.beta1());
  check_decay(update.has_beta2(), "update.beta2", update.beta2());
  if (update.has_dc_lambda() && !(update.dc_lambda() >= 0)) {
    problems->Add("update.dc_lambda", update.dc_lambda(), "make it at least 0");
  }
  if (update.has_epsilon() && !(update.epsilon() > 0)) {
    problems->Add("update.epsilon", update.epsilon(), "make it above 0");
  }
  problems->CheckUnused(
      rule.delay_compensation != Setting::kUnused && !update.dc_adaptive() && update.has_dc_decay(),
      "update.dc_decay", "only update.dc_adaptive: true uses it");
  if (rule.lag != Setting::kUnused && update.lag() != "workers" && update.lag() != "measured") {
    problems->Add("update.lag", absl::StrCat("'", update.lag(), "'"),
                  "choose one of: workers, measured");
  }
}

// Patterns of tensors' names; whether they describe any is known with the model.
void CheckPatterns(absl::string_view field, const google::protobuf::RepeatedPtrField<std::string>& patterns,
                   Problems* problems) {
  for (const std::string& pattern : patterns) {
    if (!pattern.empty()) continue;
    problems->Add(field, "''", "give a tensor's name, in which '*' stands for any characters, as in *.bias");
  }
}

// The compressed phase: what only its rule has, and what does not go with it.
void CheckSqueeze(const v1::JobSpec& job, const RuleTraits& rule, Problems* problems) {
  if (!rule.squeezes) {
    problems->CheckUnused(job.has_apmsqueeze(), "apmsqueeze",
                          absl::StrCat("the rule ", Text(rule.name), " has no use for it"));
    return;
  }
  const v1::ApmSqueezeSpec& squeeze = job.apmsqueeze();
  const float fraction = squeeze.warmup_fraction();
  problems->CheckUnused(fraction != 0 && squeeze.warmup_rounds() != 0, "apmsqueeze.warmup_fraction",
                        "apmsqueeze.warmup_rounds says the same in rounds");
  problems->CheckUnused(squeeze.automatic_freeze() && (fraction != 0 || squeeze.warmup_rounds() != 0),
                        fraction != 0 ? "apmsqueeze.warmup_fraction" : "apmsqueeze.warmup_rounds",
                        "apmsqueeze.automatic_freeze decides when the variance is frozen");
  if (!(squeeze.error_limit() > 0)) {
    problems->Add("apmsqueeze.error_limit", squeeze.error_limit(), "make it above 0");
  }
  if (!(fraction >= 0 && fraction < 1)) {
    problems->Add("apmsqueeze.warmup_fraction", fraction, "make it above 0 and below 1");
  } else if (const float epochs = fraction * static_cast<float>(job.training().epochs());
             fraction > 0 && epochs < job.schedule().warmup_epochs()) {
    problems->Add("apmsqueeze.warmup_fraction", fraction,
                  absl::StrCat("would freeze the variance after ", epochs,
                               " epochs, while the learning rate still rises (schedule.warmup_epochs is ",
                               job.schedule().warmup_epochs(), "); raise it, or shorten that"));
  }
  if (squeeze.form() != "momentum" && squeeze.form() != "gradient") {
    problems->Add("apmsqueeze.form", absl::StrCat("'", squeeze.form(), "'"),
                  "choose one of: momentum, gradient");
  }
  if (!(squeeze.variance_floor() > 0 && squeeze.variance_floor() <= 1)) {
    problems->Add("apmsqueeze.variance_floor", squeeze.variance_floor(), "make it above 0 and at most 1");
  }
  CheckPatterns("apmsqueeze.dead", squeeze.dead(), problems);
  problems->CheckUnused(squeeze.dead_size() > 0 && job.compression().push() == "none", "apmsqueeze.dead",
                        "nothing is compressed here, so that nothing of a tensor can be left out");
  if (job.compression().reply() != "none") {
    problems->Add("compression.reply", absl::StrCat("'", job.compression().reply(), "'"),
                  absl::StrCat("the rule ", Text(rule.name),
                               " answers with a round's result, encoded as compression.push says; say \"none\""));
  }
}

// Elastic averaging: what only its rules have, and what does not go with it.
void CheckElastic(const v1::JobSpec& job, const RuleTraits& rule, Problems* problems) {
  const v1::UpdateSpec& update = job.update();
  if (!rule.optional_rounds) {
    problems->CheckUnused(update.synchronous(), "update.synchronous",
                          absl::StrCat("the rule ", Text(rule.name), " is always ",
                                       rule.synchronous ? "synchronous" : "asynchronous"));
  }
  if (!rule.elastic) {
    const std::string why = absl::StrCat("the rule ", Text(rule.name), " has no use for it");
    problems->CheckUnused(update.local_steps() != 0, "update.local_steps", why);
    problems->CheckUnused(update.has_elasticity(), "update.elasticity", why);
    return;
  }
  problems->CheckCount("update.local_steps", update.local_steps(), 1, kMaxLocalSteps);
  const double elasticity = update.elasticity();
  const double workers = job.training().workers();
  if (update.has_elasticity() && !(elasticity > 0 && elasticity <= 1)) {
    problems->Add("update.elasticity", elasticity, "make it above 0 and at most 1");
  } else if (update.synchronous() && workers * elasticity > 1 + kElasticityRounding) {
    problems->Add("update.elasticity", elasticity,
                  absl::StrCat("a synchronous round of training.workers (", workers,
                               ") would carry the center beyond the workers' mean; make it at most ",
                               1 / workers));
  }
  if (job.compression().push() != "none") {
    problems->Add("compression.push", absl::StrCat("'", job.compression().push(), "'"),
                  absl::StrCat("with ", Text(rule.name),
                               " worker and center move by the same difference, of which a codec "
                               "would lose a part on one side only; say \"none\""));
  }
  if (job.compression().reply() != "none") {
    problems->Add("compression.reply", absl::StrCat("'", job.compression().reply(), "'"),
                  absl::StrCat("with ", Text(rule.name),
                               " what a codec rounds off the center would come back to it in the "
                               "difference, every time; say \"none\""));
  }
}

void CheckUpdate(const v1::JobSpec& job, Problems* problems) {
  const v1::UpdateSpec& update = job.update();
  const RuleTraits* rule = FindRule(update.rule());
  if (rule == nullptr) {
    const auto name = [](std::string* out, const RuleTraits& traits) { out->append(Text(traits.name)); };
    problems->Add("update.rule", absl::StrCat("'", update.rule(), "'"),
                  absl::StrCat("choose one of: ", absl::StrJoin(Rules(), ", ", name)));
  } else {
    CheckSetting(rule->momentum, update.has_momentum(), "update.momentum", Text(rule->name), "0.9",
                 problems);
    CheckSetting(rule->weight_decay, update.has_weight_decay(), "update.weight_decay", Text(rule->name),
                 "0.0001", problems);
    CheckRuleSettings(update, *rule, problems);
    CheckElastic(job, *rule, problems);
    CheckSqueeze(job, *rule, problems);
  }
  if (update.has_momentum() && !(update.momentum() >= 0 && update.momentum() < 1)) {
    problems->Add("update.momentum", update.momentum(), "make it at least 0 and below 1");
  }
  if (update.has_weight_decay() && !(update.weight_decay() >= 0)) {
    problems->Add("update.weight_decay", update.weight_decay(), "make it at least 0");
  }
  const v1::TrainingSpec& training = job.training();
  const bool fixed = IsSynchronous(job) && !HasViews(job);
  if (fixed && training.max_workers() != training.workers()) {
    problems->Add("training.max_workers", training.max_workers(),
                  absl::StrCat("the synchronous ", update.rule(),
                               " has exactly training.workers (", training.workers(),
                               ") members; leave it out"));
  } else if (!fixed && training.max_workers() < training.workers()) {
    problems->Add("training.max_workers", training.max_workers(),
                  absl::StrCat("is below training.workers (", training.workers(),
                               "); leave it out or raise it"));
  }
}

// What bounds staleness, whatever the rule: SSP, the worker ramp, the delay threshold.
void CheckBounds(const v1::JobSpec& job, Problems* problems) {
  const RuleTraits* rule = FindRule(job.update().rule());
  const v1::TrainingSpec& training = job.training();
  const float ramp = job.schedule().ramp_epochs();
  const bool synchronous = IsSynchronous(job);
  const std::string in_step = absl::StrCat("the rule ", job.update().rule(),
                                           " keeps its workers in step with rounds");
  if (training.has_staleness_bound()) {
    problems->CheckUnused(synchronous, "training.staleness_bound", in_step);
    problems->CheckCount("training.staleness_bound", training.staleness_bound(), 0,
                         kMaxStalenessBound);
  }
  if (!(training.straggler_seconds() >= 0)) {
    problems->Add("training.straggler_seconds", training.straggler_seconds(), "make it at least 0");
  }
  problems->CheckUnused(training.straggler_seconds() > 0 && !HasViews(job), "training.straggler_seconds",
                        absl::StrCat("the rule ", job.update().rule(),
                                     synchronous ? " needs every worker in every round" : " has no rounds"));
  if (!(ramp >= 0)) {
    problems->Add("schedule.ramp_epochs", ramp, "make it at least 0");
  } else if (ramp > static_cast<float>(training.epochs())) {
    problems->Add("schedule.ramp_epochs", ramp,
                  absl::StrCat("is longer than the run (training.epochs is ", training.epochs(),
                               "); shorten it"));
  }
  if (ramp > 0) {
    problems->CheckUnused(synchronous, "schedule.ramp_epochs", in_step);
    if (!synchronous && training.workers() == 1) {
      problems->Add("schedule.ramp_epochs", ramp,
                    "one worker (training.workers) has nobody to admit later; raise training.workers "
                    "or take the ramp out");
    }
  }
  if (!job.update().has_delay_threshold()) return;
  problems->CheckCount("update.delay_threshold", job.update().delay_threshold(), 0, kMaxDelayThreshold);
  problems->CheckUnused(synchronous, "update.delay_threshold", in_step);
  problems->CheckUnused(
      rule != nullptr && rule->worker_half, "update.delay_threshold",
      absl::StrCat("the rule ", job.update().rule(),
                   " keeps momentum at the worker, which holds a discarded gradient already; choose "
                   "another rule (dana_zero keeps it at the server)"));
  problems->CheckUnused(!synchronous && rule != nullptr && rule->elastic, "update.delay_threshold",
                        absl::StrCat("a worker of ", job.update().rule(),
                                     " has moved by the difference already that would be discarded"));
}

void CheckSchedule(const v1::JobSpec& job, Problems* problems) {
  const v1::ScheduleSpec& schedule = job.schedule();
  if (!(schedule.learning_rate() > 0)) {
    problems->Add("schedule.learning_rate", schedule.learning_rate(), "make it above 0");
  }
  if (!(schedule.warmup_epochs() >= 0)) {
    problems->Add("schedule.warmup_epochs", schedule.warmup_epochs(), "make it at least 0");
  } else if (schedule.warmup_epochs() > static_cast<float>(job.training().epochs())) {
    problems->Add("schedule.warmup_epochs", schedule.warmup_epochs(),
                  absl::StrCat("is longer than the run (training.epochs is ",
                               job.training().epochs(), "); shorten it"));
  }
  const std::string& decay = schedule.decay();
  if (decay != "constant" && decay != "step" && decay != "cosine") {
    problems->Add("schedule.decay", absl::StrCat("'", decay, "'"),
                  "choose one of: constant, step, cosine");
    return;
  }
  if (decay == "step") {
    if (schedule.decay_epochs().empty()) {
      problems->Add("schedule.decay_epochs", "missing",
                    "say after which epochs the rate drops, as in [80, 120]");
    }
    if (!schedule.has_decay_factor()) {
      problems->Add("schedule.decay_factor", "missing", "say by what it drops, as in 0.1");
    } else if (!(schedule.decay_factor() > 0)) {
      problems->Add("schedule.decay_factor", schedule.decay_factor(), "make it above 0");
    }
    float last = 0;
    for (float epoch : schedule.decay_epochs()) {
      if (!(epoch > last)) {
        problems->Add("schedule.decay_epochs", epoch, "give rising epochs above 0");
      }
      last = epoch;
    }
  } else {
    problems->CheckUnused(!schedule.decay_epochs().empty(), "schedule.decay_epochs",
                          "only schedule.decay: \"step\" uses it");
    problems->CheckUnused(schedule.has_decay_factor(), "schedule.decay_factor",
                          "only schedule.decay: \"step\" uses it");
  }
  if (decay == "cosine") {
    if (!(schedule.final_fraction() >= 0 && schedule.final_fraction() <= 1)) {
      problems->Add("schedule.final_fraction", schedule.final_fraction(),
                    "make it at least 0 and at most 1");
    }
  } else {
    problems->CheckUnused(schedule.final_fraction() != 0, "schedule.final_fraction",
                          "only schedule.decay: \"cosine\" uses it");
  }
}

void CheckCodec(absl::string_view field, const std::string& name, Problems* problems) {
  if (FindCodecTraits(name) != nullptr) return;
  std::vector<std::string> names;
  for (const CodecTraits& traits : Codecs()) names.push_back(Text(traits.name));
  problems->Add(field, absl::StrCat("'", name, "'"),
                absl::StrCat("choose one of: ", absl::StrJoin(names, ", ")));
}

// Replies that carry differences to what each worker holds.
void CheckReplies(const v1::JobSpec& job, Problems* problems) {
  const std::string& name = job.compression().reply();
  CheckCodec("compression.reply", name, problems);
  const CodecTraits* codec = FindCodecTraits(name);
  const RuleTraits* rule = FindRule(job.update().rule());
  if (codec == nullptr || codec->replies_carry_values || rule == nullptr || rule->elastic) return;
  if (IsSynchronous(job)) {
    problems->Add("compression.reply", absl::StrCat("'", name, "'"),
                  absl::StrCat("it carries the difference to what one worker holds, and a round of ",
                               job.update().rule(),
                               " sends all members the same; say none, fp16 or bf16"));
  }
}

// What only some codecs have, and what stays in full precision.
void CheckCompression(const v1::JobSpec& job, Problems* problems) {
  const v1::CompressionSpec& compression = job.compression();
  CheckCodec("compression.push", compression.push(), problems);
  CheckReplies(job, problems);
  problems->CheckCount("compression.block_elements", compression.block_elements(), 1,
                       kMaxBlockElements);
  const auto used = [&](bool CodecTraits::*setting, bool set, absl::string_view field) {
    if (HasCodecSetting(compression.push(), compression.reply(), setting)) return true;
    std::vector<std::string> names;
    for (const CodecTraits& codec : Codecs()) {
      if (codec.*setting) names.push_back(Text(codec.name));
    }
    problems->CheckUnused(set, field, absl::StrCat("it is for ", absl::StrJoin(names, ", "),
                                                   ", not for ", compression.push()));
    return false;
  };
  const float fraction = compression.fraction();
  if (used(&CodecTraits::fraction, fraction != 0, "compression.fraction") &&
      !(fraction > 0 && fraction <= 1)) {
    problems->Add("compression.fraction", fraction, "make it above 0 and at most 1");
  }
  if (used(&CodecTraits::bits, compression.bits() != 0, "compression.bits")) {
    problems->CheckCount("compression.bits", compression.bits(), kMinCodecBits, kMaxCodecBits);
  }
  const bool plain = compression.push() == "none" && compression.reply() == "none";
  constexpr absl::string_view kPlain = "nothing is compressed here";
  problems->CheckUnused(plain && compression.full_precision_size() > 0, "compression.full_precision",
                        kPlain);
  problems->CheckUnused(plain && compression.full_precision_below() != 0,
                        "compression.full_precision_below", kPlain);
  CheckPatterns("compression.full_precision", compression.full_precision(), problems);
}

void CheckServers(const v1::JobSpec& job, Problems* problems) {
  const v1::ServersSpec& servers = job.servers();
  const v1::CompressionSpec& compression = job.compression();
  problems->CheckCount("servers.shards", servers.shards(), 1, kMaxShards);
  problems->CheckCount("servers.segment_elements", servers.segment_elements(), 1,
                       kMaxSegmentElements);
  if (servers.segment_elements() < compression.block_elements()) {
    problems->Add("servers.segment_elements", servers.segment_elements(),
                  absl::StrCat("a segment must hold a block of compression.block_elements (",
                               compression.block_elements(), ")"));
  }
  // A push and its reply, both in fp32; of apmsqueeze a reply may bring momentum and
  // denominator too.
  const RuleTraits* rule = FindRule(job.update().rule());
  const uint64_t floats = rule != nullptr && rule->squeezes ? 4 : 2;
  const uint64_t one_exchange = uint64_t{servers.segment_elements()} * 4 * floats + (1 << 20);
  if (servers.inflight_bytes() < one_exchange) {
    problems->Add("servers.inflight_bytes", servers.inflight_bytes(),
                  absl::StrCat("the exchange of one segment alone takes ", one_exchange,
                               "; give at least that, or leave it out"));
  }
}

void CheckTimeouts(const v1::TimeoutsSpec& timeouts, Problems* problems) {
  if (!(timeouts.lease_seconds() > 0)) {
    problems->Add("timeouts.lease_seconds", timeouts.lease_seconds(), "make it above 0");
  }
  if (!(timeouts.connect_seconds() > 0)) {
    problems->Add("timeouts.connect_seconds", timeouts.connect_seconds(), "make it above 0");
  }
}

void CheckDurability(const v1::DurabilitySpec& durability, Problems* problems) {
  if (durability.journal() != "off" && durability.journal() != "buffered" && durability.journal() != "synced") {
    problems->Add("durability.journal", absl::StrCat("'", durability.journal(), "'"),
                  "choose off, buffered or synced");
  }
  if (!(durability.checkpoint_seconds() > 0) || !std::isfinite(durability.checkpoint_seconds())) {
    problems->Add("durability.checkpoint_seconds", durability.checkpoint_seconds(), "make it above 0");
  }
  problems->CheckCount("durability.keep_checkpoints", durability.keep_checkpoints(), 1, kMaxCheckpoints);
  if (durability.on_failure() != "stop" && durability.on_failure() != "continue") {
    problems->Add("durability.on_failure", absl::StrCat("'", durability.on_failure(), "'"),
                  "choose stop or continue");
  }
  problems->CheckUnused(durability.keep_journal() && durability.journal() == "off", "durability.keep_journal",
                        "durability.journal off leaves no journal to keep");
}

}  // namespace

absl::Status ValidateJobSpec(const v1::JobSpec& job) {
  Problems problems;
  if (job.name().empty() || job.name().size() > kMaxNameLength) {
    problems.Add("name", absl::StrCat("'", job.name(), "'"),
                 absl::StrCat("give the job a name of 1 to ", kMaxNameLength, " characters"));
  }
  for (char c : job.name()) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.') {
      problems.Add("name", absl::StrCat("'", job.name(), "'"),
                   "use only letters, digits, '-', '_' and '.'");
      break;
    }
  }
  CheckFinite(job, "", &problems);
  CheckModel(job.model(), &problems);
  CheckData(job, &problems);
  CheckTraining(job.training(), &problems);
  CheckUpdate(job, &problems);
  CheckBounds(job, &problems);
  CheckSchedule(job, &problems);
  CheckCompression(job, &problems);
  CheckServers(job, &problems);
  CheckTimeouts(job.timeouts(), &problems);
  CheckDurability(job.durability(), &problems);
  problems.CheckCount("evaluation.interval_epochs", job.evaluation().interval_epochs(), 1,
                      kMaxEpochs);
  return problems.status();
}

}  // namespace foreshard
