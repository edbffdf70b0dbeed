// A pair of IDX files, plain or gzipped, and a batch out of what was loaded.
#include "tests/fuzz/fuzz.h"
#include "worker/data/dataset.h"

namespace foreshard::fuzz {
namespace {

void Run(ByteSpan bytes) {
  Input input(bytes);
  const IdxOptions options = {.classes = 10,
                              .mean = 0.25f,
                              .deviation = 0.5f,
                              .flip = input.Below(2) == 1,
                              .crop_padding = static_cast<uint32_t>(input.Below(4))};
  const auto files = UnpackFiles(AsText(input.rest()), 2);
  const MemoryFile images(AsBytes(files[0])), labels(AsBytes(files[1]));
  const auto data = LoadIdx(images.path(), labels.path(), options);
  if (!data.ok()) return;
  FUZZ_CHECK((*data)->examples() > 0);
  const auto last = static_cast<uint32_t>((*data)->examples() - 1);
  Batch batch;
  FUZZ_CHECK((*data)->Gather({0, last}, 7, &batch).ok());
  for (const auto label : batch.labels) FUZZ_CHECK(static_cast<uint32_t>(label) < options.classes);
}

// Says as many images and labels as there are bytes for.
void Repair(std::string* input) {
  auto files = UnpackFiles(std::string_view(*input).substr(std::min<size_t>(2, input->size())), 2);
  if (files[0].size() < 17 || files[1].size() < 9 || files[0].substr(0, 2) == "\x1f\x8b") return;
  const size_t count = std::min<size_t>({files[1].size() - 8, files[0].size() - 16, 200});
  const size_t pixels = (files[0].size() - 16) / count;
  files[0].resize(16 + count * pixels);
  files[1].resize(8 + count);
  const auto big = [](std::string* file, size_t at, size_t value) {
    for (size_t k = 0; k < 4; ++k) (*file)[at + k] = static_cast<char>(value >> (8 * (3 - k)));
  };
  big(&files[0], 0, 0x803), big(&files[0], 4, count), big(&files[0], 8, 1), big(&files[0], 12, pixels);
  big(&files[1], 0, 0x801), big(&files[1], 4, count);
  *input = input->substr(0, 2) + PackFiles(files);
}

Seeds MakeSeeds() {
  const std::string images = std::string("\0\0\x08\x03\0\0\0\2\0\0\0\3\0\0\0\4", 16) + std::string(24, 'i');
  const std::string labels = std::string("\0\0\x08\x01\0\0\0\2\3\7", 10);
  const std::string pair = std::string("\1\2", 2) + PackFiles({images, labels});
  return {{"pair", pair}};
}

const Registration registration(
    {.name = "idx", .run = Run, .repair = Repair, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
