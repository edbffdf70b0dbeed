// Checkpoints of a server as folders of files, written beside each other; server/README.md
// has every byte.
//
//   checkpoint.0000000012/                    newer ones have higher numbers
//     manifest.json                           server/checkpoint_manifest.h
//     parameters-00001-of-00002.safetensors   of the first of two shards
//     state.bin                               each segment's Segment::Save, the lead's Dealer::Save
//   checkpoint.0000000013.part/               one that is being written, or never was finished
//   checkpoint.0000000010.old/                one that is being removed
//
//   auto writer = CheckpointWriter::Begin(storage, about, schema, plan).value();
//   for (each segment of the shard, in order) {
//     under its mutex: theta, state = segment->Save(), number = the journal's last number
//     RETURN_IF_ERROR(writer->AddSegment(id, number, theta, state));
//   }
//   RETURN_IF_ERROR(writer->AddDealer(number, dealer.Save()));     // the lead
//   auto committed = writer->Commit(2);                            // safe, and the older ones gone
//
//   auto checkpoint = Checkpoint::OpenNewest(*storage, identity, &passed_over).value();
//   auto saved = checkpoint->ReadState(segment_id).value();
//   RETURN_IF_ERROR(segment->Load(saved.state));
//
// A folder gets its name when all in it is safe, and not before; a reader looks at nothing
// else, and believes a folder only where every byte is as the manifest says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/core/running_checksum.h"
#include "common/core/safetensors.h"
#include "common/core/schema.h"
#include "common/core/shard_plan.h"
#include "common/storage/storage.h"
#include "server/checkpoint_manifest.h"

namespace foreshard {

// What a shard's safetensors file holds: its part of the flat vector, in order. A tensor that
// lies in it whole has its own name and shape, across segments too. Of one that lies partly in another shard it is
// "NAME[A:B]", elements A to B - 1 of the flattened tensor, with the shape [B - A]. A tensor
// without elements is in the shard that has the element behind it, or the last.
std::vector<SafetensorsTensor> ShardTensors(const Schema& schema, const ShardPlan& plan, uint32_t shard);

// "parameters-00001-of-00002.safetensors" of shard 0 of 2.
std::string ParametersFileName(uint32_t shard, uint32_t shards);

// Thread-compatible. Once a call has failed, every later one fails with the same error; what was
// written is removed, and older checkpoints stay.
class CheckpointWriter {
 public:
  // Removes what earlier ones have left half done. Refuses, with the figures, where the
  // parameters and `state_bytes`, the states' (0: unknown), do not fit on the disk:
  // RESOURCE_EXHAUSTED. Storage, schema and plan outlive this.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Begin(Storage* storage, CheckpointAbout about,
                                                                 const Schema& schema,
                                                                 const ShardPlan& plan,
                                                                 uint64_t state_bytes = 0);
  ~CheckpointWriter();

  // The shard's segments, each once, in the order of their ids. `theta` as long as the
  // segment; `number`: every event of this segment up to it is in the state, no later one.
  // INVALID_ARGUMENT: another segment is next, or another length.
  absl::Status AddSegment(uint32_t id, uint64_t number, absl::Span<const float> theta,
                          absl::string_view state);
  // Of the lead: once, at any time.
  absl::Status AddDealer(uint64_t number, absl::string_view state);

  struct Committed {
    std::string name;
    // The first file of the journal that some checkpoint needs which is kept: Journal::RemoveBefore.
    // 0: none needs any, or one of them cannot be read now (removal says why): remove nothing.
    uint64_t journal_file = 0;
    // Events from this number on are behind a checkpoint that is kept and stands alone: a later start
    // has written them. ~0: there is none.
    uint64_t journal_number = ~uint64_t{0};
    // What kept older ones from being removed, or from being read; the checkpoint stands all the same.
    absl::Status removal;
  };
  // Makes it safe, gives it its name, removes all but the newest `keep` (at least 1).
  // FAILED_PRECONDITION: segments are missing. INVALID_ARGUMENT: a manifest that nobody would read again.
  // DATA_LOSS: the disk gives another manifest back than was written.
  absl::StatusOr<Committed> Commit(uint32_t keep);

  const CheckpointManifest& manifest() const { return manifest_; }

 private:
  // A file with the checksum of all that went into it.
  struct File {
    std::unique_ptr<StorageFile> file;
    RunningChecksum checksum;
    absl::Status Append(absl::Span<const ByteSpan> pieces);
  };

  CheckpointWriter(Storage* storage, uint32_t shard) : storage_(storage), shard_(shard) {}
  absl::Status Prepare(const Schema& schema, const ShardPlan& plan, uint64_t state_bytes);
  absl::Status Create(const std::string& name, File* file);
  absl::Status Finish(const std::string& name, File* file);
  absl::Status AddState(uint32_t segment, uint64_t number, absl::string_view state);
  absl::Status WriteAll();
  // Of the manifest, before older checkpoints are removed for it.
  absl::Status ReadBack() const;
  void RemoveOlder(uint32_t keep, Committed* committed);
  absl::Status Keep(absl::Status status);

  Storage* const storage_;
  const uint32_t shard_;
  CheckpointManifest manifest_;
  std::vector<SegmentPlan> segments_;  // without blocks
  size_t next_segment_ = 0;
  std::string folder_;  // while it is being written
  bool there_ = false;  // the folder is, under this name
  File parameters_, states_;
  std::vector<SafetensorsWriter> tensors_;  // one, over parameters_
  absl::Status status_;
};

// Why a checkpoint was not taken.
struct PassedOver {
  std::string name;
  absl::Status why;
};

// One that was found whole. Thread-compatible; changes nothing.
class Checkpoint {
 public:
  // The newest that is whole, every file's length and checksum compared (which reads them);
  // `passed_over` (may be null) hears of those before it. NOT_FOUND: there is none, nor was one.
  // DATA_LOSS: none that can be used, and why each. FAILED_PRECONDITION: the newest is another
  // job's, shard's, schema's or plan's, or has a format that this
  // program does not read. The storage outlives this.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenNewest(
      const Storage& storage, const StateIdentity& identity,
      std::vector<PassedOver>* passed_over = nullptr);
  // This one. Errors as above.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const Storage& storage, const std::string& name,
                                                          const StateIdentity& identity);
  // Oldest first; without those that were never finished.
  static absl::StatusOr<std::vector<std::string>> List(const Storage& storage);

  const std::string& name() const { return name_; }
  const CheckpointManifest& manifest() const { return manifest_; }

  struct Saved {
    uint64_t number = 0;
    std::string state;
  };
  // kDealerSegment: the dealer's. NOT_FOUND: it has none. DATA_LOSS: it was damaged meanwhile.
  absl::StatusOr<Saved> ReadState(uint32_t segment) const;
  absl::StatusOr<SafetensorsReader> OpenParameters() const;

 private:
  Checkpoint(const Storage& storage, std::string name) : storage_(storage), name_(std::move(name)) {}
  std::string PathOf(const std::string& file) const { return name_ + "/" + file; }
  absl::Status Check(const StateIdentity& identity);
  absl::Status CheckFile(const CheckpointManifest::File& file) const;
  absl::Status FindStates();

  const Storage& storage_;
  const std::string name_;
  CheckpointManifest manifest_;
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  std::vector<Place> places_;  // of the manifest's states in the state file
};

}  // namespace foreshard
