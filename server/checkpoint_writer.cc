// Checkpoints written, and the names of what is in them.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/core/checksum.h"
#include "server/checkpoint_files.h"
#include "server/checkpoint_format.h"
#include "server/event.h"

namespace foreshard {
namespace internal {
namespace {
constexpr char kPrefix[] = "checkpoint.";
}  // namespace

std::string CheckpointName(uint64_t index) { return absl::StrFormat("%s%010d", kPrefix, index); }

absl::StatusOr<std::vector<CheckpointFolder>> ListCheckpointFolders(const Storage& storage) {
  const auto entries = storage.List("");
  if (!entries.ok()) return entries.status();
  std::vector<CheckpointFolder> folders;
  for (const StorageEntry& entry : *entries) {
    absl::string_view rest = entry.name;
    CheckpointFolder folder = {.name = entry.name};
    if (!absl::ConsumePrefix(&rest, kPrefix)) continue;
    for (const char* suffix : {kPartSuffix, kOldSuffix}) {
      if (absl::ConsumeSuffix(&rest, suffix)) folder.suffix = suffix;
    }
    if (!absl::SimpleAtoi(rest, &folder.index) ||
        absl::StrCat(CheckpointName(folder.index), folder.suffix) != entry.name) {
      continue;
    }
    if (!entry.folder) {
      return absl::FailedPreconditionError(absl::StrCat(storage.Describe(entry.name), " is no folder, and by its name a "
                                                        "checkpoint; move it away, and put the folder back from a copy"));
    }
    folders.push_back(std::move(folder));
  }
  std::stable_sort(folders.begin(), folders.end(),
                   [](const CheckpointFolder& a, const CheckpointFolder& b) { return a.index < b.index; });
  return folders;
}

}  // namespace internal

using internal::CheckpointFolder;
using internal::CheckpointName;

std::string ParametersFileName(uint32_t shard, uint32_t shards) {
  return absl::StrFormat("parameters-%05d-of-%05d.safetensors", shard + 1, shards);
}

std::vector<SafetensorsTensor> ShardTensors(const Schema& schema, const ShardPlan& plan, uint32_t shard) {
  uint64_t begin = 0, end = 0;
  bool any = false;
  for (const SegmentPlan& segment : plan.segments()) {
    if (segment.shard != shard) continue;
    // A shard is one run: its statistics, which the last one has, follow its trainable part.
    if (!any) begin = segment.begin;
    any = true;
    end = segment.begin + segment.elements;
  }
  std::vector<SafetensorsTensor> tensors;
  for (size_t t = 0; t < schema.tensors().size(); ++t) {
    const TensorSpec& spec = schema.tensors()[t];
    const uint64_t first = schema.offset(t), elements = spec.elements();
    const uint64_t from = std::max(first, begin), to = std::min(first + elements, end);
    const bool empty_here = elements == 0 && ((first >= begin && first < end) ||
                                              (first == schema.elements() && shard + 1 == plan.shards()));
    if (from >= to && !empty_here) continue;
    SafetensorsTensor tensor = {.name = spec.name};
    if (empty_here || to - from == elements) {
      tensor.shape.assign(spec.shape.begin(), spec.shape.end());
    } else {
      tensor.name = absl::StrCat(spec.name, "[", from - first, ":", to - first, "]");
      tensor.shape = {to - from};
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::Status CheckpointWriter::File::Append(absl::Span<const ByteSpan> pieces) {
  for (const ByteSpan piece : pieces) checksum.Add(piece);
  return file->Append(pieces);
}

absl::Status CheckpointWriter::Keep(absl::Status status) {
  if (status_.ok()) status_ = status;
  return status_;
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Begin(Storage* storage,
                                                                          CheckpointAbout about,
                                                                          const Schema& schema,
                                                                          const ShardPlan& plan,
                                                                          uint64_t state_bytes) {
  const uint32_t shard = about.identity.shard;
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(storage, shard));
  writer->manifest_.about = std::move(about);
  if (absl::Status prepared = writer->Prepare(schema, plan, state_bytes); !prepared.ok()) return prepared;
  return writer;
}

absl::Status CheckpointWriter::Prepare(const Schema& schema, const ShardPlan& plan, uint64_t state_bytes) {
  uint64_t elements = 0;
  for (const SegmentPlan& segment : plan.segments()) {
    if (segment.shard != shard_) continue;
    segments_.push_back(
        {.id = segment.id, .shard = segment.shard, .begin = segment.begin, .elements = segment.elements});
    elements += segment.elements;
  }
  const auto folders = internal::ListCheckpointFolders(*storage_);
  if (!folders.ok()) return folders.status();
  for (const CheckpointFolder& folder : *folders) {
    manifest_.index = std::max(manifest_.index, folder.index);
    if (folder.suffix.empty()) continue;
    if (absl::Status removed = storage_->RemoveFolderWithFiles(folder.name); !removed.ok()) return removed;
  }
  ++manifest_.index;
  const absl::StatusOr<uint64_t> free = storage_->FreeBytes();
  if (!free.ok()) return free.status();
  const uint64_t needed = elements * sizeof(float) + state_bytes;
  if (*free < needed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a checkpoint takes about ", needed >> 20, " MiB, and ", *free >> 20, " MiB are free for ",
        storage_->Describe(""), "; free space there, or keep fewer checkpoints"));
  }
  folder_ = absl::StrCat(CheckpointName(manifest_.index), internal::kPartSuffix);
  if (absl::Status made = storage_->MakeFolder(folder_); !made.ok()) return made;
  there_ = true;
  const StateIdentity& identity = manifest_.about.identity;
  if (absl::Status created = Create(ParametersFileName(shard_, identity.shards), &parameters_);
      !created.ok())
    return created;
  auto tensors = SafetensorsWriter::Create(
      ShardTensors(schema, plan, shard_),
      {{"format", "pt"},
       {"foreshard.layout", "canonical: row-major, dense weights output x input, convolution filters OHWI"},
       {"foreshard.shard", absl::StrCat(shard_, " of ", identity.shards)},
       {"foreshard.step", absl::StrCat(manifest_.about.step)}},
      [this](ByteSpan bytes) { return parameters_.Append(absl::MakeConstSpan(&bytes, 1)); });
  if (!tensors.ok()) return tensors.status();
  tensors_.push_back(*std::move(tensors));
  if (absl::Status created = Create(internal::kStateName, &states_); !created.ok()) return created;
  ByteWriter header;
  header.Put<uint32_t>(kCheckpointFormat);
  header.Put<uint32_t>(0);
  const std::string bytes = absl::StrCat(internal::kStateMagic, header.data());
  const ByteSpan piece = AsBytes(bytes);
  return states_.Append(absl::MakeConstSpan(&piece, 1));
}

CheckpointWriter::~CheckpointWriter() {
  // What stays behind is removed by the next one.
  if (there_) storage_->RemoveFolderWithFiles(folder_).IgnoreError();
}

absl::Status CheckpointWriter::Create(const std::string& name, File* file) {
  auto created = storage_->Create(absl::StrCat(folder_, "/", name));
  if (!created.ok()) return created.status();
  file->file = *std::move(created);
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Finish(const std::string& name, File* file) {
  manifest_.files.push_back(
      {.name = name, .bytes = file->file->bytes(), .checksum = file->checksum.value()});
  return file->file->Sync();
}

absl::Status CheckpointWriter::AddState(uint32_t segment, uint64_t number, absl::string_view state) {
  ByteWriter head;
  head.Put<uint64_t>(internal::kStateHeadBytes - 8 + state.size() + internal::kStateTailBytes);
  head.Put(segment);
  head.Put<uint32_t>(0);
  head.Put(number);
  const ByteSpan front = AsBytes(head.data());
  const ByteSpan body(reinterpret_cast<const uint8_t*>(state.data()), state.size());
  const ChecksumPiece summed[] = {{front.data() + 8, front.size() - 8}, {body.data(), body.size()}};
  const uint64_t checksum = ChecksumPieces(summed, 2);
  const ByteSpan pieces[] = {front, body,
                             ByteSpan(reinterpret_cast<const uint8_t*>(&checksum), sizeof checksum)};
  if (absl::Status appended = states_.Append(pieces); !appended.ok()) return appended;
  manifest_.states.push_back({.segment = segment, .number = number});
  return absl::OkStatus();
}

absl::Status CheckpointWriter::AddSegment(uint32_t id, uint64_t number, absl::Span<const float> theta,
                                          absl::string_view state) {
  if (!status_.ok()) return status_;
  if (next_segment_ == segments_.size() || segments_[next_segment_].id != id ||
      segments_[next_segment_].elements != theta.size()) {
    return Keep(absl::InvalidArgumentError(absl::StrCat(
        "checkpoint: segment ", id, " with ", theta.size(), " elements, where ",
        next_segment_ == segments_.size() ? "no more belong"
                                          : absl::StrCat("segment ", segments_[next_segment_].id, " with ",
                                                         segments_[next_segment_].elements, " belongs"))));
  }
  ++next_segment_;
  const ByteSpan values(reinterpret_cast<const uint8_t*>(theta.data()), theta.size() * sizeof(float));
  if (absl::Status appended = tensors_.front().Append(values); !appended.ok()) return Keep(appended);
  return Keep(AddState(id, number, state));
}

absl::Status CheckpointWriter::AddDealer(uint64_t number, absl::string_view state) {
  if (!status_.ok()) return status_;
  for (const CheckpointManifest::State& each : manifest_.states) {
    if (each.segment != kDealerSegment) continue;
    return Keep(absl::InvalidArgumentError("checkpoint: the dealer's state was added already"));
  }
  return Keep(AddState(kDealerSegment, number, state));
}

absl::Status CheckpointWriter::ReadBack() const {
  const std::string path = absl::StrCat(folder_, "/", internal::kManifestName);
  const absl::StatusOr<std::string> text = storage_->Read(path);
  if (!text.ok()) return text.status();
  const absl::StatusOr<CheckpointManifest> read = ParseManifest(*text);
  if (read.ok() && *read == manifest_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(storage_->Describe(path), " does not read back as it was written: ",
                                          read.ok() ? "it says something else" : read.status().message()));
}

absl::Status CheckpointWriter::WriteAll() {
  if (next_segment_ != segments_.size()) {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint: ", next_segment_, " of ",
                                                      segments_.size(),
                                                      " segments were added; all belong into it"));
  }
  if (absl::Status whole = tensors_.front().Finish(); !whole.ok()) return whole;
  const StateIdentity& identity = manifest_.about.identity;
  if (absl::Status status = Finish(ParametersFileName(shard_, identity.shards), &parameters_); !status.ok()) {
    return status;
  }
  if (absl::Status status = Finish(internal::kStateName, &states_); !status.ok()) return status;
  const auto text = EncodeManifest(manifest_);
  if (!text.ok()) return text.status();
  File file;
  if (absl::Status status = Create(internal::kManifestName, &file); !status.ok()) return status;
  if (absl::Status status = file.file->Append({AsBytes(*text)}); !status.ok()) return status;
  if (absl::Status status = file.file->Sync(); !status.ok()) return status;
  if (absl::Status status = ReadBack(); !status.ok()) return status;
  if (absl::Status status = storage_->SyncFolder(folder_); !status.ok()) return status;
  if (absl::Status status = storage_->Rename(folder_, CheckpointName(manifest_.index)); !status.ok()) {
    return status;
  }
  // From here on it is a whole checkpoint, whether or not its name is safe already.
  there_ = false;
  return storage_->SyncFolder("");
}

void CheckpointWriter::RemoveOlder(uint32_t keep, Committed* committed) {
  auto folders = internal::ListCheckpointFolders(*storage_);
  if (!folders.ok()) {
    committed->removal = folders.status();
    return;
  }
  folders->erase(std::remove_if(folders->begin(), folders->end(),
                                [](const CheckpointFolder& folder) { return !folder.suffix.empty(); }),
                 folders->end());
  const size_t kept = std::min<size_t>(std::max<uint32_t>(keep, 1), folders->size());
  const auto first_kept = folders->end() - static_cast<ptrdiff_t>(kept);
  bool all_known = true;
  for (auto folder = first_kept; folder != folders->end(); ++folder) {
    const auto text = storage_->Read(absl::StrCat(folder->name, "/", internal::kManifestName));
    // What it needs cannot be told now, and may be wanted when it can be read again.
    if (!text.ok() && !absl::IsNotFound(text.status())) {
      all_known = false;
      committed->removal = text.status();
      continue;
    }
    const auto manifest = text.ok() ? ParseManifest(*text) : text.status();
    if (!manifest.ok()) continue;
    if (manifest->about.journal_file == 0) {
      committed->journal_number = std::min(committed->journal_number, manifest->next_number());
      continue;
    }
    const uint64_t file = manifest->about.journal_file;
    committed->journal_file = committed->journal_file == 0 ? file : std::min(committed->journal_file, file);
  }
  if (!all_known) committed->journal_file = 0;
  for (auto folder = folders->begin(); folder != first_kept; ++folder) {
    // Under another name first, so that none lacks a part under its own.
    const std::string old = absl::StrCat(folder->name, internal::kOldSuffix);
    absl::Status removed = storage_->Rename(folder->name, old);
    if (removed.ok()) removed = storage_->RemoveFolderWithFiles(old);
    if (!removed.ok() && committed->removal.ok()) committed->removal = removed;
  }
}

absl::StatusOr<CheckpointWriter::Committed> CheckpointWriter::Commit(uint32_t keep) {
  if (status_.ok()) Keep(WriteAll()).IgnoreError();
  if (!status_.ok()) return status_;
  Committed committed = {.name = CheckpointName(manifest_.index)};
  RemoveOlder(keep, &committed);
  status_ = absl::FailedPreconditionError("checkpoint: it was committed already");
  return committed;
}

}  // namespace foreshard
