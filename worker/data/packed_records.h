// Packed images on disk: `foreshard pack-images` writes them, LoadPacked's data set reads them.
// A folder has one index and one or more shards. Numbers are little-endian.
//
//   index.packed            8 bytes "FSPACKED"
//                           u32 version, 1
//                           u32 shards
//                           u32 size: the shorter side that larger pictures were made to have
//                           u32 classes
//                           u64 records
//                           classes times: u64 length, UTF-8: a class's name, by label
//                           shards times: u64 length of the file in bytes
//                           records times: u64 offset in its shard, u64 XXH3-64 of its bytes,
//                             u32 length, u32 label, u32 shard
//                           u64 XXH3-64 of everything before
//   images-00000.packed     8 bytes "FSIMAGES", u32 version, u32 the shard's number; then the
//                           records, each a JPEG or PNG file, one behind the other
//
// The index is written last, so a folder without one is no data set.
//
//   auto records = PackedRecords::Open(folder).value();
//   auto bytes = records->Read(17).value();   // checked; valid as long as `records`
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/core/bytes.h"
#include "worker/data/mapped_file.h"

namespace foreshard {

inline constexpr char kPackedIndexName[] = "index.packed";
inline constexpr uint32_t kMaxPackedShards = 100'000;
inline constexpr uint32_t kMaxPackedClasses = 65536;
inline constexpr uint64_t kMaxPackedRecordBytes = uint64_t{1} << 30;

// "images-00003.packed".
std::string PackedShardName(uint32_t shard);
// What a shard begins with.
std::string PackedShardHeader(uint32_t shard);

struct PackedRecord {
  uint64_t offset = 0, checksum = 0;
  uint32_t bytes = 0, label = 0, shard = 0;
};

struct PackedIndex {
  uint32_t size = 0;
  std::vector<std::string> classes;    // by label
  std::vector<uint64_t> shard_bytes;   // of each file
  std::vector<PackedRecord> records;
};

std::string PrintPackedIndex(const PackedIndex& index);
// `name`: the file's, for errors. INVALID_ARGUMENT: no index, another version, a label or
// shard out of range, names that are no UTF-8 or repeat; DATA_LOSS: cut off, or damaged.
absl::StatusOr<PackedIndex> ParsePackedIndex(const std::string& bytes, const std::string& name);

// Random access. Thread-safe.
class PackedRecords {
 public:
  // NOT_FOUND; INVALID_ARGUMENT and DATA_LOSS as ParsePackedIndex, and for shards that are
  // missing, shorter or longer than the index says, or another's.
  static absl::StatusOr<std::unique_ptr<PackedRecords>> Open(const std::string& folder);
  PackedRecords(const PackedRecords&) = delete;
  PackedRecords& operator=(const PackedRecords&) = delete;

  const PackedIndex& index() const { return index_; }
  // The record's bytes, mapped. DATA_LOSS: they do not have their checksum.
  absl::StatusOr<ByteSpan> Read(uint64_t record) const;
  // "FOLDER/images-00000.packed: record 17 (class 'cat', 5120 bytes at 16)".
  std::string Describe(uint64_t record) const;

 private:
  PackedRecords(std::string folder, PackedIndex index)
      : folder_(std::move(folder)), index_(std::move(index)) {}

  const std::string folder_;
  const PackedIndex index_;
  std::vector<MappedFile> shards_;
};

}  // namespace foreshard
