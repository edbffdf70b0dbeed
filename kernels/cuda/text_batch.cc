#include "kernels/cuda/text_batch.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace FORESHARD_CUDA_NAMESPACE {

TextLayout::TextLayout(uint32_t examples_, uint32_t positions_, uint32_t targets_)
    : examples(examples_), positions(positions_), targets(targets_) {
  constexpr uint64_t kAlignment = 16;
  const auto take = [this](uint64_t count, uint64_t size) {
    const uint64_t begin = bytes;
    bytes += (count * size + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  const uint64_t rows = uint64_t{examples} * positions, wanted = uint64_t{examples} * targets;
  keys = take(examples, sizeof(uint64_t));
  tokens = take(rows, sizeof(int32_t));
  segments = take(rows, sizeof(int32_t));
  lengths = take(examples, sizeof(int32_t));
  target_positions = take(wanted, sizeof(int32_t));
  target_tokens = take(wanted, sizeof(int32_t));
  order = take(rows, sizeof(uint32_t));
  starts = take(rows + 1, sizeof(uint32_t));
}

void TextFiller::Fill(const TextLayout& layout, const TextView& text, bool with_targets,
                      uint8_t* to) {
  const uint64_t rows = uint64_t{layout.examples} * layout.positions;
  const uint64_t wanted = uint64_t{layout.examples} * layout.targets;
  // Null: zeros.
  const auto copy = [to](uint64_t offset, const auto* from, uint64_t count) {
    if (from == nullptr) {
      std::memset(to + offset, 0, count * sizeof *from);
    } else {
      std::memcpy(to + offset, from, count * sizeof *from);
    }
  };
  copy(layout.keys, text.keys, layout.examples);
  copy(layout.tokens, text.tokens, rows);
  copy(layout.segments, text.segments, rows);
  copy(layout.lengths, text.lengths, layout.examples);
  copy(layout.target_positions, with_targets ? text.target_positions : nullptr, wanted);
  copy(layout.target_tokens, with_targets ? text.targets : nullptr, wanted);
  Sort(layout, text, reinterpret_cast<uint32_t*>(to + layout.order),
       reinterpret_cast<uint32_t*>(to + layout.starts));
}

// By counting, which keeps the order among equals. Padding has no gradient, and all of it one token.
void TextFiller::Sort(const TextLayout& layout, const TextView& text, uint32_t* order, uint32_t* starts) {
  std::fill(counts_.begin(), counts_.end(), 0);
  const auto each = [&](const auto& act) {
    for (uint32_t example = 0; example < layout.examples; ++example) {
      const uint32_t first = example * layout.positions;
      const auto length = static_cast<uint32_t>(text.lengths[example]);
      for (uint32_t row = first; row < first + length; ++row) act(row, static_cast<uint32_t>(text.tokens[row]));
    }
  };
  each([&](uint32_t, uint32_t token) { ++counts_[token]; });
  uint32_t begin = 0, distinct = 0;
  for (uint32_t& count : counts_) {
    if (count == 0) continue;
    starts[distinct++] = begin;
    begin += std::exchange(count, begin);
  }
  const uint32_t rows = layout.examples * layout.positions;
  std::fill(starts + distinct, starts + rows + 1, begin);
  each([&](uint32_t row, uint32_t token) { order[counts_[token]++] = row; });
}

uint64_t CountTargets(const TextLayout& layout, const TextView& text) {
  const uint64_t all = uint64_t{layout.examples} * layout.targets;
  return all - static_cast<uint64_t>(std::count(text.targets, text.targets + all, kNoTarget));
}

}  // namespace FORESHARD_CUDA_NAMESPACE
