#include "worker/data/learn_vocabulary.h"

#include <algorithm>
#include <iterator>
#include <queue>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/data/vocabulary.h"

namespace foreshard {
namespace {

constexpr uint64_t kLeastCount = 2;  // of a pair that becomes a piece
constexpr uint32_t kSayEvery = 64;

std::vector<std::string> Characters(const std::string& word) {
  std::vector<std::string> characters;
  for (char byte : word) {
    if ((static_cast<unsigned char>(byte) & 0xC0) == 0x80 && !characters.empty()) {
      characters.back() += byte;
    } else {
      characters.emplace_back(1, byte);
    }
  }
  return characters;
}

// The characters that occur most often.
std::set<std::string> Alphabet(const std::map<std::string, uint64_t>& words, uint32_t most) {
  std::map<std::string, uint64_t> counts;
  for (const auto& [word, count] : words) {
    for (const std::string& character : Characters(word)) counts[character] += count;
  }
  std::vector<std::pair<std::string, uint64_t>> ranked(counts.begin(), counts.end());
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  if (ranked.size() > most) ranked.resize(most);
  std::set<std::string> alphabet;
  for (const auto& [character, count] : ranked) alphabet.insert(character);
  return alphabet;
}

class Learner {
 public:
  Learner(const std::map<std::string, uint64_t>& words, const LearnOptions& options) : options_(options) {
    const std::set<std::string> alphabet = Alphabet(words, options.most_characters);
    std::set<std::string> symbols;
    std::vector<std::pair<std::vector<std::string>, uint64_t>> split;
    for (const auto& [word, count] : words) {
      std::vector<std::string> pieces = Characters(word);
      if (!std::all_of(pieces.begin(), pieces.end(), [&](const auto& c) { return alphabet.contains(c); })) continue;
      for (size_t i = 1; i < pieces.size(); ++i) pieces[i] = absl::StrCat("##", pieces[i]);
      symbols.insert(pieces.begin(), pieces.end());
      split.emplace_back(std::move(pieces), count);
    }
    for (const char* special : kSpecialTokens) Number(special);
    for (const std::string& symbol : symbols) Number(symbol);
    for (const auto& [pieces, count] : split) {
      Word word{.count = count};
      for (const std::string& piece : pieces) word.pieces.push_back(Number(piece));
      words_.push_back(std::move(word));
    }
    for (uint32_t w = 0; w < words_.size(); ++w) CountPairs(w, 1);
  }

  absl::StatusOr<std::vector<std::string>> Run() {
    if (words_.empty()) return absl::InvalidArgumentError("there are no words in the text; --input is to name plain text");
    if (tokens_.size() > options_.size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--size: ", options_.size, ": the special tokens and the text's characters alone are ",
          tokens_.size(), " tokens; make it larger"));
    }
    while (tokens_.size() < options_.size && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      // Entries whose count has changed since have a newer one behind them.
      if (pairs_[best.pair].count != best.count) continue;
      if (best.count < kLeastCount) break;
      Merge(best.pair);
      if (tokens_.size() % kSayEvery != 0) continue;
      if (options_.interrupted && options_.interrupted()) return absl::CancelledError("interrupted");
      if (options_.progress) options_.progress(static_cast<uint32_t>(tokens_.size()));
    }
    return tokens_;
  }

 private:
  using Pair = std::pair<uint32_t, uint32_t>;
  struct PairHash {
    size_t operator()(const Pair& pair) const {
      return (uint64_t{pair.first} << 32 | pair.second) * 0x9E3779B97F4A7C15u >> 16;
    }
  };
  struct Word {
    std::vector<uint32_t> pieces;
    uint64_t count = 0;
  };
  struct PairState {
    uint64_t count = 0;
    std::unordered_set<uint32_t> words;  // where it is, or was
  };
  struct Candidate {
    uint64_t count;
    Pair pair;
    const std::vector<std::string>* tokens;
    bool operator<(const Candidate& other) const {
      if (count != other.count) return count < other.count;
      const auto& t = *tokens;
      return std::tie(t[pair.first], t[pair.second]) > std::tie(t[other.pair.first], t[other.pair.second]);
    }
  };

  uint32_t Number(const std::string& token) {
    const auto [found, is_new] = numbers_.emplace(token, static_cast<uint32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(token);
    return found->second;
  }

  // Adds the word's pairs, or with sign -1 takes them back, and queues what has changed.
  void CountPairs(uint32_t w, int sign) {
    const Word& word = words_[w];
    for (size_t i = 0; i + 1 < word.pieces.size(); ++i) {
      const Pair pair(word.pieces[i], word.pieces[i + 1]);
      PairState& state = pairs_[pair];
      state.count = sign > 0 ? state.count + word.count : state.count - word.count;
      state.words.insert(w);
      if (sign > 0) queue_.push({state.count, pair, &tokens_});
      changed_.insert(pair);
    }
  }

  void Merge(const Pair& pair) {
    const std::string right = tokens_[pair.second].substr(2);  // of its "##"
    const uint32_t made = Number(absl::StrCat(tokens_[pair.first], right));
    std::vector<uint32_t> words(pairs_[pair].words.begin(), pairs_[pair].words.end());
    changed_.clear();
    for (uint32_t w : words) {
      std::vector<uint32_t>& pieces = words_[w].pieces;
      std::vector<uint32_t> merged;
      for (size_t i = 0; i < pieces.size(); ++i) {
        const bool here = i + 1 < pieces.size() && pieces[i] == pair.first && pieces[i + 1] == pair.second;
        merged.push_back(here ? made : pieces[i]);
        i += here;
      }
      if (merged.size() == pieces.size()) continue;
      CountPairs(w, -1);
      pieces = std::move(merged);
      CountPairs(w, 1);
    }
    pairs_.erase(pair);
    for (const Pair& other : changed_) {
      if (other != pair) queue_.push({pairs_[other].count, other, &tokens_});
    }
  }

  const LearnOptions& options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<Word> words_;
  std::unordered_map<Pair, PairState, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::set<Pair> changed_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> LearnVocabulary(
    const std::map<std::string, uint64_t>& words, const LearnOptions& options) {
  return Learner(words, options).Run();
}

}  // namespace foreshard
