#include "server/run_description.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/core/bytes.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "common/net/protocol.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "server/checkpoint_files.h"
#include "server/journal_file.h"

namespace foreshard {
namespace {

constexpr char kPart[] = ".part";
constexpr absl::string_view kChecksumLine = "# xxh3: ";

std::string ChecksumLine(absl::string_view text) {
  const uint64_t checksum = Checksum(AsBytes(std::string_view(text.data(), text.size())));
  return absl::StrCat(kChecksumLine, absl::Hex(checksum, absl::kZeroPad16), "\n");
}

// Where the first line is a comment, it has to be the checksum.
absl::Status CheckChecksum(absl::string_view text) {
  if (!absl::StartsWith(text, "#")) return absl::OkStatus();
  const size_t end = text.find('\n');
  const absl::string_view rest = end == absl::string_view::npos ? "" : text.substr(end + 1);
  if (text.substr(0, text.size() - rest.size()) == ChecksumLine(rest)) return absl::OkStatus();
  return absl::DataLossError(
      "the checksum in its first line is not that of the rest (who has changed it on purpose takes that line away)");
}

}  // namespace

std::string RunDescriptionText(const v1::RunDescription& description) {
  const std::string text = PrintText(description);
  return ChecksumLine(text) + text;
}

absl::StatusOr<std::optional<v1::RunDescription>> ReadRunDescription(const Storage& storage) {
  const absl::StatusOr<std::string> text = storage.Read(kRunFile);
  if (absl::IsNotFound(text.status())) {
    const auto journal = ListJournalFiles(storage);
    if (!journal.ok()) return journal.status();
    const auto checkpoints = Checkpoint::List(storage);
    if (!checkpoints.ok()) return checkpoints.status();
    if (journal->empty() && checkpoints->empty()) return std::nullopt;
    return absl::DataLossError(absl::StrCat(
        storage.Describe(""), " has ", journal->size(), " journal files and ", checkpoints->size(),
        " checkpoints, but ", kRunFile, ", which says of which run, is missing; restore it, or give an empty folder"));
  }
  if (!text.ok()) return text.status();
  v1::RunDescription description;
  absl::Status parsed = CheckChecksum(*text);
  if (parsed.ok()) parsed = ParseText(*text, &description);
  if (parsed.ok() && description.format_version() == 0) {
    parsed = absl::InvalidArgumentError("it has no format_version");
  }
  if (!parsed.ok()) {
    return absl::DataLossError(absl::StrCat(storage.Describe(kRunFile), " is damaged: ", parsed.message(),
                                            "; restore it from a copy, or move the folder away and start anew"));
  }
  if (absl::Status known = CheckFormat(storage.Describe(kRunFile), description.format_version(), kRunFormats);
      !known.ok()) {
    return known;
  }
  return description;
}

v1::RunDescription DescribeRun(const v1::JobSpec& job, const Schema& schema, const ShardPlan& plan,
                               uint64_t train_examples, uint32_t shard) {
  v1::RunDescription description;
  description.set_format_version(kRunFormat);
  description.set_shard(shard);
  *description.mutable_job() = job;
  *description.mutable_contract() = MakeContract(job, schema, plan);
  *description.mutable_model() = ToProto(schema);
  description.set_train_examples(train_examples);
  return description;
}

std::string PrintText(const google::protobuf::Message& message) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

absl::Status ParseText(const std::string& text, google::protobuf::Message* message) {
  google::protobuf::TextFormat::Parser parser;
  struct First final : google::protobuf::io::ErrorCollector {
    std::string text;
    void AddError(int line, int column, const std::string& what) override {
      if (text.empty()) text = absl::StrCat("line ", line + 1, ", column ", column + 1, ": ", what);
    }
  } first;
  parser.RecordErrorsTo(&first);
  parser.AllowUnknownField(true);
  if (parser.ParseFromString(text, message)) return absl::OkStatus();
  return absl::InvalidArgumentError(first.text.empty() ? "it is no protobuf text" : first.text);
}

absl::Status WriteWholeFile(Storage* storage, const std::string& name, const std::string& content,
                            bool sync) {
  const std::string part = name + kPart;
  // Of a start that was killed.
  if (absl::Status removed = storage->Remove(part); !removed.ok() && !absl::IsNotFound(removed)) {
    return removed;
  }
  absl::StatusOr<std::unique_ptr<StorageFile>> file = storage->Create(part);
  if (!file.ok()) return file.status();
  absl::Status status = (*file)->Append({AsBytes(content)});
  if (status.ok() && sync) status = (*file)->Sync();
  if (status.ok()) status = storage->Rename(part, name);
  if (status.ok() && sync) status = storage->SyncFolder("");
  return status;
}

absl::Status WriteRunDescription(Storage* storage, const v1::RunDescription& description) {
  return WriteWholeFile(storage, kRunFile, RunDescriptionText(description), true);
}

absl::Status CheckRun(const v1::RunDescription& found, const v1::JobSpec& job, uint32_t shard,
                      const std::string& where) {
  const std::string remedy =
      "give each server its own --state-directory, or an empty one to begin anew; foreshard import --from-state makes "
      "directories for another job or number of servers of what is there";
  if (found.contract().job() != JobFingerprint(job)) {
    const std::string difference = JobDifference(job, PrintJobSpec(found.job()));
    return absl::FailedPreconditionError(absl::StrCat(
        where, " holds the state of another job, '", found.job().name(), "'",
        difference.empty() ? "" : absl::StrCat(": ", difference), "; ", remedy));
  }
  if (found.shard() != shard) {
    return absl::FailedPreconditionError(absl::StrCat(where, " holds the state of shard ", found.shard(),
                                                      ", and this server is shard ", shard, "; ", remedy));
  }
  return absl::OkStatus();
}

StateIdentity IdentityOf(const v1::RunDescription& description) {
  return {.protocol = kProtocolVersion,
          .shard = description.shard(),
          .shards = description.job().servers().shards(),
          .job = description.contract().job(),
          .schema = description.contract().schema(),
          .plan = description.contract().plan(),
          .run = description.common_run_id()};
}

}  // namespace foreshard
