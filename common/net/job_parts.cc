#include "common/net/job_parts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/core/catalogue.h"
#include "common/net/exchange_message.h"
#include "common/net/job_spec.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace foreshard {

bool IsSynchronous(const v1::JobSpec& job) {
  const RuleTraits* rule = FindRule(job.update().rule());
  return rule != nullptr &&
         (rule->synchronous || (rule->optional_rounds && job.update().synchronous()));
}

bool HasViews(const v1::JobSpec& job) {
  const RuleTraits* rule = FindRule(job.update().rule());
  return IsSynchronous(job) && !rule->elastic;
}

uint64_t BatchesPerEpoch(const v1::JobSpec& job, uint64_t train_examples) {
  const uint64_t batch = std::max<uint64_t>(job.training().batch_size(), 1);
  return std::max<uint64_t>(train_examples / batch + (train_examples % batch != 0), 1);
}

uint64_t ExamplesOfTicket(const v1::JobSpec& job, uint64_t train_examples, uint64_t ticket) {
  const uint64_t batch = job.training().batch_size();
  const uint64_t first = ticket % BatchesPerEpoch(job, train_examples) * batch;
  return std::min(batch, train_examples - first);
}

Schedule MakeSchedule(const v1::JobSpec& job, uint64_t batches_per_epoch) {
  const v1::ScheduleSpec& spec = job.schedule();
  Schedule schedule;
  schedule.learning_rate = spec.learning_rate();
  schedule.warmup_epochs = spec.warmup_epochs();
  schedule.workers = std::max<uint32_t>(job.training().workers(), 1);
  schedule.epochs = job.training().epochs();
  schedule.batches_per_epoch = std::max<uint64_t>(batches_per_epoch, 1);
  if (spec.decay() == "step") {
    schedule.decay = Decay::kStep;
    schedule.decay_epochs.assign(spec.decay_epochs().begin(), spec.decay_epochs().end());
    schedule.decay_factor = spec.decay_factor();
  } else if (spec.decay() == "cosine") {
    schedule.decay = Decay::kCosine;
    schedule.final_fraction = spec.final_fraction();
  }
  return schedule;
}

ShardPlanOptions MakePlanOptions(const v1::JobSpec& job) {
  ShardPlanOptions options;
  options.shards = job.servers().shards();
  options.segment_elements = job.servers().segment_elements();
  options.block_elements = job.compression().block_elements();
  const auto& patterns = job.compression().full_precision();
  options.full_precision.assign(patterns.begin(), patterns.end());
  options.full_precision_below = job.compression().full_precision_below();
  const auto& dead = job.apmsqueeze().dead();
  options.dead.assign(dead.begin(), dead.end());
  return options;
}

CodecSettings MakeCodecSettings(const v1::JobSpec& job) {
  CodecSettings settings;
  if (job.compression().fraction() != 0) settings.fraction = job.compression().fraction();
  if (job.compression().bits() != 0) settings.bits = job.compression().bits();
  return settings;
}

v1::ModelSchema ToProto(const Schema& schema) {
  v1::ModelSchema proto;
  for (const TensorSpec& tensor : schema.tensors()) {
    v1::TensorInfo& info = *proto.add_tensors();
    info.set_name(tensor.name);
    info.mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    info.set_statistic(tensor.kind == TensorKind::kStatistic);
    info.set_decayed(tensor.decayed);
  }
  return proto;
}

absl::StatusOr<Schema> FromProto(const v1::ModelSchema& schema) {
  std::vector<TensorSpec> tensors;
  tensors.reserve(schema.tensors_size());
  for (const v1::TensorInfo& info : schema.tensors()) {
    TensorSpec tensor;
    tensor.name = info.name();
    tensor.shape.assign(info.shape().begin(), info.shape().end());
    tensor.kind = info.statistic() ? TensorKind::kStatistic : TensorKind::kTrainable;
    tensor.decayed = info.decayed();
    tensors.push_back(std::move(tensor));
  }
  return Schema::Create(std::move(tensors));
}

v1::Contract MakeContract(const v1::JobSpec& job, const Schema& schema, const ShardPlan& plan,
                          const ProtocolRange& speaks) {
  v1::Contract contract;
  contract.set_protocol(speaks.newest);
  contract.set_oldest_protocol(speaks.oldest);
  contract.set_job(JobFingerprint(job));
  contract.set_schema(schema.fingerprint());
  contract.set_plan(plan.fingerprint());
  return contract;
}

namespace {

// Fields that are equal on both sides, or may differ, say nothing. Depth first.
void CompareFields(const google::protobuf::Message& ours, const google::protobuf::Message& theirs,
                   const std::string& path, std::vector<std::string>* differences) {
  const auto* reflection = ours.GetReflection();
  for (int i = 0; i < ours.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = ours.GetDescriptor()->field(i);
    const std::string name = path.empty() ? field->name() : absl::StrCat(path, ".", field->name());
    if (name == "timeouts" || name == "evaluation" || name == "durability" || name == "data.directory") continue;
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      CompareFields(reflection->GetMessage(ours, field), reflection->GetMessage(theirs, field), name,
                    differences);
      continue;
    }
    const auto print = [&](const google::protobuf::Message& message) {
      std::vector<std::string> values;
      const int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
      for (int k = 0; k < count; ++k) {
        values.emplace_back();
        google::protobuf::TextFormat::PrintFieldValueToString(
            message, field, field->is_repeated() ? k : -1, &values.back());
      }
      if (!field->is_repeated() && field->has_presence() && !reflection->HasField(message, field)) {
        return std::string("not set");
      }
      return values.empty() ? std::string("empty") : absl::StrJoin(values, ",");
    };
    const std::string here = print(ours), there = print(theirs);
    if (here != there) differences->push_back(absl::StrCat(name, ": ", here, " here, ", there, " there"));
  }
}

}  // namespace

std::string JobDifference(const v1::JobSpec& ours, const std::string& theirs) {
  constexpr size_t kMaxTextBytes = 64 << 10;
  constexpr size_t kMaxNamed = 3;
  v1::JobSpec other;
  google::protobuf::TextFormat::Parser parser;
  struct Silent final : google::protobuf::io::ErrorCollector {
    void AddError(int, int, const std::string&) override {}
  } silent;  // the default one writes to the log
  parser.RecordErrorsTo(&silent);
  if (theirs.empty() || theirs.size() > kMaxTextBytes || !parser.ParseFromString(theirs, &other)) {
    return "";
  }
  std::vector<std::string> differences;
  CompareFields(ours, other, "", &differences);
  const size_t named = std::min(differences.size(), kMaxNamed);
  std::string text = absl::StrJoin(differences.begin(), differences.begin() + named, "; ");
  if (named < differences.size()) {
    absl::StrAppend(&text, "; and ", differences.size() - named, " more");
  }
  return text;
}

namespace {

uint32_t OldestOf(const v1::Contract& contract) {
  return contract.oldest_protocol() == 0 ? contract.protocol()
                                         : std::min(contract.oldest_protocol(), contract.protocol());
}

}  // namespace

std::string PrintProtocols(const v1::Contract& contract) {
  return OldestOf(contract) == contract.protocol()
             ? absl::StrCat(contract.protocol())
             : absl::StrCat(OldestOf(contract), " to ", contract.protocol());
}

uint32_t CommonProtocol(const v1::Contract& ours, const v1::Contract& theirs) {
  const uint32_t newest = std::min(ours.protocol(), theirs.protocol());
  return newest >= std::max(OldestOf(ours), OldestOf(theirs)) ? newest : 0;
}

absl::StatusOr<uint32_t> AgreedProtocol(const v1::Contract& ours, uint32_t said, const std::string& server) {
  if (said == 0) return ours.protocol();
  v1::Contract theirs;
  theirs.set_protocol(said);
  if (CommonProtocol(ours, theirs) == said) return said;
  return absl::FailedPreconditionError(absl::StrCat(
      "another protocol version: this worker speaks ", PrintProtocols(ours), ", and ", server, " wants to speak ",
      said, said > ours.protocol() ? "; upgrade this worker, which is the older"
                                   : "; upgrade the server, which is the older"));
}

absl::Status CheckContract(const v1::Contract& ours, const v1::Contract& theirs) {
  const auto differs = [](const char* what, uint64_t our_value, uint64_t their_value,
                          const char* remedy) {
    return absl::FailedPreconditionError(
        absl::StrCat("another ", what, ": this server has ", absl::Hex(our_value),
                     ", the caller ", absl::Hex(their_value), "; ", remedy));
  };
  if (CommonProtocol(ours, theirs) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "another protocol version: this server speaks ", PrintProtocols(ours), ", the caller ",
        PrintProtocols(theirs),
        OldestOf(theirs) > ours.protocol()
            ? "; upgrade this server, which is the older: servers are upgraded before workers"
            : "; upgrade the caller, which is the older"));
  }
  if (theirs.job() != ours.job()) {
    return differs("job", ours.job(), theirs.job(),
                   "start every program with the same job file and the same --set overrides");
  }
  if (theirs.schema() != ours.schema()) {
    return differs("model schema", ours.schema(), theirs.schema(),
                   "use the same model and data everywhere");
  }
  if (theirs.plan() != ours.plan()) {
    return differs("shard plan", ours.plan(), theirs.plan(),
                   "use the same servers and compression.block_elements settings everywhere");
  }
  return absl::OkStatus();
}

}  // namespace foreshard
