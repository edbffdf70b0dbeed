// Little-endian bytes, written and read with every length checked; and the
// pieces of a payload that arrived as several slices.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace foreshard {

using ByteSpan = absl::Span<const uint8_t>;

// The same bytes; valid as long as the text is.
inline ByteSpan AsBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// XXH3-64 of the bytes (libxxhash).
uint64_t Checksum(ByteSpan bytes);

// A payload as it lies in memory: pieces in order, none of them owned. Valid
// only while whatever owns the pieces is.
struct Payload {
  absl::Span<const ByteSpan> pieces;
  uint64_t bytes = 0;  // sum of the pieces' sizes
};

// XXH3-64 of the payload as if it were one run of bytes.
uint64_t Checksum(const Payload& payload);

// Reads a payload front to back in runs of a wanted length, without copying
// except where a run straddles two pieces.
//
//   PayloadReader reader(payload);
//   const uint8_t* run = reader.Next(516, straddle);   // straddle holds >= 516
class PayloadReader {
 public:
  explicit PayloadReader(const Payload& payload) : pieces_(payload.pieces), left_(payload.bytes) {}

  uint64_t left() const { return left_; }

  // `bytes` contiguous bytes: in place, or copied to `straddle`. nullptr when
  // fewer are left; then nothing is consumed.
  const uint8_t* Next(uint64_t bytes, uint8_t* straddle);

 private:
  absl::Span<const ByteSpan> pieces_;
  uint64_t offset_ = 0;  // in pieces_.front()
  uint64_t left_;
};

// Appends plain values and vectors. Only for trivially copyable values; the
// files are little-endian because every machine we build for is.
class ByteWriter {
 public:
  // `room`: its memory is taken again, what is in it is not kept.
  explicit ByteWriter(std::string room = {}) : out_(std::move(room)) { out_.clear(); }
  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    const auto* bytes = reinterpret_cast<const char*>(&value);
    out_.append(bytes, sizeof value);
  }
  void PutBytes(ByteSpan bytes) {
    Put<uint64_t>(bytes.size());
    out_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void PutString(std::string_view text) {
    PutBytes(AsBytes(text));
  }
  void PutFloats(absl::Span<const float> values) {
    PutBytes({reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)});
  }
  const std::string& data() const { return out_; }
  std::string Take() { return std::move(out_); }
  // What was written, with its checksum behind it: Unsealed's counterpart.
  std::string TakeSealed() {
    Put(Checksum(AsBytes(out_)));
    return Take();
  }

 private:
  std::string out_;
};

// The body of what TakeSealed made. DATA_LOSS, in words that go on from "... saved
// state": shorter than a checksum, or a body that does not match it.
absl::StatusOr<std::string_view> Unsealed(std::string_view bytes);

// The reading side. A bool that is neither 0 nor 1 is a failed read. After one everything reads as zero and ok() is
// false; check once at the end.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : bytes_(bytes) {}
  explicit ByteReader(std::string_view bytes) : bytes_(AsBytes(bytes)) {}

  template <typename T>
  T Get() {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    if constexpr (std::is_same_v<T, bool>) {
      const auto value = Get<uint8_t>();
      if (value > 1) failed_ = true;
      return value == 1;
    }
    T value{};
    if (Take(sizeof value)) std::memcpy(&value, bytes_.data() + at_ - sizeof value, sizeof value);
    return value;
  }
  // A view into the bytes given to the constructor.
  ByteSpan GetBytes() {
    const auto size = Get<uint64_t>();
    if (!Take(size)) return {};
    return bytes_.subspan(at_ - size, size);
  }
  std::string GetString() {
    const ByteSpan bytes = GetBytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // Fails unless exactly `values.size()` floats were written.
  void GetFloats(absl::Span<float> values) {
    const ByteSpan bytes = GetBytes();
    if (bytes.size() != values.size() * sizeof(float)) {
      failed_ = true;
      return;
    }
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  bool ok() const { return !failed_; }
  uint64_t left() const { return bytes_.size() - at_; }

 private:
  bool Take(uint64_t size) {
    if (failed_ || size > bytes_.size() - at_) {
      failed_ = true;
      return false;
    }
    at_ += size;
    return true;
  }

  ByteSpan bytes_;
  uint64_t at_ = 0;
  bool failed_ = false;
};

}  // namespace foreshard
