// A file that may be gzipped.
#include "tests/fuzz/fuzz.h"
#include "worker/data/gz_reader.h"

namespace foreshard::fuzz {
namespace {

constexpr uint64_t kMostBytes = 4 << 20;  // an input of some KB unpacks to no more than it is asked for

void Run(ByteSpan bytes) {
  const MemoryFile file(bytes);
  const auto reader = GzReader::Open(file.path(), "bytes");
  if (!reader.ok()) return;
  uint8_t head[7];
  const auto got = (*reader)->Read(head, sizeof head);
  if (!got.ok()) return;
  FUZZ_CHECK(*got <= sizeof head);
  std::vector<uint8_t> rest;
  const auto appended = (*reader)->Append(kMostBytes, &rest);
  if (appended.ok()) FUZZ_CHECK(*appended == rest.size() && rest.size() <= kMostBytes);
}

Seeds MakeSeeds() {
  const std::string stored = std::string("\x1f\x8b\x08\0\0\0\0\0\0\3", 10) +
                             std::string("\x01\3\0\xfc\xff", 5) + "abc" +
                             std::string("\xc2\x41\x24\x35\3\0\0\0", 8);
  return {{"stored", stored}, {"plain", "no gzip at all"}};
}

const Registration registration({.name = "gzip", .run = Run, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
