// A model's whole parameters, out of all shards' state or a safetensors file, and into one.
//
//   auto cut = ChooseCheckpoints(run, {.tolerance = 10}, &watch).value();   // one of each shard
//   auto source = CheckpointSource::Open(run, cut.checkpoints).value();
//   RETURN_IF_ERROR(ExportModel(run.schema, *source, Layout::kPyTorch, metadata, "model.safetensors", &watch));
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/core/safetensors.h"
#include "common/core/schema.h"
#include "server/checkpoint_files.h"
#include "tools/state/long_work.h"
#include "tools/state/replay.h"
#include "tools/state/state_directory.h"

namespace foreshard {

// kCanonical: as workers have them. kPyTorch: what load_state_dict takes, strict: convolution filters are
// [out, in, height, width] instead of [out, height, width, in], and beside running statistics lies
// num_batches_tracked (I64), written as 0, ignored when read.
enum class Layout { kCanonical, kPyTorch };
// "canonical", "pytorch".
const char* ToString(Layout layout);
// INVALID_ARGUMENT: the model has a dense layer that reads an image, whose columns PyTorch orders in a way that
// its schema does not tell; `foreshard weights`, which reads the job's data too, converts it.
absl::Status CheckLayout(const std::string& model, Layout layout);

// The flat vector, in the canonical layout, from wherever it lies.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  // Elements from `begin` on.
  virtual absl::Status Read(uint64_t begin, absl::Span<float> out) const = 0;
};

// Checkpoints of all shards that go together.
struct CheckpointCut {
  std::vector<std::unique_ptr<Checkpoint>> checkpoints;  // by shard
  uint64_t least_step = 0, greatest_step = 0;
};

// Of those that are whole, the newest of each shard whose steps lie within `tolerance` of each other; where
// there are none such, the newest of each. NOT_FOUND: a shard has none. DATA_LOSS: a shard has only
// damaged ones.
absl::StatusOr<CheckpointCut> ChooseCheckpoints(const StoredRun& run, uint64_t tolerance, WorkWatch* watch);

// Over checkpoints of all shards, which outlive it, as the run does.
class CheckpointSource final : public ParameterSource {
 public:
  static absl::StatusOr<std::unique_ptr<CheckpointSource>> Open(
      const StoredRun& run, const std::vector<std::unique_ptr<Checkpoint>>& checkpoints);
  absl::Status Read(uint64_t begin, absl::Span<float> out) const override;

 private:
  struct Piece {
    uint64_t begin = 0, elements = 0;
    size_t reader = 0;
    SafetensorsTensor tensor;
  };
  std::vector<SafetensorsReader> readers_;
  std::vector<Piece> pieces_;  // by begin, without gaps
};

// Over all shards' machines, which outlive it. FAILED_PRECONDITION: a segment has no values yet.
class MachinesSource final : public ParameterSource {
 public:
  static absl::StatusOr<std::unique_ptr<MachinesSource>> Open(
      const std::vector<std::unique_ptr<ShardMachines>>& shards);
  absl::Status Read(uint64_t begin, absl::Span<float> out) const override;

 private:
  std::vector<const Segment*> segments_;  // by begin
};

// Over a safetensors file with the schema's tensors: of `layout`, or, where the file says which it has
// (foreshard.layout), of that one. INVALID_ARGUMENT names a tensor that is missing, of another shape, or
// not the schema's; statistics may not be missing either.
class FileSource final : public ParameterSource {
 public:
  static absl::StatusOr<std::unique_ptr<FileSource>> Open(const Schema& schema, const std::string& path,
                                                          Layout layout);
  absl::Status Read(uint64_t begin, absl::Span<float> out) const override;
  Layout layout() const { return layout_; }

 private:
  FileSource(const Schema& schema, SafetensorsReader reader) : schema_(schema), reader_(std::move(reader)) {}
  const Schema& schema_;
  const SafetensorsReader reader_;
  Layout layout_ = Layout::kCanonical;
  mutable size_t cached_ = ~size_t{0};  // the tensor in filter_
  mutable std::vector<float> filter_;
};

// Writes `path` whole or not at all. ALREADY_EXISTS unless `replace`, which replaces nothing but a file
// (FAILED_PRECONDITION).
absl::Status ExportModel(const Schema& schema, const ParameterSource& source, Layout layout,
                         std::map<std::string, std::string> metadata, const std::string& path, bool replace,
                         WorkWatch* watch);

}  // namespace foreshard
