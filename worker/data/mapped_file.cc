#include "worker/data/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace foreshard {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path,
                                            absl::FunctionRef<absl::Status(int error)> problem,
                                            absl::FunctionRef<absl::Status(uint64_t bytes)> check) {
  const int opened = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return problem(errno);
  struct stat about = {};
  const int stated = fstat(opened, &about);
  const uint64_t bytes = stated == 0 ? static_cast<uint64_t>(about.st_size) : 0;
  if (absl::Status wrong = check(bytes); !wrong.ok()) {
    close(opened);
    return wrong;
  }
  void* const mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, opened, 0);
  const int error = errno;
  close(opened);
  if (mapped == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": can't be mapped into memory: ", std::strerror(error)));
  }
  madvise(mapped, bytes, MADV_RANDOM);
  return MappedFile(static_cast<const uint8_t*>(mapped), bytes);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), bytes_);
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path,
                                          absl::FunctionRef<absl::Status(int error)> problem) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return problem(errno);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file && !file.eof()) return problem(EIO);
  return std::move(text).str();
}

}  // namespace foreshard
