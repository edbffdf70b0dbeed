// Packed text on disk: `foreshard pack-text` writes it, LoadTokens' data set reads it. A folder
// has an index, the vocabulary, and one or more shards of records of one size. Numbers are
// little-endian.
//
//   index.tokens            8 bytes "FSTOKENS"
//                           u32 version, 2
//                           u32 shards
//                           u32 sequence: tokens of a record
//                           u32 vocabulary: tokens in it
//                           u32 pairs: 1 where records have two segments and a label, else 0
//                           u64 XXH3-64 of vocab.txt
//                           shards times: u64 records, at least 1
//                           u64 XXH3-64 of everything before
//   vocab.txt               the vocabulary (vocabulary.h)
//   tokens-00000.tokens     8 bytes "FSTOKREC"
//                           u32 version, the index's
//                           u32 the shard's number
//                           u64 XXH3-64 of vocab.txt; not in version 1
//                           then records:
//                             u64 XXH3-64 of the record's rest
//                             u16 length: tokens before the padding
//                             u16 second: where the second segment begins; length: nowhere
//                             u16 words: tokens that are neither [CLS] nor [SEP], at least 1
//                             u16 label: 0, or 1 where the second segment does not follow the first
//                             sequence times: the token, u16 where vocabulary <= 65536, else u32
//
// The index is written last, so a folder without one is no data set. Version 1 is read as well: its
// shards do not say of which vocabulary they are, all else is the same.
//
//   auto records = TokenRecords::Open(folder).value();
//   RETURN_IF_ERROR(records->Read(17, &record));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/core/bytes.h"
#include "worker/data/mapped_file.h"
#include "worker/data/vocabulary.h"

namespace foreshard {

inline constexpr char kTokenIndexName[] = "index.tokens";
inline constexpr char kTokenVocabularyName[] = "vocab.txt";
inline constexpr uint32_t kTokenVersion = 2;
inline constexpr uint32_t kMaxTokenShards = 100'000;
inline constexpr uint32_t kLeastSequence = 8, kMostSequence = 65535;

struct TokenRecord {
  uint32_t second = 0;  // where the second segment begins, or tokens.size()
  uint32_t words = 0;
  uint32_t label = 0;
  std::vector<uint32_t> tokens;  // without padding
};

struct TokenIndex {
  uint32_t version = kTokenVersion;
  uint32_t sequence = 0, vocabulary = 0;
  bool pairs = false;
  uint64_t vocabulary_checksum = 0;
  std::vector<uint64_t> records;  // of each shard

  uint32_t token_bytes() const { return vocabulary <= 65536 ? 2 : 4; }
  uint64_t shard_header_bytes() const { return version > 1 ? 24 : 16; }
  uint64_t record_bytes() const { return 16 + uint64_t{sequence} * token_bytes(); }
  uint64_t total() const;
};

// "tokens-00003.tokens", and what it begins with.
std::string TokenShardName(uint32_t shard);
std::string TokenShardHeader(const TokenIndex& index, uint32_t shard);
// TokenRecord.words: those that are neither [CLS] nor [SEP].
uint32_t CountWords(const std::vector<uint32_t>& tokens, const SpecialTokens& special);
// A record's bytes; its tokens are at most index.sequence.
std::string PrintTokenRecord(const TokenIndex& index, const TokenRecord& record);
std::string PrintTokenIndex(const TokenIndex& index);
// `name`: the file's, for errors. INVALID_ARGUMENT: no index, another version, numbers out of
// range, a shard without records; DATA_LOSS: cut off, or damaged.
absl::StatusOr<TokenIndex> ParseTokenIndex(const std::string& bytes, const std::string& name);

// Random access. Thread-safe.
class TokenRecords {
 public:
  // NOT_FOUND; INVALID_ARGUMENT and DATA_LOSS as ParseTokenIndex and Vocabulary::Parse, and for
  // shards that are missing, empty, shorter or longer than the index says, another's or of another vocabulary, and for
  // a vocabulary that is not the one that the text was packed with.
  static absl::StatusOr<std::unique_ptr<TokenRecords>> Open(const std::string& folder);
  TokenRecords(const TokenRecords&) = delete;
  TokenRecords& operator=(const TokenRecords&) = delete;

  const TokenIndex& index() const { return index_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  uint64_t records() const { return records_; }
  // DATA_LOSS naming shard and record: its checksum does not match; INVALID_ARGUMENT: numbers in
  // it are out of range, or its words are not as many as it says.
  absl::Status Read(uint64_t record, TokenRecord* to) const;
  // The record's words alone, unchecked until it is read.
  uint32_t Words(uint64_t record) const;

 private:
  TokenRecords(std::string folder, TokenIndex index, Vocabulary vocabulary);
  // Shard, and number in it.
  std::pair<size_t, uint64_t> Locate(uint64_t record) const;
  const uint8_t* Bytes(uint64_t record) const;

  const std::string folder_;
  const TokenIndex index_;
  const Vocabulary vocabulary_;
  uint64_t records_ = 0;
  std::vector<uint64_t> ends_;  // records up to each shard's end
  std::vector<MappedFile> shards_;
};

}  // namespace foreshard
