// A file's bytes in memory, mapped, for reading at random.
//
//   auto shard = MappedFile::Open(path, [&](int error) { return Problem(error, path); },
//                                 [&](uint64_t bytes) { return CheckLength(bytes); });
//   ... shard->data(), shard->bytes() ...
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foreshard {

// Thread-safe but for moving.
class MappedFile {
 public:
  // `problem`: what an errno of opening it is to the caller. `check`: of its length, before it is
  // mapped; it must refuse 0, which cannot be. RESOURCE_EXHAUSTED: it cannot be mapped.
  static absl::StatusOr<MappedFile> Open(const std::string& path, absl::FunctionRef<absl::Status(int error)> problem,
                                         absl::FunctionRef<absl::Status(uint64_t bytes)> check);
  MappedFile(MappedFile&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  MappedFile(const uint8_t* data, uint64_t bytes) : data_(data), bytes_(bytes) {}

  const uint8_t* data_;
  uint64_t bytes_;
};

// All bytes of a file; `problem` as above.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, absl::FunctionRef<absl::Status(int error)> problem);

}  // namespace foreshard
