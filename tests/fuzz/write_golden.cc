// Writes tests/golden/files/ and the seeds in tests/fuzz/corpus/ anew, as the encoders make them.
//
//   build-release/bin/write_golden tests      # the tree's folder of tests
#include <filesystem>
#include <fstream>
#include <iostream>

#include "tests/fuzz/fuzz.h"
#include "tests/golden/samples.h"

namespace {

bool Write(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  if (file.fail()) std::cerr << "write_golden: cannot write " << path << "\n";
  return !file.fail();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || !std::filesystem::is_directory(argv[1])) {
    std::cerr << "usage: write_golden FOLDER, which is the tree's tests/\n";
    return 2;
  }
  const std::filesystem::path tests = argv[1];
  std::filesystem::remove_all(tests / "golden/files");
  for (const auto& [path, bytes] : foreshard::golden::Samples()) {
    if (!Write(tests / "golden/files" / path, bytes)) return 1;
  }
  for (const auto& [name, target] : foreshard::fuzz::Targets()) {
    for (const auto& [seed, bytes] : target.seeds()) {
      if (!Write(tests / "fuzz/corpus" / name / ("seed-" + seed), bytes)) return 1;
    }
  }
  return 0;
}
