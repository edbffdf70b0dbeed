#include "worker/data/packed_records.h"

#include <errno.h>

#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/core/json_text.h"

namespace foreshard {
namespace {

constexpr std::string_view kIndexMagic = "FSPACKED", kShardMagic = "FSIMAGES";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kRecordBytes = 28;  // in the index
constexpr uint64_t kFrontBytes = 16;   // of a shard
constexpr uint64_t kChecksumBytes = 8;

absl::Status At(absl::StatusCode code, const std::string& name, const std::string& text) {
  return absl::Status(code, absl::StrCat(name, ": ", text));
}

absl::Status OpenProblem(int error, const std::string& path) {
  const std::string text = absl::StrCat(path, ": can't be read (", std::strerror(error), ")");
  return error == ENOENT || error == ENOTDIR
             ? absl::NotFoundError(absl::StrCat(
                   text, "; foreshard pack-images makes such a folder; check data.directory"))
             : absl::InvalidArgumentError(text);
}

}  // namespace

std::string PackedShardName(uint32_t shard) { return absl::StrFormat("images-%05d.packed", shard); }

std::string PackedShardHeader(uint32_t shard) {
  ByteWriter writer;
  for (char c : kShardMagic) writer.Put(c);
  writer.Put(kVersion);
  writer.Put(shard);
  return writer.Take();
}

std::string PrintPackedIndex(const PackedIndex& index) {
  ByteWriter writer;
  for (char c : kIndexMagic) writer.Put(c);
  writer.Put(kVersion);
  writer.Put(static_cast<uint32_t>(index.shard_bytes.size()));
  writer.Put(index.size);
  writer.Put(static_cast<uint32_t>(index.classes.size()));
  writer.Put(static_cast<uint64_t>(index.records.size()));
  for (const std::string& name : index.classes) writer.PutString(name);
  for (uint64_t bytes : index.shard_bytes) writer.Put(bytes);
  for (const PackedRecord& record : index.records) {
    writer.Put(record.offset);
    writer.Put(record.checksum);
    writer.Put(record.bytes);
    writer.Put(record.label);
    writer.Put(record.shard);
  }
  return writer.TakeSealed();
}

absl::StatusOr<PackedIndex> ParsePackedIndex(const std::string& bytes, const std::string& name) {
  const auto invalid = [&](const auto&... text) {
    return At(absl::StatusCode::kInvalidArgument, name, absl::StrCat(text...));
  };
  const auto lost = [&](const auto&... text) {
    return At(absl::StatusCode::kDataLoss, name, absl::StrCat(text...));
  };
  if (bytes.size() < kIndexMagic.size() + sizeof(uint32_t) ||
      std::string_view(bytes).substr(0, kIndexMagic.size()) != kIndexMagic) {
    return invalid("is no index of packed images; foreshard pack-images makes one");
  }
  ByteReader reader(std::string_view(bytes).substr(kIndexMagic.size()));
  if (const auto version = reader.Get<uint32_t>(); version != kVersion) {
    return invalid("has version ", version, " of the format; this program reads version ", kVersion,
                   ": pack the images again");
  }
  const absl::StatusOr<std::string_view> body = Unsealed(bytes);
  if (!body.ok()) {
    return lost("is damaged or cut off: its checksum does not match; copy it again, or pack again");
  }
  const auto shards = reader.Get<uint32_t>();
  PackedIndex index;
  index.size = reader.Get<uint32_t>();
  const auto classes = reader.Get<uint32_t>();
  const auto records = reader.Get<uint64_t>();
  if (shards == 0 || shards > kMaxPackedShards || classes == 0 || classes > kMaxPackedClasses ||
      records == 0 || records > UINT32_MAX) {
    return invalid("claims ", shards, " shards, ", classes, " classes and ", records,
                   " records; there are 1 to ", kMaxPackedShards, ", ", kMaxPackedClasses, " and ",
                   UINT32_MAX);
  }
  std::set<std::string> names;
  for (uint32_t label = 0; label < classes && reader.ok(); ++label) {
    index.classes.push_back(reader.GetString());
    if (const auto text = JsonText(index.classes.back()); !text.ok()) {
      return invalid("class ", label, ": ", std::string(text.status().message()));
    }
    if (!names.insert(index.classes.back()).second) {
      return invalid("two classes are named '", index.classes.back(), "'");
    }
  }
  if (!reader.ok() ||
      reader.left() != shards * sizeof(uint64_t) + records * kRecordBytes + kChecksumBytes) {
    return lost("has another length than its own numbers say; pack the images again");
  }
  for (uint32_t shard = 0; shard < shards; ++shard) {
    index.shard_bytes.push_back(reader.Get<uint64_t>());
  }
  index.records.resize(records);
  for (uint64_t i = 0; i < records; ++i) {
    PackedRecord& record = index.records[i];
    record.offset = reader.Get<uint64_t>();
    record.checksum = reader.Get<uint64_t>();
    record.bytes = reader.Get<uint32_t>();
    record.label = reader.Get<uint32_t>();
    record.shard = reader.Get<uint32_t>();
    if (record.label >= classes) {
      return invalid("record ", i, " has the label ", record.label, " of ", classes, " classes");
    }
    if (record.shard >= shards) {
      return invalid("record ", i, " lies in shard ", record.shard, " of ", shards);
    }
    const uint64_t end = index.shard_bytes[record.shard];
    if (record.offset < kFrontBytes || record.bytes == 0 || record.offset > end ||
        record.bytes > end - record.offset) {
      return invalid("record ", i, " has ", record.bytes, " bytes at ", record.offset, " of a shard of ",
                     end);
    }
  }
  return index;
}

absl::StatusOr<std::unique_ptr<PackedRecords>> PackedRecords::Open(const std::string& folder) {
  const std::string index_path = absl::StrCat(folder, "/", kPackedIndexName);
  const auto bytes = ReadWholeFile(index_path, [&](int error) { return OpenProblem(error, index_path); });
  if (!bytes.ok()) return bytes.status();
  auto index = ParsePackedIndex(*bytes, index_path);
  if (!index.ok()) return index.status();
  std::unique_ptr<PackedRecords> records(new PackedRecords(folder, *std::move(index)));
  for (uint32_t shard = 0; shard < records->index_.shard_bytes.size(); ++shard) {
    const std::string path = absl::StrCat(folder, "/", PackedShardName(shard));
    const uint64_t wanted = records->index_.shard_bytes[shard];
    auto mapped = MappedFile::Open(
        path, [&](int error) { return OpenProblem(error, path); },
        [&](uint64_t size) {
          if (size == wanted && size >= kFrontBytes) return absl::OkStatus();
          return At(absl::StatusCode::kDataLoss, path,
                    absl::StrCat("has ", size, " bytes, the index says ", wanted,
                                 size < wanted ? ": it is cut off" : "", "; copy it again, or pack again"));
        });
    if (!mapped.ok()) return mapped.status();
    records->shards_.push_back(*std::move(mapped));
    if (std::memcmp(records->shards_.back().data(), PackedShardHeader(shard).data(), kFrontBytes) != 0) {
      return At(absl::StatusCode::kInvalidArgument, path,
                absl::StrCat("is not shard ", shard, " of packed images; copy it again"));
    }
  }
  return records;
}

absl::StatusOr<ByteSpan> PackedRecords::Read(uint64_t record) const {
  const PackedRecord& about = index_.records[record];
  const ByteSpan bytes(shards_[about.shard].data() + about.offset, about.bytes);
  if (Checksum(bytes) != about.checksum) {
    return absl::DataLossError(absl::StrCat(
        Describe(record), " does not have its checksum; the file is damaged: copy it again"));
  }
  return bytes;
}

std::string PackedRecords::Describe(uint64_t record) const {
  const PackedRecord& about = index_.records[record];
  return absl::StrCat(folder_, "/", PackedShardName(about.shard), ": record ", record, " (class '",
                      index_.classes[about.label], "', ", about.bytes, " bytes at ", about.offset, ")");
}

}  // namespace foreshard
