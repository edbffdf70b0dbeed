// The text of a batch as one piece of memory, which a step copies to the device before it begins:
// where each array lies in it, and how it is filled. Also the order in which gradients of the table
// of tokens are added: the batch's positions sorted by their token, positions of one token as the
// batch has them, so that the sums are the same whatever the GPU does.
//
//   const TextLayout layout(examples, positions, targets);
//   sorter.Fill(layout, batch.text, /*targets=*/true, staging);   // layout.bytes long
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/namespace.h"
#include "kernels/device.h"

namespace FORESHARD_CUDA_NAMESPACE {

// Offsets in bytes, each a multiple of 16.
struct TextLayout {
  TextLayout() = default;
  TextLayout(uint32_t examples, uint32_t positions, uint32_t targets);

  uint32_t examples = 0, positions = 0, targets = 0;
  uint64_t keys = 0;              // uint64 [examples]; zeros without dropout
  uint64_t tokens = 0;            // int32 [examples, positions]
  uint64_t segments = 0;          // int32 [examples, positions]
  uint64_t lengths = 0;           // int32 [examples]
  uint64_t target_positions = 0;  // int32 [examples, targets]
  uint64_t target_tokens = 0;     // int32 [examples, targets]
  uint64_t order = 0;             // uint32 [examples * positions], positions sorted by token; not those of padding
  // uint32 [examples * positions + 1]: where each token that occurs begins in `order`; what is
  // left over is the end.
  uint64_t starts = 0;
  uint64_t bytes = 0;
};

class TextFiller {
 public:
  explicit TextFiller(uint32_t tokens) : counts_(tokens) {}

  // `text` has passed CheckText. Without `with_targets` they are zeros, and not read.
  void Fill(const TextLayout& layout, const TextView& text, bool with_targets, uint8_t* to);

 private:
  void Sort(const TextLayout& layout, const TextView& text, uint32_t* order, uint32_t* starts);

  std::vector<uint32_t> counts_;  // by token
};

// How many targets there are.
uint64_t CountTargets(const TextLayout& layout, const TextView& text);

}  // namespace FORESHARD_CUDA_NAMESPACE
