// Safetensors files (https://github.com/huggingface/safetensors, format of version 0.3 and
// later), as PyTorch's and Hugging Face's loaders read and write them.
//
//   u64 little-endian    length of the header, at most 100,000,000
//   header               JSON: {"__metadata__": {"key": "text"}, "name": {"dtype": "F32",
//                        "shape": [2, 3], "data_offsets": [0, 24]}, ...}, then spaces
//   values               the tensors', little-endian, row-major, offsets counted from here,
//                        one behind the other without holes, to the end of the file
//
//   auto writer = SafetensorsWriter::Create(tensors, {{"format", "pt"}}, append).value();
//   RETURN_IF_ERROR(writer.Append(values));   // of all tensors, in order, in any parts
//   RETURN_IF_ERROR(writer.Finish());
//
//   auto reader = SafetensorsReader::Open(read, file_bytes, path).value();
//   RETURN_IF_ERROR(reader.ReadFloats(*reader.Find("conv1.weight"), 0, absl::MakeSpan(values)));
//
// A file comes from whoever wrote it, so the reader believes nothing: INVALID_ARGUMENT names
// what is wrong with a header; DATA_LOSS: the file is shorter than its header says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/core/bytes.h"

namespace foreshard {

// I64 is what PyTorch counts in (num_batches_tracked); ReadFloats does not read it.
enum class SafetensorsType : uint8_t { kF32, kF16, kBF16, kI64 };

// "F32", "F16", "BF16", "I64".
absl::string_view ToString(SafetensorsType type);
// Of one element.
uint64_t BytesOf(SafetensorsType type);

struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<uint64_t> shape;  // empty: a scalar
  uint64_t offset = 0;          // of its first byte in the file; the writer sets it
  uint64_t elements = 0;        // the shape's product; the writer sets it
};

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr size_t kMaxSafetensorsDimensions = 64;

// Thread-compatible.
class SafetensorsWriter {
 public:
  using AppendFunction = std::function<absl::Status(ByteSpan)>;

  // Writes the header. Tensors lie in the file in the order given. INVALID_ARGUMENT: a name
  // that is empty, repeated, no UTF-8 or "__metadata__"; a shape too large; too many tensors.
  static absl::StatusOr<SafetensorsWriter> Create(std::vector<SafetensorsTensor> tensors,
                                                  const std::map<std::string, std::string>& metadata,
                                                  AppendFunction append);

  // The next values. FAILED_PRECONDITION: more than the tensors have.
  absl::Status Append(ByteSpan values);
  // FAILED_PRECONDITION: some are missing.
  absl::Status Finish();

  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  std::vector<SafetensorsTensor> tensors_;
  AppendFunction append_;
  uint64_t file_bytes_ = 0;
  uint64_t left_ = 0;
};

// Thread-compatible.
class SafetensorsReader {
 public:
  // `bytes` from this offset of the file on.
  using ReadFunction = std::function<absl::StatusOr<std::string>(uint64_t offset, uint64_t bytes)>;

  // Reads and checks the header. `name`: the file's, for messages.
  static absl::StatusOr<SafetensorsReader> Open(ReadFunction read, uint64_t file_bytes, std::string name);

  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }  // by offset
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Null where there is none.
  const SafetensorsTensor* Find(absl::string_view name) const;
  // Its elements from `first` on, as fp32, exactly: each value of F16 and BF16 is one.
  // INVALID_ARGUMENT: elements that it has not, or I64.
  absl::Status ReadFloats(const SafetensorsTensor& tensor, uint64_t first, absl::Span<float> out) const;

 private:
  ReadFunction read_;
  std::string name_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace foreshard
