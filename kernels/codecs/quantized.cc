// quantized: b-bit stochastic rounding. The block's scale s is its largest |c|; L = 2^(b-1) -
// 1 levels of distance s / L lie on each side of zero, and c becomes one of its two
// neighbours, the farther from zero with a probability that leaves the mean unchanged
// (QSGD, arXiv 1610.02132). The draws come from the encoder's own key, so that the rounding
// of different workers is independent. Few bits in long blocks round coarsely: the variance
// grows with s / L, and with it the error that feedback carries.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/codecs/faults.h"
#include "kernels/codecs/registry.h"
#include "kernels/cpu/isa.h"

namespace foreshard {
namespace {

// A larger scale becomes this, so that every decoded value is finite; the error takes the
// rest.
constexpr float kMaxScale = 0x1p127f;
constexpr std::string_view kLargeScale = "a scale beyond 2^127";
constexpr std::string_view kBadLevel = "a level out of range";

// What all elements of a block are rounded by.
struct Levels {
  int32_t most = 0;      // L
  float lift = 1;        // |c| is multiplied by it first: a power of two, so exactly
  float inverse = 0;     // then by this, L / (s lift); 0 where s is
  float step = 0;        // s / L
};

Levels MakeLevels(float scale, uint32_t bits) {
  Levels levels;
  levels.most = (1 << (bits - 1)) - 1;
  const auto most = static_cast<float>(levels.most);
  // L / s would overflow where s is denormal.
  if (scale < 0x1p-100f) levels.lift = 0x1p100f;
  if (scale > 0) levels.inverse = most / (scale * levels.lift);
  levels.step = scale / most;
  return levels;
}

// The level of c, -L to L.
[[gnu::always_inline]] inline int32_t Level(float c, uint32_t draw, const Levels& levels) {
  const uint32_t word = std::bit_cast<uint32_t>(c);
  const float magnitude = std::bit_cast<float>(word & 0x7fffffff) * levels.lift * levels.inverse;
  const auto below = static_cast<int32_t>(magnitude);
  const float rest = magnitude - static_cast<float>(below);
  const float uniform = static_cast<float>(static_cast<int32_t>(draw >> 8)) * 0x1p-24f;
  int32_t level = below + (uniform < rest ? 1 : 0);
  level = level > levels.most ? levels.most : level;
  const int32_t sign = static_cast<int32_t>(word) >> 31;
  return (level ^ sign) - sign;
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

// Fields (level + L) a byte each; c is read from error, where the new error is left.
FORESHARD_ISA_INLINE void RoundWithErrorBody(float* __restrict error, uint32_t n,
                                             const Levels& given, uint64_t key,
                                             uint8_t* __restrict fields) {
  const Levels levels = given;
  for (uint32_t i = 0; i < n; ++i) {
    const float c = error[i];
    const int32_t level = Level(c, CodecDraw(key, i), levels);
    fields[i] = static_cast<uint8_t>(level + levels.most);
    error[i] = c - static_cast<float>(level) * levels.step;
  }
}
FORESHARD_ISA_VARIANTS(void, RoundWithError,
                       (float* error, uint32_t n, const Levels& levels, uint64_t key,
                        uint8_t* fields),
                       (error, n, levels, key, fields))

FORESHARD_ISA_INLINE void RoundPlainBody(const float* __restrict values, uint32_t n,
                                         const Levels& given, uint64_t key,
                                         uint8_t* __restrict fields) {
  const Levels levels = given;
  for (uint32_t i = 0; i < n; ++i) {
    fields[i] = static_cast<uint8_t>(Level(values[i], CodecDraw(key, i), levels) + levels.most);
  }
}
FORESHARD_ISA_VARIANTS(void, RoundPlain,
                       (const float* values, uint32_t n, const Levels& levels, uint64_t key,
                        uint8_t* fields),
                       (values, n, levels, key, fields))

FORESHARD_ISA_INLINE void ScaleFieldsBody(const uint8_t* __restrict fields, uint32_t n, int32_t most,
                                          float step, float* __restrict out) {
  for (uint32_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(static_cast<int32_t>(fields[i]) - most) * step;
  }
}
FORESHARD_ISA_VARIANTS(void, ScaleFields,
                       (const uint8_t* fields, uint32_t n, int32_t most, float step, float* out),
                       (fields, n, most, step, out))

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
  const uint64_t field = (uint64_t{1} << bits) - 1;
  const uint64_t pair = (uint64_t{1} << 2 * bits) - 1;
  const uint64_t half = (uint64_t{1} << 4 * bits) - 1;
  word = (word & half) | (word & half << 4 * bits) << (32 - 4 * bits);
  word = (word & pair * 0x0000000100000001) |
         (word & (pair * 0x0000000100000001) << 2 * bits) << (16 - 2 * bits);
  return (word & field * 0x0001000100010001) |
         (word & (field * 0x0001000100010001) << bits) << (8 - bits);
}

constexpr uint32_t PackedBytes(uint32_t elements, uint32_t bits) { return (elements * bits + 7) / 8; }

// `fields` has room to the next multiple of 8; what it has beyond n must be zero.
void Pack(const uint8_t* fields, uint32_t n, uint32_t bits, uint8_t* out) {
  uint32_t at = 0;
  uint64_t group;
  // Whole words as long as they fit: what they write too far, the next ones overwrite.
  for (; at / 8 * bits + sizeof group <= PackedBytes(n, bits); at += 8) {
    std::memcpy(&group, fields + at, sizeof group);
    group = Join(group, bits);
    std::memcpy(out + at / 8 * bits, &group, sizeof group);
  }
  for (; at < n; at += 8) {
    std::memcpy(&group, fields + at, sizeof group);
    group = Join(group, bits);
    std::memcpy(out + at / 8 * bits, &group, std::min(bits, PackedBytes(n, bits) - at / 8 * bits));
  }
}

// Writes a multiple of 8 fields; those beyond n are what the padding says.
void Unpack(const uint8_t* in, uint32_t n, uint32_t bits, uint8_t* fields) {
  uint32_t at = 0;
  uint64_t group;
  for (; at / 8 * bits + sizeof group <= PackedBytes(n, bits); at += 8) {
    std::memcpy(&group, in + at / 8 * bits, sizeof group);
    group = Part(group, bits);
    std::memcpy(fields + at, &group, sizeof group);
  }
  for (; at < n; at += 8) {
    group = 0;
    std::memcpy(&group, in + at / 8 * bits, std::min(bits, PackedBytes(n, bits) - at / 8 * bits));
    group = Part(group, bits);
    std::memcpy(fields + at, &group, sizeof group);
  }
}

float ScaleOf(const uint8_t* in) {
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
    const float scale = std::min(std::bit_cast<float>(largest), kMaxScale);
    const Levels levels = MakeLevels(scale, bits_);
    alignas(64) uint8_t fields[kMaxBlockElements];
    std::memset(fields + elements / 8 * 8, 0, elements % 8 == 0 ? 0 : 8);
    if (error == nullptr) {
      RoundPlain(values, elements, levels, key.own, fields);
    } else {
      RoundWithError(error, elements, levels, key.own, fields);
    }
    std::memcpy(out, &scale, sizeof scale);
    Pack(fields, elements, bits_, out + sizeof scale);
  }

  const float* DecodeBlock(const uint8_t* in, uint32_t elements, const CodecKey&,
                           float* scratch) const override {
    const Levels levels = MakeLevels(ScaleOf(in), bits_);
    alignas(64) uint8_t fields[kMaxBlockElements];
    Unpack(in + sizeof(float), elements, bits_, fields);
    ScaleFields(fields, elements, levels.most, levels.step, scratch);
    return scratch;
  }

  std::string_view Fault(const uint8_t* in, uint32_t elements) const override {
    const float scale = ScaleOf(in);
    if (const std::string_view fault = ScaleFault(scale); !fault.empty()) return fault;
    if (scale > kMaxScale) return kLargeScale;
    alignas(64) uint8_t fields[kMaxBlockElements];
    Unpack(in + sizeof(float), elements, bits_, fields);
    if (LargestField(fields, elements) > 2 * MakeLevels(scale, bits_).most) return kBadLevel;
    const uint32_t used = elements * bits_ % 8;
    if (used != 0 && in[BlockBytes(elements) - 1] >> used != 0) return kPadding;
    return {};
  }

  void EncodeBlockReference(const float* values, float* error, uint32_t elements,
                            const CodecKey& key, uint8_t* out) const override {
    float scale = 0;
    for (uint32_t i = 0; i < elements; ++i) {
      const float c = error == nullptr ? values[i] : values[i] + error[i];
      scale = std::max(scale, std::fabs(c));
    }
    scale = std::min(scale, kMaxScale);
    const Levels levels = MakeLevels(scale, bits_);
    std::memset(out, 0, BlockBytes(elements));
    std::memcpy(out, &scale, sizeof scale);
    for (uint32_t i = 0; i < elements; ++i) {
      const float c = error == nullptr ? values[i] : values[i] + error[i];
      const int32_t level = Level(c, CodecDraw(key.own, i), levels);
      for (uint32_t bit = 0; bit < bits_; ++bit) {
        const uint32_t place = i * bits_ + bit;
        const uint32_t set = static_cast<uint32_t>(level + levels.most) >> bit & 1;
        out[sizeof scale + place / 8] |= static_cast<uint8_t>(set << place % 8);
      }
      if (error != nullptr) error[i] = c - static_cast<float>(level) * levels.step;
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
