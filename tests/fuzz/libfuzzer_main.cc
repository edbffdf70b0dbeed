// The one target that is linked in, as libFuzzer wants it.
#include <cstdint>
#include <string>

#include "tests/fuzz/fuzz.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

const foreshard::fuzz::Target& TheTarget() {
  static const foreshard::fuzz::Target& target = [&]() -> const foreshard::fuzz::Target& {
    FUZZ_CHECK(foreshard::fuzz::Targets().size() == 1);
    return foreshard::fuzz::Targets().begin()->second;
  }();
  return target;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  TheTarget().run({data, size});
  return 0;
}

// One in eight inputs stays as it was mutated, for the checks of checksums and lengths.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (TheTarget().repair == nullptr || seed % 8 == 0) return size;
  std::string input(reinterpret_cast<const char*>(data), size);
  TheTarget().repair(&input);
  if (input.size() > max_size) return size;
  std::copy(input.begin(), input.end(), data);
  return input.size();
}
