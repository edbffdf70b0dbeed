#include "worker/data/token_records.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace foreshard {
namespace {

constexpr std::string_view kIndexMagic = "FSTOKENS", kShardMagic = "FSTOKREC";
constexpr uint64_t kHeaderBytes = 16;  // of a record

absl::Status OpenProblem(int error, const std::string& path) {
  const std::string why = absl::StrCat(path, ": can't be read: ", std::strerror(error != 0 ? error : EIO));
  return error == ENOENT ? absl::NotFoundError(absl::StrCat(why, "; foreshard pack-text makes it"))
                         : absl::InvalidArgumentError(why);
}

template <typename T>
T At(const uint8_t* bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

}  // namespace

std::string TokenShardName(uint32_t shard) { return absl::StrFormat("tokens-%05d.tokens", shard); }

std::string TokenShardHeader(const TokenIndex& index, uint32_t shard) {
  ByteWriter writer;
  writer.Put(index.version);
  writer.Put(shard);
  if (index.version > 1) writer.Put(index.vocabulary_checksum);
  return absl::StrCat(std::string(kShardMagic), writer.Take());
}

uint64_t TokenIndex::total() const { return std::accumulate(records.begin(), records.end(), uint64_t{0}); }

uint32_t CountWords(const std::vector<uint32_t>& tokens, const SpecialTokens& special) {
  return static_cast<uint32_t>(std::count_if(tokens.begin(), tokens.end(), [&](uint32_t token) {
    return token != special.first && token != special.separator;
  }));
}

std::string PrintTokenRecord(const TokenIndex& index, const TokenRecord& record) {
  ByteWriter writer;
  for (const uint64_t number : {uint64_t{record.tokens.size()}, uint64_t{record.second}, uint64_t{record.words},
                                uint64_t{record.label}}) {
    writer.Put(static_cast<uint16_t>(number));
  }
  for (uint32_t i = 0; i < index.sequence; ++i) {
    const uint32_t token = i < record.tokens.size() ? record.tokens[i] : 0;
    if (index.token_bytes() == 2) {
      writer.Put(static_cast<uint16_t>(token));
    } else {
      writer.Put(token);
    }
  }
  ByteWriter sealed;
  sealed.Put(Checksum(AsBytes(writer.data())));
  return absl::StrCat(sealed.data(), writer.data());
}

std::string PrintTokenIndex(const TokenIndex& index) {
  ByteWriter writer;
  for (char c : kIndexMagic) writer.Put(c);
  writer.Put(index.version);
  writer.Put(static_cast<uint32_t>(index.records.size()));
  writer.Put(index.sequence);
  writer.Put(index.vocabulary);
  writer.Put(static_cast<uint32_t>(index.pairs));
  writer.Put(index.vocabulary_checksum);
  for (uint64_t records : index.records) writer.Put(records);
  return writer.TakeSealed();
}

absl::StatusOr<TokenIndex> ParseTokenIndex(const std::string& bytes, const std::string& name) {
  const auto invalid = [&](const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", text...));
  };
  if (bytes.size() < kIndexMagic.size() + sizeof(uint32_t) ||
      std::string_view(bytes).substr(0, kIndexMagic.size()) != kIndexMagic) {
    return invalid("is no index of packed text; foreshard pack-text makes one");
  }
  ByteReader reader(std::string_view(bytes).substr(kIndexMagic.size()));
  TokenIndex index;
  index.version = reader.Get<uint32_t>();
  if (index.version < 1 || index.version > kTokenVersion) {
    return invalid("has version ", index.version, " of the format; this program reads versions 1 to ", kTokenVersion,
                   ": pack the text again");
  }
  if (!Unsealed(bytes).ok()) {
    return absl::DataLossError(absl::StrCat(
        name, ": is damaged or cut off: its checksum does not match; copy it again, or pack again"));
  }
  const auto shards = reader.Get<uint32_t>();
  index.sequence = reader.Get<uint32_t>();
  index.vocabulary = reader.Get<uint32_t>();
  const auto pairs = reader.Get<uint32_t>();
  index.pairs = pairs == 1;
  index.vocabulary_checksum = reader.Get<uint64_t>();
  if (shards == 0 || shards > kMaxTokenShards || index.sequence < kLeastSequence ||
      index.sequence > kMostSequence || index.vocabulary == 0 || index.vocabulary > kMaxVocabulary || pairs > 1) {
    return invalid("claims ", shards, " shards, sequences of ", index.sequence, " tokens of ",
                   index.vocabulary, " and pairs ", pairs, "; there are 1 to ", kMaxTokenShards, ", ",
                   kLeastSequence, " to ", kMostSequence, ", 1 to ", kMaxVocabulary, " and 0 or 1");
  }
  if (reader.left() != (uint64_t{shards} + 1) * sizeof(uint64_t)) {
    return absl::DataLossError(absl::StrCat(name, ": has another length than its own numbers say; pack the text again"));
  }
  uint64_t total = 0;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    const auto records = reader.Get<uint64_t>();
    if (records == 0) {
      return invalid("shard ", shard, " (", TokenShardName(shard),
                     ") has no records; every shard needs some: pack the text again, with fewer --shards");
    }
    if (records > UINT32_MAX || (total += records) > UINT32_MAX) {
      return invalid("claims more than ", UINT32_MAX, " records");
    }
    index.records.push_back(records);
  }
  return index;
}

TokenRecords::TokenRecords(std::string folder, TokenIndex index, Vocabulary vocabulary)
    : folder_(std::move(folder)), index_(std::move(index)), vocabulary_(std::move(vocabulary)) {
  for (uint64_t records : index_.records) {
    records_ += records;
    ends_.push_back(records_);
  }
}

absl::StatusOr<std::unique_ptr<TokenRecords>> TokenRecords::Open(const std::string& folder) {
  const std::string index_path = absl::StrCat(folder, "/", kTokenIndexName);
  const auto bytes = ReadWholeFile(index_path, [&](int error) { return OpenProblem(error, index_path); });
  if (!bytes.ok()) return bytes.status();
  auto index = ParseTokenIndex(*bytes, index_path);
  if (!index.ok()) return index.status();
  const std::string vocabulary_path = absl::StrCat(folder, "/", kTokenVocabularyName);
  auto vocabulary = Vocabulary::Load(vocabulary_path);
  if (!vocabulary.ok()) return vocabulary.status();
  if (vocabulary->size() != index->vocabulary ||
      Checksum(AsBytes(vocabulary->text())) != index->vocabulary_checksum) {
    return absl::InvalidArgumentError(absl::StrCat(
        vocabulary_path, ": is not the vocabulary that the text was packed with (", index->vocabulary,
        " tokens); copy the folder again, or pack again"));
  }
  std::unique_ptr<TokenRecords> records(
      new TokenRecords(folder, *std::move(index), *std::move(vocabulary)));
  for (uint32_t shard = 0; shard < records->index_.records.size(); ++shard) {
    const std::string path = absl::StrCat(folder, "/", TokenShardName(shard));
    const std::string header = TokenShardHeader(records->index_, shard);
    const uint64_t wanted = header.size() + records->index_.records[shard] * records->index_.record_bytes();
    auto mapped = MappedFile::Open(
        path, [&](int error) { return OpenProblem(error, path); },
        [&](uint64_t size) {
          if (size == wanted) return absl::OkStatus();
          return absl::DataLossError(absl::StrCat(path, ": ", size <= header.size() ? "is empty: it" : "it", " has ", size,
                                                  " bytes, the index says ", wanted,
                                                  "; copy it again, or pack again"));
        });
    if (!mapped.ok()) return mapped.status();
    records->shards_.push_back(*std::move(mapped));
    constexpr size_t kNumbered = 16;  // up to what says of which vocabulary it is
    const uint8_t* front = records->shards_.back().data();
    if (std::memcmp(front, header.data(), kNumbered) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is not shard ", shard, " of packed text; copy it again"));
    }
    if (std::memcmp(front + kNumbered, header.data() + kNumbered, header.size() - kNumbered) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": was packed with another vocabulary than the folder's ", kTokenVocabularyName, "; copy it again"));
    }
  }
  return records;
}

std::pair<size_t, uint64_t> TokenRecords::Locate(uint64_t record) const {
  const auto shard =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), record) - ends_.begin());
  return {shard, record - (shard == 0 ? 0 : ends_[shard - 1])};
}

const uint8_t* TokenRecords::Bytes(uint64_t record) const {
  const auto [shard, number] = Locate(record);
  return shards_[shard].data() + index_.shard_header_bytes() + number * index_.record_bytes();
}

uint32_t TokenRecords::Words(uint64_t record) const { return At<uint16_t>(Bytes(record), 12); }

absl::Status TokenRecords::Read(uint64_t record, TokenRecord* to) const {
  const uint8_t* bytes = Bytes(record);
  const auto where = [&] {
    const auto [shard, number] = Locate(record);
    return absl::StrCat(folder_, "/", TokenShardName(static_cast<uint32_t>(shard)), ": record ", number);
  };
  if (Checksum(ByteSpan(bytes + 8, index_.record_bytes() - 8)) != At<uint64_t>(bytes, 0)) {
    return absl::DataLossError(
        absl::StrCat(where(), " does not have its checksum; the file is damaged: copy it again"));
  }
  const uint32_t length = At<uint16_t>(bytes, 8);
  to->second = At<uint16_t>(bytes, 10);
  to->words = At<uint16_t>(bytes, 12);
  to->label = At<uint16_t>(bytes, 14);
  if (length == 0 || length > index_.sequence || to->second > length || to->words > length || to->label > 1) {
    return absl::InvalidArgumentError(absl::StrCat(where(), " has ", length, " tokens, ", to->words,
                                                   " words, a second segment at ", to->second,
                                                   " and the label ", to->label, " in sequences of ",
                                                   index_.sequence));
  }
  to->tokens.resize(length);
  const uint8_t* tokens = bytes + kHeaderBytes;
  for (uint32_t i = 0; i < length; ++i) {
    const uint32_t token = index_.token_bytes() == 2 ? At<uint16_t>(tokens, 2 * i) : At<uint32_t>(tokens, 4 * i);
    if (token >= index_.vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat(where(), " has token ", token, " of ", index_.vocabulary));
    }
    to->tokens[i] = token;
  }
  const uint32_t words = CountWords(to->tokens, vocabulary_.special());
  if (words == 0 || words != to->words) {
    return absl::InvalidArgumentError(absl::StrCat(where(), " has ", words, " words and says ", to->words,
                                                   "; pack the text again"));
  }
  return absl::OkStatus();
}

}  // namespace foreshard
