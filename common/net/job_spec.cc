#include "common/net/job_spec.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/core/block.h"
#include "common/core/bytes.h"
#include "common/core/catalogue.h"
#include "common/core/codec_settings.h"
#include "common/net/job_parts.h"
#include "common/net/spec_text.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"

namespace foreshard {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string FieldNames(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return absl::StrJoin(names, ", ");
}

template <typename T>
bool ParseInteger(const std::string& text, T* value) {
  return absl::SimpleAtoi(text, value);
}

// Sets or adds one scalar. False where the text is no value of the field's type.
bool StoreScalar(const std::string& text, const FieldDescriptor& field, Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  const auto store = [&](auto set, auto add, auto value) {
    if (field.is_repeated()) {
      (reflection.*add)(message, &field, value);
    } else {
      (reflection.*set)(message, &field, value);
    }
    return true;
  };
  using R = google::protobuf::Reflection;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32: {
      uint32_t value = 0;
      return ParseInteger(text, &value) && store(&R::SetUInt32, &R::AddUInt32, value);
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t value = 0;
      return ParseInteger(text, &value) && store(&R::SetUInt64, &R::AddUInt64, value);
    }
    case FieldDescriptor::CPPTYPE_FLOAT: {
      float value = 0;
      return absl::SimpleAtof(text, &value) && store(&R::SetFloat, &R::AddFloat, value);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value = 0;
      return absl::SimpleAtod(text, &value) && store(&R::SetDouble, &R::AddDouble, value);
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      bool value = false;
      return absl::SimpleAtob(text, &value) && store(&R::SetBool, &R::AddBool, value);
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return store(&R::SetString, &R::AddString, text);
    default:
      return false;
  }
}

const char* TypeInWords(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return "a whole number of 0 or more";
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "a number";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    default:
      return "text";
  }
}

absl::Status ApplyOverride(const std::string& text, v1::JobSpec* job) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "override '", text, "': write it as path.to.field=value, as in training.epochs=3"));
  }
  const std::string path = text.substr(0, equals);
  const std::string value = text.substr(equals + 1);
  Message* message = job;
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  for (size_t i = 0; i < names.size(); ++i) {
    const Descriptor& type = *message->GetDescriptor();
    const FieldDescriptor* field = type.FindFieldByName(names[i]);
    if (field == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", value, ": there is no field '", names[i], "' in ", type.name(),
                       "; known fields: ", FieldNames(type)));
    }
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (i + 1 < names.size()) {
      if (!is_message) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": ", value, ": '", names[i], "' is a plain value and has no fields in it"));
      }
      message = message->GetReflection()->MutableMessage(message, field);
      continue;
    }
    if (is_message && !value.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": ", value, ": this is a group of fields; set one of them: ",
          FieldNames(*field->message_type())));
    }
    message->GetReflection()->ClearField(message, field);
    if (value.empty()) return absl::OkStatus();
    std::vector<std::string> parts = {value};
    if (field->is_repeated()) parts = absl::StrSplit(value, ',');
    for (const std::string& part : parts) {
      if (!StoreScalar(part, *field, message)) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": ", part, ": give ", TypeInWords(*field)));
      }
    }
  }
  return absl::OkStatus();
}

// What job.proto's comments promise for fields that were left out.
void FillDefaults(v1::JobSpec* job) {
  const RuleTraits* rule = FindRule(job->update().rule());
  v1::TrainingSpec& training = *job->mutable_training();
  if (training.micro_batches() == 0) training.set_micro_batches(1);
  if (training.max_workers() == 0) {
    const uint64_t slots =
        IsSynchronous(*job) && !HasViews(*job) ? training.workers() : std::max<uint64_t>(2ull * training.workers(), 8);
    training.set_max_workers(std::min<uint64_t>(slots, std::numeric_limits<uint32_t>::max()));
  }
  if (training.statistics_interval_steps() == 0) training.set_statistics_interval_steps(10);
  if (training.statistics_weight() == 0) training.set_statistics_weight(0.1f);

  v1::UpdateSpec& update = *job->mutable_update();
  if (rule != nullptr && rule->delay_compensation != Setting::kUnused) {
    if (!update.has_dc_adaptive()) update.set_dc_adaptive(true);
    if (!update.has_dc_lambda()) update.set_dc_lambda(update.dc_adaptive() ? 2.0f : 0.04f);
    if (!update.has_dc_decay() && update.dc_adaptive()) update.set_dc_decay(0.95f);
  }
  if (rule != nullptr && rule->moments != Setting::kUnused) {
    if (!update.has_beta1()) update.set_beta1(0.9f);
    if (!update.has_beta2()) update.set_beta2(0.999f);
    if (!update.has_epsilon()) update.set_epsilon(1e-8f);
    if (!update.has_bias_correction()) update.set_bias_correction(false);
  }
  if (rule != nullptr && rule->lag != Setting::kUnused && update.lag().empty()) {
    update.set_lag("workers");
  }
  if (rule != nullptr && rule->elastic) {
    if (update.local_steps() == 0) update.set_local_steps(10);
    if (!update.has_elasticity() && training.workers() > 0) {
      update.set_elasticity(0.9f / static_cast<float>(training.workers()));
    }
  }

  v1::DataSpec& data = *job->mutable_data();
  if (data.format() == "idx") {
    if (!data.has_mean()) data.set_mean(0);
    if (!data.has_deviation()) data.set_deviation(1);
  }
  if (const uint32_t classes = CifarClasses(data.format()); classes != 0 && data.classes() == 0) {
    data.set_classes(classes);
  }
  if (data.format() == "packed") {
    if (data.image_side() == 0) data.set_image_side(224);
    if (data.least_area() == 0) data.set_least_area(0.08f);
  }
  if (data.format() == "tokens" && data.mask_fraction() == 0) data.set_mask_fraction(0.15f);
  if (v1::ModelSpec& model = *job->mutable_model(); ReadsText(model.name())) {
    if (!model.has_dropout()) model.set_dropout(0.1f);
    if (model.positions() == 0) model.set_positions(512);
  }
  if (job->schedule().decay().empty()) job->mutable_schedule()->set_decay("constant");

  v1::CompressionSpec& compression = *job->mutable_compression();
  if (rule != nullptr && rule->squeezes) {
    v1::ApmSqueezeSpec& squeeze = *job->mutable_apmsqueeze();
    if (squeeze.warmup_fraction() == 0 && squeeze.warmup_rounds() == 0 && !squeeze.automatic_freeze()) {
      squeeze.set_warmup_fraction(0.15f);
    }
    if (squeeze.error_limit() == 0) squeeze.set_error_limit(50);
    if (squeeze.form().empty()) squeeze.set_form("momentum");
    if (squeeze.variance_floor() == 0) squeeze.set_variance_floor(0.01f);
    if (squeeze.fold_rounds() == 0) squeeze.set_fold_rounds(1000);
    if (compression.push().empty()) compression.set_push("one_bit");
  }
  if (compression.push().empty()) compression.set_push("none");
  if (compression.reply().empty()) compression.set_reply("none");
  if (compression.block_elements() == 0) compression.set_block_elements(kMaxBlockElements);
  const auto has = [&](bool CodecTraits::*setting) {
    return HasCodecSetting(compression.push(), compression.reply(), setting);
  };
  if (compression.fraction() == 0 && has(&CodecTraits::fraction)) {
    compression.set_fraction(kDefaultCodecFraction);
  }
  if (compression.bits() == 0 && has(&CodecTraits::bits)) compression.set_bits(kDefaultCodecBits);

  v1::ServersSpec& servers = *job->mutable_servers();
  if (servers.segment_elements() == 0) servers.set_segment_elements(1 << 20);
  if (servers.inflight_bytes() == 0) servers.set_inflight_bytes(1ull << 30);

  v1::DurabilitySpec& durability = *job->mutable_durability();
  if (durability.journal().empty()) durability.set_journal("buffered");
  if (durability.checkpoint_seconds() == 0) durability.set_checkpoint_seconds(300);
  if (durability.keep_checkpoints() == 0) durability.set_keep_checkpoints(2);
  if (durability.on_failure().empty()) durability.set_on_failure("stop");
  if (durability.checkpoint_journal_bytes() == 0) durability.set_checkpoint_journal_bytes(4ull << 30);

  v1::EvaluationSpec& evaluation = *job->mutable_evaluation();
  if (evaluation.interval_epochs() == 0) evaluation.set_interval_epochs(1);
  if (evaluation.recalibration_batches() == 0) evaluation.set_recalibration_batches(20);

  v1::TimeoutsSpec& timeouts = *job->mutable_timeouts();
  if (timeouts.lease_seconds() == 0) timeouts.set_lease_seconds(15);
  if (timeouts.connect_seconds() == 0) timeouts.set_connect_seconds(60);
}

std::string SerializeDeterministic(const Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream sink(&bytes);
    google::protobuf::io::CodedOutputStream out(&sink);
    out.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&out);
  }
  return bytes;
}

}  // namespace

absl::StatusOr<v1::JobSpec> ParseJobSpec(const std::string& text, const std::string& origin,
                                         const std::vector<std::string>& overrides) {
  v1::JobSpec job;
  if (absl::Status status = ParseSpecText(text, origin, &job); !status.ok()) return status;
  for (const std::string& change : overrides) {
    if (absl::Status status = ApplyOverride(change, &job); !status.ok()) return status;
  }
  FillDefaults(&job);
  if (absl::Status status = ValidateJobSpec(job); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ":\n", status.message()));
  }
  return job;
}

absl::StatusOr<v1::JobSpec> LoadJobSpec(const std::string& path,
                                        const std::vector<std::string>& overrides) {
  absl::StatusOr<std::string> text = ReadSpecFile(path, "job", "deploy/jobs/soak.textproto");
  if (!text.ok()) return text.status();
  return ParseJobSpec(*text, path, overrides);
}

uint64_t JobFingerprint(const v1::JobSpec& job) {
  v1::JobSpec canonical = job;
  FillDefaults(&canonical);
  canonical.clear_timeouts();
  canonical.clear_evaluation();
  canonical.clear_durability();
  canonical.mutable_data()->clear_directory();
  canonical.mutable_data()->clear_decode_threads();
  // Its checksum is what counts.
  canonical.mutable_model()->clear_initial_weights();
  const std::string bytes = SerializeDeterministic(canonical);
  return Checksum(AsBytes(bytes));
}

std::string PrintJobSpec(const v1::JobSpec& job) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(job, &text);
  return text;
}

}  // namespace foreshard
