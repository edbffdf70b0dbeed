#include "common/core/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/core/json_text.h"
#include "common/core/safetensors_header.h"

namespace foreshard {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr char kMetadata[] = "__metadata__";
// Of values, at a time.
constexpr uint64_t kPieceElements = 1 << 18;

float FromHalf(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 31;
  const uint32_t fraction = half & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) {
    // Zero, or a denormal: fraction * 2^-24, which fp32 has as a normal number.
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

}  // namespace

absl::string_view ToString(SafetensorsType type) {
  switch (type) {
    case SafetensorsType::kF32:
      return "F32";
    case SafetensorsType::kF16:
      return "F16";
    case SafetensorsType::kBF16:
      return "BF16";
    default:
      return "I64";
  }
}

uint64_t BytesOf(SafetensorsType type) {
  if (type == SafetensorsType::kI64) return 8;
  return type == SafetensorsType::kF32 ? 4 : 2;
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    std::vector<SafetensorsTensor> tensors, const std::map<std::string, std::string>& metadata,
    AppendFunction append) {
  std::string header = "{";
  const auto separate = [&] {
    if (header.size() > 1) header += ',';
  };
  if (!metadata.empty()) {
    absl::StrAppend(&header, "\"", kMetadata, "\":{");
    bool first = true;
    for (const auto& [key, value] : metadata) {
      const auto quoted_key = JsonText(key), quoted_value = JsonText(value);
      if (!quoted_key.ok()) return quoted_key.status();
      if (!quoted_value.ok()) return quoted_value.status();
      absl::StrAppend(&header, first ? "" : ",", *quoted_key, ":", *quoted_value);
      first = false;
    }
    header += '}';
  }
  SafetensorsWriter writer;
  std::set<absl::string_view> names;
  uint64_t end = 0;
  for (SafetensorsTensor& tensor : tensors) {
    const auto quoted = JsonText(tensor.name);
    if (!quoted.ok()) return quoted.status();
    if (tensor.name.empty() || tensor.name == kMetadata) {
      return absl::InvalidArgumentError(
          absl::StrCat("safetensors: a tensor cannot be named ", *quoted, "; give it another name"));
    }
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("safetensors: two tensors are named ", *quoted, "; names must differ"));
    }
    const auto elements = internal::SafetensorsElements(tensor.shape);
    if (!elements.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("safetensors: tensor ", *quoted, ": ", elements.status().message()));
    }
    tensor.elements = *elements;
    tensor.offset = end;
    end += tensor.elements * BytesOf(tensor.type);
    if (end > internal::kMaxSafetensorsBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("safetensors: with tensor ", *quoted, " the file is too large"));
    }
    separate();
    absl::StrAppend(&header, *quoted, ":{\"dtype\":\"", ToString(tensor.type), "\",\"shape\":[");
    for (size_t k = 0; k < tensor.shape.size(); ++k) {
      absl::StrAppend(&header, k == 0 ? "" : ",", tensor.shape[k]);
    }
    absl::StrAppend(&header, "],\"data_offsets\":[", tensor.offset, ",", end, "]}");
  }
  header += '}';
  // Values begin aligned.
  header.append((8 - header.size() % 8) % 8, ' ');
  if (header.size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("safetensors: a header of ", header.size(),
                                                   " bytes; readers take ", kMaxSafetensorsHeaderBytes,
                                                   " at most: fewer tensors a file"));
  }
  ByteWriter front;
  front.Put<uint64_t>(header.size());
  const uint64_t values_at = kLengthBytes + header.size();
  for (SafetensorsTensor& tensor : tensors) tensor.offset += values_at;
  const std::string bytes = absl::StrCat(front.data(), header);
  if (absl::Status status = append(AsBytes(bytes)); !status.ok()) return status;
  writer.tensors_ = std::move(tensors);
  writer.append_ = std::move(append);
  writer.left_ = end;
  writer.file_bytes_ = values_at + end;
  return writer;
}

absl::Status SafetensorsWriter::Append(ByteSpan values) {
  if (values.size() > left_) {
    return absl::FailedPreconditionError(absl::StrCat("safetensors: ", values.size(),
                                                      " bytes of values where ", left_,
                                                      " are left; give what the shapes say"));
  }
  if (absl::Status status = append_(values); !status.ok()) return status;
  left_ -= values.size();
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  if (left_ == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("safetensors: ", left_, " bytes of values are missing; give what the shapes say"));
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(ReadFunction read, uint64_t file_bytes,
                                                          std::string name) {
  const auto at_file = [&](absl::StatusCode code, const auto&... what) {
    return absl::Status(code, absl::StrCat(name, ": ", what...));
  };
  if (file_bytes < kLengthBytes) {
    return at_file(absl::StatusCode::kDataLoss, "a file of ", file_bytes,
                   " bytes is no safetensors file, or is cut");
  }
  const auto front = read(0, kLengthBytes);
  if (!front.ok()) return front.status();
  const auto header_bytes = ByteReader(*front).Get<uint64_t>();
  if (header_bytes > kMaxSafetensorsHeaderBytes || header_bytes < 2) {
    return at_file(absl::StatusCode::kInvalidArgument, "a header of ", header_bytes,
                   " bytes: no safetensors file has that (2 to ", kMaxSafetensorsHeaderBytes, ")");
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    return at_file(absl::StatusCode::kDataLoss, "the header says it has ", header_bytes, " bytes, and ",
                   file_bytes - kLengthBytes, " are there: the file is cut");
  }
  const auto header = read(kLengthBytes, header_bytes);
  if (!header.ok()) return header.status();
  if (front->size() != kLengthBytes || header->size() != header_bytes) {
    return at_file(absl::StatusCode::kDataLoss, "it became shorter while it was read");
  }
  auto parsed = internal::ParseSafetensorsHeader(*header, file_bytes - kLengthBytes - header_bytes);
  if (!parsed.ok()) return at_file(parsed.status().code(), parsed.status().message());
  SafetensorsReader reader;
  reader.read_ = std::move(read);
  reader.name_ = std::move(name);
  reader.tensors_ = std::move(parsed->tensors);
  reader.metadata_ = std::move(parsed->metadata);
  for (SafetensorsTensor& tensor : reader.tensors_) tensor.offset += kLengthBytes + header_bytes;
  return reader;
}

const SafetensorsTensor* SafetensorsReader::Find(absl::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const SafetensorsTensor& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

absl::Status SafetensorsReader::ReadFloats(const SafetensorsTensor& tensor, uint64_t first,
                                           absl::Span<float> out) const {
  if (first > tensor.elements || out.size() > tensor.elements - first) {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": elements ", first, " to ", first + out.size(),
                                                   " of '", tensor.name, "', which has ", tensor.elements));
  }
  if (tensor.type == SafetensorsType::kI64) {
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ": '", tensor.name, "' has the type I64; F32, F16 and BF16 hold parameters"));
  }
  const uint64_t width = BytesOf(tensor.type);
  for (uint64_t done = 0; done < out.size();) {
    const uint64_t now = std::min<uint64_t>(kPieceElements, out.size() - done);
    const auto bytes = read_(tensor.offset + (first + done) * width, now * width);
    if (!bytes.ok()) return bytes.status();
    if (bytes->size() != now * width) {
      return absl::DataLossError(
          absl::StrCat(name_, ": it became shorter while '", tensor.name, "' was read"));
    }
    if (tensor.type == SafetensorsType::kF32) {
      std::memcpy(&out[done], bytes->data(), bytes->size());
    } else {
      for (uint64_t k = 0; k < now; ++k) {
        uint16_t half;
        std::memcpy(&half, bytes->data() + 2 * k, sizeof half);
        out[done + k] = tensor.type == SafetensorsType::kF16 ? FromHalf(half)
                                                             : std::bit_cast<float>(uint32_t{half} << 16);
      }
    }
    done += now;
  }
  return absl::OkStatus();
}

}  // namespace foreshard
