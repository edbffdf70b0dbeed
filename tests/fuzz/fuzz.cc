#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/event.h"

namespace foreshard::fuzz {

std::map<std::string, Target>& Targets() {
  static auto& targets = *new std::map<std::string, Target>;
  return targets;
}

std::string AsText(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string PackFiles(const std::vector<std::string>& files) {
  std::string packed;
  for (size_t k = 0; k < files.size(); ++k) {
    if (k + 1 < files.size()) {
      const auto size = static_cast<uint32_t>(files[k].size());
      packed.append(reinterpret_cast<const char*>(&size), sizeof size);
    }
    packed += files[k];
  }
  return packed;
}

std::vector<std::string> UnpackFiles(std::string_view packed, size_t count) {
  std::vector<std::string> files(count);
  for (size_t k = 0; k + 1 < count; ++k) {
    const size_t size = std::min<size_t>(ReadAt<uint32_t>(packed, 0),
                                         packed.size() - std::min<size_t>(4, packed.size()));
    packed.remove_prefix(std::min<size_t>(4, packed.size()));
    files[k] = packed.substr(0, size);
    packed.remove_prefix(size);
  }
  files.back() = packed;
  return files;
}

MemoryFile::MemoryFile(ByteSpan bytes) : file_(memfd_create("fuzz", MFD_CLOEXEC)) {
  FUZZ_CHECK(file_ >= 0);
  FUZZ_CHECK(write(file_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  path_ = absl::StrCat("/proc/self/fd/", file_);
}

MemoryFile::~MemoryFile() { close(file_); }

void MendChecksum(std::string* bytes, size_t from, size_t to) {
  if (from > to || to + sizeof(uint64_t) > bytes->size()) return;
  Overwrite(bytes, to, Checksum(AsBytes(*bytes).subspan(from, to - from)));
}

size_t MendRecord(std::string* bytes, size_t at, bool fill) {
  const size_t left = bytes->size() - std::min(at, bytes->size());
  if (left < kEventOverheadBytes) return bytes->size();
  size_t size = size_t{4} + ReadAt<uint32_t>(*bytes, at);
  if (fill || size < kEventOverheadBytes || size > left) size = left;
  Overwrite(bytes, at, static_cast<uint32_t>(size - 4));
  Overwrite(bytes, at + 4, kEventFormat);
  Overwrite(bytes, at + kEventOverheadBytes - 16, uint64_t{size - kEventOverheadBytes});
  MendChecksum(bytes, at + 4, at + size - 8);
  return at + size;
}

absl::StatusOr<std::vector<StorageEntry>> ReadOnlyStorage::List(absl::string_view folder) const {
  std::set<std::string> files, folders;
  const std::string prefix = folder.empty() ? "" : absl::StrCat(folder, "/");
  for (const auto& [path, content] : files_) {
    if (!absl::StartsWith(path, prefix)) continue;
    const std::string rest = path.substr(prefix.size());
    const size_t slash = rest.find('/');
    (slash == std::string::npos ? files : folders).insert(rest.substr(0, slash));
  }
  std::vector<StorageEntry> entries;
  for (const std::string& name : folders) entries.push_back({name, true});
  for (const std::string& name : files) entries.push_back({name, false});
  return entries;
}

absl::StatusOr<uint64_t> ReadOnlyStorage::Size(absl::string_view file) const {
  const auto found = files_.find(std::string(file));
  if (found == files_.end()) return absl::NotFoundError(file);
  return found->second.size();
}

absl::StatusOr<std::string> ReadOnlyStorage::ReadAt(absl::string_view file, uint64_t offset,
                                                    uint64_t bytes) const {
  const auto found = files_.find(std::string(file));
  if (found == files_.end()) return absl::NotFoundError(file);
  if (offset >= found->second.size()) return std::string();
  return found->second.substr(offset, bytes);
}

}  // namespace foreshard::fuzz
