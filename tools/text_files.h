// Plain text files, read piece by piece so that words stay whole.
//
//   auto files = FindTextFiles({"books", "letters.txt"});
//   auto status = ReadText(path, [&](std::string_view text, uint64_t offset) { ... });
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foreshard {

struct TextFile {
  std::string path;
  uint64_t bytes = 0;  // as they lie in the file
};

// Files as they are named, and of folders all files below them, hidden ones left out, by name.
// Gzipped ones (.gz) are read as what is in them. NOT_FOUND, INVALID_ARGUMENT: a name that is
// neither, or no files at all.
absl::StatusOr<std::vector<TextFile>> FindTextFiles(const std::vector<std::string>& inputs);

// Calls `each` with pieces that end behind a line, or at the file's end, and with where they
// begin. Ends with its first error. INVALID_ARGUMENT: a line of more than 64 MiB; NOT_FOUND,
// DATA_LOSS (a gzip that is damaged).
absl::Status ReadText(const std::string& path,
                      const std::function<absl::Status(std::string_view text, uint64_t offset)>& each);

}  // namespace foreshard
