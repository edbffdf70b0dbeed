#include "worker/data/vocabulary.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/core/json_text.h"

namespace foreshard {
namespace {

constexpr size_t kMostCharacters = 100;  // of a word that is split
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr size_t kMostKnown = 1 << 20;   // words remembered

bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

absl::StatusOr<Vocabulary> Vocabulary::Parse(std::string_view text, const std::string& name) {
  Vocabulary made;
  made.text_ = std::string(text);
  const auto wrong = [&](uint64_t line, const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": line ", line, ": ", what...));
  };
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    return wrong(1, "begins with a byte order mark, which would be part of the first token; save the file as UTF-8 "
                    "without one");
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string token(text.substr(at, end - at));
    at = end + 1;
    if (!token.empty() && token.back() == '\r') token.pop_back();
    const uint64_t line = made.tokens_.size() + 1;
    if (token.empty()) return wrong(line, "is empty; a vocabulary has one token a line");
    if (line > kMaxVocabulary) return wrong(line, "is one too many; ", kMaxVocabulary, " tokens at most");
    if (const auto quoted = JsonText(token); !quoted.ok()) return wrong(line, "is no UTF-8");
    const auto [there, is_new] = made.ids_.emplace(token, static_cast<uint32_t>(line - 1));
    if (!is_new) return wrong(line, "'", token, "' is on line ", there->second + 1, " already");
    made.tokens_.push_back(std::move(token));
  }
  std::vector<std::string> missing;
  uint32_t* const ids[] = {&made.special_.pad, &made.special_.unknown, &made.special_.first,
                           &made.special_.separator, &made.special_.mask};
  for (size_t i = 0; i < std::size(kSpecialTokens); ++i) {
    *ids[i] = made.Find(kSpecialTokens[i]);
    if (*ids[i] == made.size()) missing.emplace_back(kSpecialTokens[i]);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": has no ", absl::StrJoin(missing, ", no "), " among its ", made.size(),
        " tokens; a vocabulary needs ", absl::StrJoin(kSpecialTokens, ", "),
        ": is it a BERT's vocab.txt? 'foreshard learn-vocabulary' makes one"));
  }
  return made;
}

absl::StatusOr<Vocabulary> Vocabulary::Load(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file && !file.eof()) {
    const std::string why = absl::StrCat(path, ": can't be read: ", std::strerror(errno != 0 ? errno : EIO));
    return errno == ENOENT ? absl::NotFoundError(why) : absl::InvalidArgumentError(why);
  }
  return Parse(std::move(text).str(), path);
}

uint32_t Vocabulary::Find(std::string_view token) const {
  const auto found = ids_.find(std::string(token));
  return found == ids_.end() ? size() : found->second;
}

void WordPieces::Append(const std::string& word, std::vector<uint32_t>* ids) {
  auto found = known_.find(word);
  if (found == known_.end()) {
    if (known_.size() >= kMostKnown) known_.clear();
    found = known_.emplace(word, Split(word)).first;
  }
  ids->insert(ids->end(), found->second.begin(), found->second.end());
}

std::vector<uint32_t> WordPieces::Split(const std::string& word) const {
  const std::vector<uint32_t> unknown = {vocabulary_.special().unknown};
  size_t characters = 0;
  for (char byte : word) characters += !Continues(byte);
  if (characters > kMostCharacters) return unknown;
  std::vector<uint32_t> ids;
  std::string piece;
  for (size_t begin = 0; begin < word.size();) {
    size_t end = word.size();
    uint32_t id = vocabulary_.size();
    while (end > begin) {
      piece = absl::StrCat(begin > 0 ? "##" : "", word.substr(begin, end - begin));
      id = vocabulary_.Find(piece);
      if (id < vocabulary_.size()) break;
      do --end;
      while (end > begin && Continues(word[end]));
    }
    if (end == begin) return unknown;
    ids.push_back(id);
    begin = end;
  }
  return ids;
}

}  // namespace foreshard
