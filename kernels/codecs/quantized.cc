// quantized: b-bit stochastic rounding. The block's scale s is its largest |c|; L = 2^(b-1) -
// 1 levels of distance s / L lie on each side of zero, and c becomes one of its two
// neighbours, each with the probability that leaves the mean unchanged
// (QSGD, arXiv 1610.02132). The draws come from the encoder's own key, so that the rounding
// of different workers is independent. Few bits in long blocks round coarsely: the variance
// grows with s / L, and with it the error that feedback carries.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/codecs/faults.h"
#include "kernels/codecs/prefetch.h"
#include "kernels/codecs/registry.h"
#include "kernels/cpu/isa.h"

namespace foreshard {
namespace {

// A smaller scale becomes 0, so that L / s is finite; the error takes all of the block.
constexpr float kMinScale = 0x1p-96f;
constexpr std::string_view kSmallScale = "a scale out of range";
constexpr std::string_view kBadLevel = "a level out of range";

// What all elements of a block are rounded by.
struct Levels {
  uint32_t most = 0;  // L
  float factor = 0;   // 2^24 L / s, 0 where s is: c in 2^-24 of a level
  float step = 0;     // s / L
};

float Below(float positive) { return std::bit_cast<float>(std::bit_cast<uint32_t>(positive) - 1); }

// Rounding must lead neither beyond the outermost levels nor beyond the largest number.
Levels MakeLevels(float scale, uint32_t bits) {
  Levels levels = {.most = (1u << (bits - 1)) - 1};
  if (scale == 0) return levels;
  const auto most = static_cast<float>(levels.most);
  levels.factor = most * 0x1p24f / scale;
  if (scale * levels.factor > most * 0x1p24f) levels.factor = Below(levels.factor);
  levels.step = scale / most;
  if (!std::isfinite(most * levels.step)) levels.step = Below(levels.step);
  return levels;
}

// The level of c plus L: floor(c / step + u), u the draw as a fraction, which is c / step in the
// mean. Fixed point with 24 bits below the point, all of it positive.
[[gnu::always_inline]] inline uint32_t Field(float c, uint32_t draw, const Levels& levels) {
  const auto fixed = static_cast<uint32_t>(static_cast<int32_t>(c * levels.factor));
  return (fixed + (levels.most << 24) + (draw >> 8)) >> 24;
}

[[gnu::always_inline]] inline float Value(uint32_t field, const Levels& levels) {
  return static_cast<float>(static_cast<int32_t>(field - levels.most)) * levels.step;
}

// The largest |c|, where c = values + error is left in error.
FORESHARD_ISA_INLINE uint32_t AddErrorBody(const float* __restrict values, float* __restrict error,
                                           uint64_t n) {
  int32_t most = 0;
  for (uint64_t i = 0; i < n; ++i) {
    error[i] = values[i] + error[i];
    const auto magnitude = static_cast<int32_t>(std::bit_cast<uint32_t>(error[i]) & 0x7fffffff);
    most = magnitude > most ? magnitude : most;
  }
  return static_cast<uint32_t>(most);
}
FORESHARD_ISA_VARIANTS(uint32_t, AddError, (const float* values, float* error, uint64_t n),
                       (values, error, n))

FORESHARD_ISA_INLINE uint32_t LargestBody(const float* values, uint64_t n) {
  int32_t most = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<int32_t>(std::bit_cast<uint32_t>(values[i]) & 0x7fffffff);
    most = magnitude > most ? magnitude : most;
  }
  return static_cast<uint32_t>(most);
}
FORESHARD_ISA_VARIANTS(uint32_t, Largest, (const float* values, uint64_t n), (values, n))

// Fields, a byte each; c is read from error, where the new error is left.
// Meanwhile the next block's values and errors are on their way.
FORESHARD_ISA_INLINE void RoundWithErrorBody(const float* values, float* __restrict error, uint32_t n,
                                             const Levels& given, uint64_t key,
                                             uint8_t* __restrict fields) {
  constexpr uint32_t kPart = 512;
  const Levels levels = given;
  auto counter = static_cast<uint32_t>(key);
  const auto high = static_cast<uint32_t>(key >> 32);
  for (uint32_t begin = 0; begin < n; begin += kPart) {
    const uint32_t end = n - begin < kPart ? n : begin + kPart;
    Prefetch(values + n + begin, kPart);
    Prefetch(error + n + begin, kPart);
    for (uint32_t i = begin; i < end; ++i, counter += kCodecCounterStep) {
      const float c = error[i];
      const uint32_t field = Field(c, CodecMix(counter, high), levels);
      fields[i] = static_cast<uint8_t>(field);
      error[i] = c - Value(field, levels);
    }
  }
}
FORESHARD_ISA_VARIANTS(void, RoundWithError,
                       (const float* values, float* error, uint32_t n, const Levels& levels,
                        uint64_t key, uint8_t* fields),
                       (values, error, n, levels, key, fields))

FORESHARD_ISA_INLINE void RoundPlainBody(const float* __restrict values, uint32_t n,
                                         const Levels& given, uint64_t key,
                                         uint8_t* __restrict fields) {
  const Levels levels = given;
  auto counter = static_cast<uint32_t>(key);
  const auto high = static_cast<uint32_t>(key >> 32);
  for (uint32_t i = 0; i < n; ++i, counter += kCodecCounterStep) {
    fields[i] = static_cast<uint8_t>(Field(values[i], CodecMix(counter, high), levels));
  }
}
FORESHARD_ISA_VARIANTS(void, RoundPlain,
                       (const float* values, uint32_t n, const Levels& levels, uint64_t key,
                        uint8_t* fields),
                       (values, n, levels, key, fields))

FORESHARD_ISA_INLINE void ScaleFieldsBody(const uint8_t* __restrict fields, uint32_t n,
                                          const Levels& given, float* __restrict out) {
  const Levels levels = given;
  for (uint32_t i = 0; i < n; ++i) out[i] = Value(fields[i], levels);
}
FORESHARD_ISA_VARIANTS(void, ScaleFields,
                       (const uint8_t* fields, uint32_t n, const Levels& levels, float* out),
                       (fields, n, levels, out))

FORESHARD_ISA_INLINE uint8_t LargestFieldBody(const uint8_t* fields, uint32_t n) {
  uint8_t most = 0;
  for (uint32_t i = 0; i < n; ++i) most = fields[i] > most ? fields[i] : most;
  return most;
}
FORESHARD_ISA_VARIANTS(uint8_t, LargestField, (const uint8_t* fields, uint32_t n), (fields, n))

// Eight fields of `bits` bits from a byte each to one next to another, and back: pairs of
// fields are joined, then pairs of pairs, then those.
[[gnu::always_inline]] inline uint64_t Join(uint64_t fields, uint32_t bits) {
  fields = (fields & 0x00ff00ff00ff00ff) | (fields & 0xff00ff00ff00ff00) >> (8 - bits);
  fields = (fields & 0x0000ffff0000ffff) | (fields & 0xffff0000ffff0000) >> (16 - 2 * bits);
  return (fields & 0x00000000ffffffff) | (fields & 0xffffffff00000000) >> (32 - 4 * bits);
}

[[gnu::always_inline]] inline uint64_t Part(uint64_t word, uint32_t bits) {
  const uint64_t field = ((uint64_t{1} << bits) - 1) * 0x0001000100010001;
  const uint64_t pair = ((uint64_t{1} << 2 * bits) - 1) * 0x0000000100000001;
  const uint64_t half = (uint64_t{1} << 4 * bits) - 1;
  word = (word & half) | (word & half << 4 * bits) << (32 - 4 * bits);
  word = (word & pair) | (word & pair << 2 * bits) << (16 - 2 * bits);
  return (word & field) | (word & field << bits) << (8 - bits);
}

// Groups of eight fields, in place.
FORESHARD_ISA_INLINE void JoinAllBody(uint64_t* groups, uint32_t count, uint32_t bits) {
  for (uint32_t g = 0; g < count; ++g) groups[g] = Join(groups[g], bits);
}
FORESHARD_ISA_VARIANTS(void, JoinAll, (uint64_t* groups, uint32_t count, uint32_t bits),
                       (groups, count, bits))

FORESHARD_ISA_INLINE void PartAllBody(uint64_t* groups, uint32_t count, uint32_t bits) {
  for (uint32_t g = 0; g < count; ++g) groups[g] = Part(groups[g], bits);
}
FORESHARD_ISA_VARIANTS(void, PartAll, (uint64_t* groups, uint32_t count, uint32_t bits),
                       (groups, count, bits))

// A byte a field, in groups of eight.
union Fields {
  alignas(64) uint64_t groups[kMaxBlockElements / 8];
  uint8_t bytes[kMaxBlockElements];
};

constexpr uint32_t Groups(uint32_t elements) { return (elements + 7) / 8; }
constexpr uint32_t PackedBytes(uint32_t elements, uint32_t bits) { return (elements * bits + 7) / 8; }

// Fields beyond n, in the last group, must be zero. A group of eight is `bits` bytes long;
// whole words are moved as long as they fit: what they write too far, the next overwrite.
void Pack(Fields& fields, uint32_t n, uint32_t bits, uint8_t* out) {
  JoinAll(fields.groups, Groups(n), bits);
  const uint32_t bytes = PackedBytes(n, bits);
  uint32_t at = 0;
  const uint64_t* group = fields.groups;
  for (; at + sizeof *group <= bytes; at += bits) std::memcpy(out + at, group++, sizeof *group);
  for (; at < bytes; at += bits) std::memcpy(out + at, group++, std::min(bits, bytes - at));
}

// Fields beyond n become what the padding says.
void Unpack(const uint8_t* in, uint32_t n, uint32_t bits, Fields& fields) {
  const uint32_t bytes = PackedBytes(n, bits);
  uint32_t at = 0;
  uint64_t* group = fields.groups;
  for (; at + sizeof *group <= bytes; at += bits) std::memcpy(group++, in + at, sizeof *group);
  for (; at < bytes; at += bits) {
    *group = 0;
    std::memcpy(group++, in + at, std::min(bits, bytes - at));
  }
  PartAll(fields.groups, Groups(n), bits);
}

// Of the bits of the largest magnitude.
float ScaleOf(uint32_t largest) {
  const auto scale = std::bit_cast<float>(largest);
  return scale < kMinScale ? 0 : scale;
}

float ReadScale(const uint8_t* in) {
  float scale;
  std::memcpy(&scale, in, sizeof scale);
  return scale;
}

class Quantized final : public Codec {
 public:
  explicit Quantized(uint32_t bits) : bits_(bits) {}

  CodecId id() const override { return CodecId::kQuantized; }
  std::string_view name() const override { return "quantized"; }
  bool replies_carry_values() const override { return false; }
  uint32_t BlockBytes(uint32_t elements) const override {
    return static_cast<uint32_t>(sizeof(float)) + PackedBytes(elements, bits_);
  }

  void EncodeBlock(const float* values, float* error, uint32_t elements, const CodecKey& key,
                   uint8_t* out) const override {
    const uint32_t largest =
        error == nullptr ? Largest(values, elements) : AddError(values, error, elements);
    const float scale = ScaleOf(largest);
    const Levels levels = MakeLevels(scale, bits_);
    Fields fields;
    if (elements % 8 != 0) fields.groups[elements / 8] = 0;
    if (error == nullptr) {
      RoundPlain(values, elements, levels, key.own, fields.bytes);
    } else {
      RoundWithError(values, error, elements, levels, key.own, fields.bytes);
    }
    std::memcpy(out, &scale, sizeof scale);
    Pack(fields, elements, bits_, out + sizeof scale);
  }

  const float* DecodeBlock(const uint8_t* in, uint32_t elements, const CodecKey&,
                           float* scratch) const override {
    Fields fields;
    Unpack(in + sizeof(float), elements, bits_, fields);
    ScaleFields(fields.bytes, elements, MakeLevels(ReadScale(in), bits_), scratch);
    return scratch;
  }

  std::string_view Fault(const uint8_t* in, uint32_t elements) const override {
    const float scale = ReadScale(in);
    if (const std::string_view fault = ScaleFault(scale); !fault.empty()) return fault;
    if (scale > 0 && scale < kMinScale) return kSmallScale;
    Fields fields;
    Unpack(in + sizeof(float), elements, bits_, fields);
    if (LargestField(fields.bytes, elements) > 2 * MakeLevels(scale, bits_).most) return kBadLevel;
    const uint32_t used = elements * bits_ % 8;
    if (used != 0 && in[BlockBytes(elements) - 1] >> used != 0) return kPadding;
    return {};
  }

  void EncodeBlockReference(const float* values, float* error, uint32_t elements,
                            const CodecKey& key, uint8_t* out) const override {
    float largest = 0;
    for (uint32_t i = 0; i < elements; ++i) {
      const float c = error == nullptr ? values[i] : values[i] + error[i];
      largest = std::max(largest, std::fabs(c));
    }
    const float scale = ScaleOf(std::bit_cast<uint32_t>(largest));
    const Levels levels = MakeLevels(scale, bits_);
    std::memset(out, 0, BlockBytes(elements));
    std::memcpy(out, &scale, sizeof scale);
    for (uint32_t i = 0; i < elements; ++i) {
      const float c = error == nullptr ? values[i] : values[i] + error[i];
      const uint32_t field = Field(c, CodecDraw(key.own, i), levels);
      for (uint32_t bit = 0; bit < bits_; ++bit) {
        const uint32_t place = i * bits_ + bit;
        out[sizeof scale + place / 8] |= static_cast<uint8_t>((field >> bit & 1) << place % 8);
      }
      if (error != nullptr) error[i] = c - Value(field, levels);
    }
  }

 private:
  const uint32_t bits_;
};

}  // namespace

std::unique_ptr<const Codec> MakeQuantized(const CodecSettings& settings) {
  return std::make_unique<Quantized>(settings.bits);
}

}  // namespace foreshard
