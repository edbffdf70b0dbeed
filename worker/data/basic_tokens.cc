#include "worker/data/basic_tokens.h"

#include <utf8proc.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace foreshard {
namespace {

constexpr int kMostDecomposed = 64;  // characters of one

bool IsControl(int32_t c, utf8proc_category_t category) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  return c == 0 || c == 0xFFFD || category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CN || category == UTF8PROC_CATEGORY_CO ||
         category == UTF8PROC_CATEGORY_CS;
}

bool IsSpace(int32_t c, utf8proc_category_t category) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || category == UTF8PROC_CATEGORY_ZS ||
         category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool IsIdeograph(int32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B820 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

bool IsPunctuation(int32_t c) {
  if ((c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126)) {
    return true;
  }
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return true;
    default:
      return false;
  }
}

// The word under way, and where finished ones go.
class Words {
 public:
  explicit Words(std::vector<std::string>* to) : to_(to) {}
  void Add(int32_t c) {
    if (IsPunctuation(c)) {
      End();
      Append(c);
      End();
    } else {
      Append(c);
    }
  }
  void End() {
    if (!word_.empty()) to_->push_back(std::exchange(word_, {}));
  }

 private:
  void Append(int32_t c) {
    utf8proc_uint8_t bytes[4];
    const auto size = utf8proc_encode_char(c, bytes);
    word_.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  }

  std::vector<std::string>* to_;
  std::string word_;
};

}  // namespace

absl::Status BasicTokens::Split(std::string_view text, const std::string& name, uint64_t offset,
                                std::vector<std::string>* words) const {
  Words out(words);
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  for (utf8proc_ssize_t at = 0; at < size;) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t length = utf8proc_iterate(bytes + at, size - at, &c);
    if (length <= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": byte ", offset + static_cast<uint64_t>(at), " (", absl::StrFormat("0x%02x", bytes[at]),
          ") is not UTF-8; convert the file, as in 'iconv -f latin1 -t utf-8', or take it out"));
    }
    at += length;
    const utf8proc_category_t category = utf8proc_category(c);
    if (IsControl(c, category)) continue;
    if (IsSpace(c, category)) {
      out.End();
      continue;
    }
    const bool alone = IsIdeograph(c);
    if (alone) out.End();
    if (cased_) {
      out.Add(c);
    } else {
      utf8proc_int32_t parts[kMostDecomposed];
      int boundary = 0;
      const utf8proc_ssize_t count = utf8proc_decompose_char(utf8proc_tolower(c), parts, kMostDecomposed,
                                                             UTF8PROC_DECOMPOSE, &boundary);
      for (utf8proc_ssize_t i = 0; i < count; ++i) {
        if (utf8proc_category(parts[i]) != UTF8PROC_CATEGORY_MN) out.Add(parts[i]);
      }
    }
    if (alone) out.End();
  }
  out.End();
  return absl::OkStatus();
}

}  // namespace foreshard
