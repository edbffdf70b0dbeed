// A CIFAR file, plain or gzipped. With `sparse` the input is a few bytes a record, the rest made up:
// else an input of one record would be 3 KB.
#include "tests/fuzz/fuzz.h"
#include "worker/data/dataset.h"

namespace foreshard::fuzz {
namespace {

void Run(ByteSpan bytes) {
  Input input(bytes);
  const bool sparse = input.Below(2) == 1;
  const uint32_t classes = input.Below(2) == 1 ? 100 : 10;
  std::string file = AsText(input.rest());
  if (sparse) {
    const std::string labels = file.substr(0, 40);
    const size_t label_bytes = classes == 100 ? 2 : 1;
    file.clear();
    for (size_t at = 0; at + label_bytes <= labels.size(); at += label_bytes) {
      file += labels.substr(at, label_bytes) + std::string(3072, static_cast<char>(at));
    }
  }
  const MemoryFile records{AsBytes(file)};
  const auto data = LoadCifar({records.path()}, classes, {.means = {0.1f, 0.2f, 0.3f}, .flip = true});
  if (!data.ok()) return;
  Batch batch;
  FUZZ_CHECK((*data)->Gather({0, static_cast<uint32_t>((*data)->examples() - 1)}, 3, &batch).ok());
  for (const auto label : batch.labels) FUZZ_CHECK(static_cast<uint32_t>(label) < classes);
}

Seeds MakeSeeds() {
  return {{"ten", std::string("\1\0\3\7", 4)},
          {"hundred", std::string("\1\1\x13\x63\0\0", 6)},
          {"cut", std::string("\0\0\0", 3) + std::string(100, 'x')}};
}

const Registration registration({.name = "cifar", .run = Run, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
