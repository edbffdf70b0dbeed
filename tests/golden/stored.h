// The golden files as they lie in the tree.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/common/storage/faulty_storage.h"
#include "tests/golden/samples.h"

namespace foreshard::golden {

inline const Files& Stored() {
  static const Files& stored = []() -> const Files& {
    auto& files = *new Files;
    const std::filesystem::path root = std::filesystem::path(FORESHARD_SOURCE_DIR) / "tests/golden/files";
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (!entry.is_regular_file()) continue;
      std::ostringstream content;
      content << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      files[std::filesystem::relative(entry.path(), root).string()] = content.str();
    }
    return files;
  }();
  return stored;
}

// Those of one kind, by what is behind it.
inline Files Under(const std::string& folder) {
  Files files;
  for (const auto& [path, bytes] : Stored()) {
    if (absl::StartsWith(path, folder + "/")) files[path.substr(folder.size() + 1)] = bytes;
  }
  EXPECT_FALSE(files.empty()) << folder;
  return files;
}

inline std::unique_ptr<FaultyStorage> StoredServerFolder() {
  auto storage = std::make_unique<FaultyStorage>();
  for (const auto& [name, bytes] : Under("journal")) storage->Put(name, bytes);
  for (const auto& [path, bytes] : Under("checkpoint")) {
    const std::string folder = path.substr(0, path.find('/'));
    storage->MakeFolder(folder).IgnoreError();
    storage->Put(path, bytes);
  }
  return storage;
}

}  // namespace foreshard::golden
