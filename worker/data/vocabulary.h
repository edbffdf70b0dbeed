// A vocabulary as BERT has it, and the words' pieces in it (WordPiece): `vocab.txt`, one token a
// line, whose number from 0 is its line's. A piece that goes on with a word begins with "##".
//
//   auto vocabulary = Vocabulary::Load("vocab.txt").value();
//   WordPieces pieces(vocabulary);
//   pieces.Append("unaffable", &ids);   // una ##ffa ##ble
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"

namespace foreshard {

inline constexpr uint64_t kMaxVocabulary = uint64_t{1} << 20;

// Tokens that every vocabulary has.
struct SpecialTokens {
  uint32_t pad = 0, unknown = 0, first = 0, separator = 0, mask = 0;
};
inline constexpr const char* kSpecialTokens[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

// Immutable.
class Vocabulary {
 public:
  // INVALID_ARGUMENT, with `name` and the line: one that is empty, twice there or no UTF-8, none
  // of a special token, too many.
  static absl::StatusOr<Vocabulary> Parse(std::string_view text, const std::string& name);
  // Also NOT_FOUND.
  static absl::StatusOr<Vocabulary> Load(const std::string& path);

  uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }
  const std::string& token(uint32_t id) const { return tokens_[id]; }
  const SpecialTokens& special() const { return special_; }
  // The file as it was, for those that keep a copy.
  const std::string& text() const { return text_; }
  // The number of a token, or size() where it is none.
  uint32_t Find(std::string_view token) const;

 private:
  std::string text_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, uint32_t> ids_;
  SpecialTokens special_;
};

// Splits words, and remembers those that it has met. Thread-compatible.
class WordPieces {
 public:
  explicit WordPieces(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  // Appends the tokens of a word of BasicTokens: the longest piece from the left, and so on. The
  // whole word is [UNK] where it has a rest that is no piece, or more than 100 characters.
  void Append(const std::string& word, std::vector<uint32_t>* ids);

 private:
  std::vector<uint32_t> Split(const std::string& word) const;

  const Vocabulary& vocabulary_;
  std::unordered_map<std::string, std::vector<uint32_t>> known_;
};

}  // namespace foreshard
