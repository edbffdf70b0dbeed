// BERT's basic tokenizer: text into words and punctuation, as Devlin et al.'s code and Hugging
// Face's BasicTokenizer have it. In this order, by Unicode character:
//
//   * control characters (but tab and line ends), U+0000 and U+FFFD are left out; every
//     white space is one separator;
//   * a CJK ideograph is a word of its own;
//   * uncased: lower case of one character each (so a final sigma is a plain one), then
//     decomposed (NFD) without its non-spacing marks (accents);
//   * a punctuation mark is a word of its own: what Unicode calls one, and every ASCII symbol.
//
// Words like [MASK] in a text are no special tokens: they fall apart at their brackets.
//
//   BasicTokens tokens(/*cased=*/false);
//   RETURN_IF_ERROR(tokens.Split("Caf\u00e9, please", "menu.txt", 0, &words));  // cafe , please
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace foreshard {

// Immutable; safe from any thread.
class BasicTokens {
 public:
  explicit BasicTokens(bool cased) : cased_(cased) {}

  // Appends the text's words, in UTF-8. The text ends between words. INVALID_ARGUMENT: it is
  // no UTF-8; the error has `name` and the byte, counted from `offset` at the text's begin.
  absl::Status Split(std::string_view text, const std::string& name, uint64_t offset,
                     std::vector<std::string>* words) const;

 private:
  const bool cased_;
};

}  // namespace foreshard
