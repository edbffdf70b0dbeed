// Reads a file, plain or gzipped, with errors that name it.
//
//   auto reader = GzReader::Open(path, "images");
//   uint8_t header[16];
//   auto got = (*reader)->Read(header, sizeof header);   // fewer only at the end
#pragma once

#include <zlib.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foreshard {

class GzReader {
 public:
  // `what` it should hold, for the errors: NOT_FOUND, INVALID_ARGUMENT.
  static absl::StatusOr<std::unique_ptr<GzReader>> Open(const std::string& path, const char* what);
  ~GzReader();
  GzReader(const GzReader&) = delete;
  GzReader& operator=(const GzReader&) = delete;

  // Bytes read: fewer than asked only at the end. DATA_LOSS from zlib.
  absl::StatusOr<uint64_t> Read(void* to, uint64_t bytes);
  // Appends up to `bytes`, with memory that grows with what was read. Errors as Read.
  absl::StatusOr<uint64_t> Append(uint64_t bytes, std::vector<uint8_t>* to);

 private:
  GzReader(const std::string& path, gzFile file) : path_(path), file_(file) {}
  absl::Status Problem() const;

  std::string path_;
  gzFile file_;
};

}  // namespace foreshard
