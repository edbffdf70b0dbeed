// Checkpoints found, checked and read.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/checkpoint_files.h"
#include "server/checkpoint_format.h"
#include "server/event.h"

namespace foreshard {
namespace {

constexpr uint64_t kReadBytes = 4 << 20;

// Whether another checkpoint may be taken instead: this one is broken, not another's.
bool Broken(const absl::Status& status) { return absl::IsDataLoss(status) || absl::IsNotFound(status); }

}  // namespace

absl::StatusOr<std::vector<std::string>> Checkpoint::List(const Storage& storage) {
  const auto folders = internal::ListCheckpointFolders(storage);
  if (!folders.ok()) return folders.status();
  std::vector<std::string> names;
  for (const internal::CheckpointFolder& folder : *folders) {
    if (folder.suffix.empty()) names.push_back(folder.name);
  }
  return names;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::OpenNewest(const Storage& storage,
                                                                   const StateIdentity& identity,
                                                                   std::vector<PassedOver>* passed_over) {
  const auto folders = internal::ListCheckpointFolders(storage);
  if (!folders.ok()) return folders.status();
  bool any = false;
  std::string why;
  for (auto folder = folders->rbegin(); folder != folders->rend(); ++folder) {
    absl::Status unfit;
    if (folder->suffix.empty()) {
      any = true;
      auto checkpoint = Open(storage, folder->name, identity);
      if (checkpoint.ok() || !Broken(checkpoint.status())) return checkpoint;
      unfit = checkpoint.status();
      absl::StrAppend(&why, why.empty() ? "" : "; ", unfit.message());
    } else {
      unfit = absl::NotFoundError(absl::StrCat(
          storage.Describe(folder->name),
          folder->suffix == internal::kPartSuffix ? " was never finished" : " was being removed"));
    }
    if (passed_over != nullptr) passed_over->push_back({folder->name, unfit});
  }
  if (!any) return absl::NotFoundError(absl::StrCat("there is no checkpoint in ", storage.Describe("")));
  return absl::DataLossError(
      absl::StrCat("no checkpoint in ", storage.Describe(""), " can be used: ", why,
                   "; bring one back from elsewhere, or start anew in an empty folder"));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const Storage& storage,
                                                             const std::string& name,
                                                             const StateIdentity& identity) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint(storage, name));
  if (absl::Status whole = checkpoint->Check(identity); !whole.ok()) return whole;
  return checkpoint;
}

absl::Status Checkpoint::Check(const StateIdentity& identity) {
  const std::string path = PathOf(internal::kManifestName);
  // Not before it is known to be no longer than a manifest may be.
  const auto bytes = storage_.Size(path);
  if (!bytes.ok()) return bytes.status();
  const auto text = storage_.ReadAt(path, 0, std::min(*bytes, kMaxManifestBytes + 1));
  if (!text.ok()) return text.status();
  auto manifest = ParseManifest(*text);
  if (!manifest.ok()) {
    return absl::Status(manifest.status().code(),
                        absl::StrCat(storage_.Describe(path), ": ", manifest.status().message()));
  }
  manifest_ = *std::move(manifest);
  if (absl::Status same = CheckIdentity(storage_.Describe(name_), identity, manifest_.about.identity);
      !same.ok()) {
    return same;
  }
  std::set<std::string> names;
  for (const CheckpointManifest::File& file : manifest_.files) {
    if (absl::Status whole = CheckFile(file); !whole.ok()) return whole;
    names.insert(file.name);
  }
  for (const std::string& needed :
       {std::string(internal::kStateName), ParametersFileName(identity.shard, identity.shards)}) {
    if (names.count(needed) > 0) continue;
    return absl::DataLossError(
        absl::StrCat(storage_.Describe(path), ": the file ", needed, " is not listed"));
  }
  return FindStates();
}

absl::Status Checkpoint::CheckFile(const CheckpointManifest::File& file) const {
  const auto damaged = [&](const auto&... what) {
    return absl::DataLossError(absl::StrCat(storage_.Describe(PathOf(file.name)), ": ", what...));
  };
  // A name that leads elsewhere is none of ours.
  if (file.name.find('/') != std::string::npos || !CheckStoragePath(PathOf(file.name)).ok()) {
    return damaged("no name of a file");
  }
  const auto bytes = storage_.Size(PathOf(file.name));
  if (!bytes.ok()) return bytes.status();
  if (*bytes != file.bytes) return damaged("it has ", *bytes, " bytes, and the manifest says ", file.bytes);
  RunningChecksum checksum;
  for (uint64_t at = 0; at < file.bytes; at += kReadBytes) {
    const auto piece = storage_.ReadAt(PathOf(file.name), at, std::min(kReadBytes, file.bytes - at));
    if (!piece.ok()) return piece.status();
    checksum.Add(AsBytes(*piece));
  }
  if (checksum.value() != file.checksum) {
    return damaged("its checksum is not the manifest's: it was changed");
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::FindStates() {
  const std::string path = PathOf(internal::kStateName);
  const auto damaged = [&](uint64_t offset, const auto&... what) {
    return absl::DataLossError(absl::StrCat(storage_.Describe(path), ", offset ", offset, ": ", what...));
  };
  const auto size = storage_.Size(path);
  if (!size.ok()) return size.status();
  const auto header = storage_.ReadAt(path, 0, internal::kStateHeaderBytes);
  if (!header.ok()) return header.status();
  const std::string magic = internal::kStateMagic;
  if (header->size() < internal::kStateHeaderBytes || header->compare(0, magic.size(), magic) != 0) {
    return damaged(0, "no file of states");
  }
  ByteReader format(std::string_view(*header).substr(magic.size()));
  if (const auto version = format.Get<uint32_t>(); version > kCheckpointFormat) {
    return absl::FailedPreconditionError(absl::StrCat(storage_.Describe(path), " has format ", version,
                                                      ", and this program reads up to ", kCheckpointFormat,
                                                      "; use the version that wrote it, or a newer one"));
  }
  uint64_t at = internal::kStateHeaderBytes;
  std::set<uint32_t> seen;
  for (const CheckpointManifest::State& state : manifest_.states) {
    const auto head = storage_.ReadAt(path, at, internal::kStateHeadBytes);
    if (!head.ok()) return head.status();
    ByteReader reader(*head);
    const auto length = reader.Get<uint64_t>();
    const auto segment = reader.Get<uint32_t>();
    reader.Get<uint32_t>();
    const auto number = reader.Get<uint64_t>();
    constexpr uint64_t kLeast = internal::kStateHeadBytes - 8 + internal::kStateTailBytes;
    if (!reader.ok() || length < kLeast || length > *size - at - 8) {
      return damaged(at, "no record of a state");
    }
    if (segment != state.segment || number != state.number || !seen.insert(segment).second) {
      return damaged(at, "the state of segment ", segment, " at event ", number,
                     ", and the manifest says segment ", state.segment, " at event ", state.number,
                     ", each once");
    }
    places_.push_back({.offset = at, .bytes = 8 + length});
    at += 8 + length;
  }
  if (at != *size) return damaged(at, *size - at, " bytes that the manifest does not know");
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint::Saved> Checkpoint::ReadState(uint32_t segment) const {
  const std::string path = PathOf(internal::kStateName);
  for (size_t k = 0; k < places_.size(); ++k) {
    if (manifest_.states[k].segment != segment) continue;
    auto record = storage_.ReadAt(path, places_[k].offset, places_[k].bytes);
    if (!record.ok()) return record.status();
    if (record->size() != places_[k].bytes || !Unsealed(std::string_view(*record).substr(8)).ok()) {
      return absl::DataLossError(absl::StrCat(storage_.Describe(path), ", offset ", places_[k].offset,
                                              ": the record of the state was damaged meanwhile"));
    }
    Saved saved = {.number = manifest_.states[k].number};
    record->resize(record->size() - internal::kStateTailBytes);
    record->erase(0, internal::kStateHeadBytes);
    saved.state = *std::move(record);
    return saved;
  }
  return absl::NotFoundError(
      absl::StrCat(storage_.Describe(name_), " has no state of ",
                   segment == kDealerSegment ? "the dealer" : absl::StrCat("segment ", segment)));
}

absl::StatusOr<SafetensorsReader> Checkpoint::OpenParameters() const {
  const StateIdentity& identity = manifest_.about.identity;
  const std::string path = PathOf(ParametersFileName(identity.shard, identity.shards));
  const auto bytes = storage_.Size(path);
  if (!bytes.ok()) return bytes.status();
  return SafetensorsReader::Open(
      [this, path](uint64_t offset, uint64_t count) { return storage_.ReadAt(path, offset, count); },
      *bytes, storage_.Describe(path));
}

}  // namespace foreshard
