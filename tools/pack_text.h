// Packs plain text into token records (worker/data/token_records.h), and learns vocabularies.
//
//   PackTextOptions options{.inputs = {"books"}, .vocabulary = "vocab.txt", .output = "packed"};
//   auto figures = PackText(options);
//
// Every file is a document. Their tokens follow one another without regard for lines, [SEP]
// between two documents, and this stream is cut into sequences: [CLS], `sequence` - 2 tokens,
// [SEP]. Shorter is only the last, and by one what would end with two [SEP].
//
// Pairs: documents are cut into parts of (sequence - 3) / 2 tokens, of which a last one of fewer
// than 8 is dropped. Parts 0, 2, 4 ... of a document are first segments: [CLS] part [SEP] part
// [SEP]. In half of them, and where the document has no more, the second is not the part that
// follows but one chosen at random among the 65536 parts around (label 1); all by the seed. So more
// than half have label 1 where documents have an odd number of parts, and all where they have one.
// With `held_out` every so many-th pair is for testing, and its parts are in no other sequence but
// those for testing: a second segment is chosen among parts of its own kind, and is the one that
// follows where there are fewer than three of that kind.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace foreshard {

struct PackTextFigures {
  uint64_t files = 0, bytes = 0;            // in all
  uint64_t files_done = 0, bytes_done = 0;  // sizes as they lie on disk
  uint64_t tokens = 0, unknown = 0;         // of words; [UNK] among them
  uint64_t records = 0, held_out = 0;       // sequences, and those for testing
};

struct PackTextOptions {
  std::vector<std::string> inputs;  // files, or folders of them
  std::string vocabulary, output;
  uint32_t sequence = 128;
  uint32_t shards = 1;
  uint64_t seed = 1;
  bool pairs = false;
  bool cased = false;
  // Every so many-th sequence (or pair, see above) is for testing: OUTPUT has folders train and test; 0: OUTPUT itself.
  uint32_t held_out = 0;
  // Asked now and then.
  std::function<bool()> interrupted;
  std::function<void(const PackTextFigures&)> progress;
};

// Writes to OUTPUT.part and renames at the end: OUTPUT is there whole or not at all, and what
// an earlier run that was killed has left is replaced. NOT_FOUND, INVALID_ARGUMENT: inputs,
// vocabulary or options that are wrong, a text that is no UTF-8 (with file and byte), fewer sequences than
// shards. CANCELLED: interrupted, and nothing is left.
absl::StatusOr<PackTextFigures> PackText(const PackTextOptions& options);

struct LearnTextOptions {
  std::vector<std::string> inputs;
  std::string output;  // vocab.txt
  uint32_t size = 8192;
  bool cased = false;
  std::function<bool()> interrupted;
  // While reading, bytes of bytes; then tokens of `size`.
  std::function<void(const char* what, uint64_t done, uint64_t of)> progress;
};

// Writes the vocabulary; how many tokens it has. Errors as PackText's and LearnVocabulary's.
absl::StatusOr<uint32_t> LearnTextVocabulary(const LearnTextOptions& options);

}  // namespace foreshard
