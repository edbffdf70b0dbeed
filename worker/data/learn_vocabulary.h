// Learns a vocabulary from counted words, by the pairs of pieces that are next to each other most
// often (byte pair encoding, Sennrich et al., arXiv 1508.07909, on characters, with WordPiece's
// names).
//
// Each word begins as its characters, all but the first with "##". Then, until there are enough
// tokens or no pair is there twice, the pair that is most frequent (a word counts as often as
// it was met; of equals the one whose first piece, then second, is the smaller string of bytes)
// becomes one piece wherever it stands, from left to right. The vocabulary is the special
// tokens, the characters by their bytes, and the pieces in the order in which they were made.
//
//   LearnVocabulary({{"low", 5}, {"lower", 2}}, {.size = 30});   // ... lo low
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace foreshard {

struct LearnOptions {
  uint32_t size = 8192;  // tokens wanted, the special ones included
  // Words with a character that is none of the most frequent ones are left out.
  uint32_t most_characters = 1000;
  std::function<bool()> interrupted;
  std::function<void(uint32_t tokens)> progress;  // after every few pieces
};

// Tokens in the order of their numbers; fewer than wanted where the words have no more. The same
// on every machine. INVALID_ARGUMENT: no words, or a size that the characters alone exceed (the
// error says how many there are). CANCELLED.
absl::StatusOr<std::vector<std::string>> LearnVocabulary(
    const std::map<std::string, uint64_t>& words, const LearnOptions& options);

}  // namespace foreshard
