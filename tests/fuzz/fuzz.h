// Fuzz targets: one decoder each, fed with whatever bytes.
//
//   void Run(ByteSpan input) { DecodeMe(input); }           // aborts where something is wrong
//   const Registration registration({.name = "me", .run = Run});
//
// The same targets are libFuzzer programs (libfuzzer_main.cc, the preset `fuzz`, tools/fuzz) and
// an ordinary test over the corpus and seeded mutations of it (corpus_test.cc).
//
// An input that plain mutation would break at its checksum is mended by `repair` after each
// mutation, so that what lies behind the checksum is reached. `seeds` are made by the encoders
// themselves; tests/fuzz/corpus/NAME/ holds them, written by `write_golden`, beside inputs that
// once found something.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/core/bytes.h"
#include "common/storage/storage.h"

namespace foreshard::fuzz {

// What does not hold ends the program, which is what a fuzzer calls a finding.
#define FUZZ_CHECK(condition)                                                                  \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);      \
      std::abort();                                                                            \
    }                                                                                          \
  } while (false)

using Seeds = std::map<std::string, std::string>;  // by file name

struct Target {
  std::string name;
  std::function<void(ByteSpan)> run;
  std::function<void(std::string*)> repair;  // none: inputs need no mending
  std::function<Seeds()> seeds;
};

// All that are linked in, by name.
std::map<std::string, Target>& Targets();

struct Registration {
  explicit Registration(Target target) {
    const std::string name = target.name;
    Targets()[name] = std::move(target);
  }
};

// Takes an input apart: numbers for choices first, then the rest. Zeros once it is used up.
class Input {
 public:
  explicit Input(ByteSpan bytes) : bytes_(bytes) {}
  template <typename T>
  T Take() {
    T value{};
    const size_t size = std::min(sizeof value, bytes_.size());
    if (size > 0) std::memcpy(&value, bytes_.data(), size);
    bytes_.remove_prefix(size);
    return value;
  }
  uint64_t Below(uint64_t bound) { return Take<uint8_t>() % bound; }
  ByteSpan rest() const { return bytes_; }

 private:
  ByteSpan bytes_;
};

std::string AsText(ByteSpan bytes);

// Several files in one input: each its length as u32, then its bytes; the last takes what is left.
std::string PackFiles(const std::vector<std::string>& files);
std::vector<std::string> UnpackFiles(std::string_view packed, size_t count);

// The input as a file that has a path.
class MemoryFile {
 public:
  explicit MemoryFile(ByteSpan bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  int file_;
  std::string path_;
};

// XXH3-64 of bytes[from, to), written at `to` where there is room.
void MendChecksum(std::string* bytes, size_t from, size_t to);
template <typename T>
void Overwrite(std::string* bytes, size_t at, T value) {
  if (at + sizeof value <= bytes->size()) std::memcpy(bytes->data() + at, &value, sizeof value);
}
template <typename T>
T ReadAt(std::string_view bytes, size_t at) {
  T value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
// The record of an event that fills the bytes from `at` on, or as much of them as its own length
// says: lengths and checksum made right. Returns its end.
size_t MendRecord(std::string* bytes, size_t at, bool fill);

// Files in memory, to be read.
class ReadOnlyStorage final : public Storage {
 public:
  explicit ReadOnlyStorage(std::map<std::string, std::string> files) : files_(std::move(files)) {}

  absl::StatusOr<std::unique_ptr<StorageFile>> Create(absl::string_view) override { return ReadOnly(); }
  absl::Status SyncFile(absl::string_view) override { return ReadOnly(); }
  absl::Status MakeFolder(absl::string_view) override { return ReadOnly(); }
  absl::Status SyncFolder(absl::string_view) override { return ReadOnly(); }
  absl::Status Rename(absl::string_view, absl::string_view) override { return ReadOnly(); }
  absl::Status Remove(absl::string_view) override { return ReadOnly(); }
  absl::Status RemoveFolder(absl::string_view) override { return ReadOnly(); }
  absl::Status Truncate(absl::string_view, uint64_t) override { return ReadOnly(); }

  absl::StatusOr<std::vector<StorageEntry>> List(absl::string_view folder) const override;
  absl::StatusOr<uint64_t> Size(absl::string_view file) const override;
  absl::StatusOr<std::string> ReadAt(absl::string_view file, uint64_t offset,
                                     uint64_t bytes) const override;
  absl::StatusOr<uint64_t> FreeBytes() const override { return 0; }
  std::string Describe(absl::string_view path) const override { return std::string(path); }

 private:
  static absl::Status ReadOnly() { return absl::PermissionDeniedError("read-only"); }

  std::map<std::string, std::string> files_;  // by path
};

}  // namespace foreshard::fuzz
