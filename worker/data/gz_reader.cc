#include "worker/data/gz_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace foreshard {
namespace {

constexpr uint64_t kReadBytes = 1 << 24;
constexpr uint64_t kFirstReadBytes = 1 << 16;

}  // namespace

absl::StatusOr<std::unique_ptr<GzReader>> GzReader::Open(const std::string& path,
                                                         const char* what) {
  errno = 0;
  const gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) {
    const int error = errno;
    const std::string text =
        absl::StrCat(path, ": cannot be opened for ", what, " (", std::strerror(error),
                     "); check data.directory and the file names");
    return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(text)
                                               : absl::InvalidArgumentError(text);
  }
  gzbuffer(file, 1 << 18);
  return std::unique_ptr<GzReader>(new GzReader(path, file));
}

GzReader::~GzReader() { gzclose_r(file_); }

absl::StatusOr<uint64_t> GzReader::Read(void* to, uint64_t bytes) {
  uint64_t done = 0;
  while (done < bytes) {
    const auto piece = static_cast<unsigned>(std::min(bytes - done, kReadBytes));
    const int got = gzread(file_, static_cast<char*>(to) + done, piece);
    if (got < 0) return Problem();
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  // A gzip file cut off in the middle ends early with Z_BUF_ERROR only.
  int code = Z_OK;
  gzerror(file_, &code);
  if (code != Z_OK && code != Z_STREAM_END) return Problem();
  return done;
}

absl::StatusOr<uint64_t> GzReader::Append(uint64_t bytes, std::vector<uint8_t>* to) {
  uint64_t done = 0;
  while (done < bytes) {
    const uint64_t before = to->size();
    // Small files take little: what is read next is no more than what was there.
    const uint64_t piece = std::min({bytes - done, kReadBytes, std::max(done, kFirstReadBytes)});
    to->resize(before + piece);
    const auto got = Read(to->data() + before, piece);
    if (!got.ok()) return got.status();
    to->resize(before + *got);
    done += *got;
    if (*got < piece) break;
  }
  return done;
}

absl::Status GzReader::Problem() const {
  int code = Z_OK;
  const char* text = gzerror(file_, &code);
  if (code == Z_ERRNO) text = std::strerror(errno);
  return absl::DataLossError(absl::StrCat(path_, ": cannot be decompressed or read after byte ",
                                          static_cast<int64_t>(gztell(file_)), " (", text,
                                          "); fetch the file again"));
}

}  // namespace foreshard
