#include "common/net/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "openssl/crypto.h"

namespace foreshard {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

absl::StatusOr<std::string> ReadSmallFile(const std::string& flag, const std::string& path,
                                          bool secret) {
  const auto refuse = [&](auto... why) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": ", why...));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return refuse("cannot be opened: ", std::strerror(errno));
  struct stat state;
  const bool known = fstat(file, &state) == 0;
  std::string content;
  int failure = known ? 0 : errno;
  if (known && S_ISREG(state.st_mode)) {
    char buffer[4096];
    ssize_t got = 0;
    while (content.size() <= kMaxFileBytes && (got = read(file, buffer, sizeof buffer)) > 0) {
      content.append(buffer, static_cast<size_t>(got));
    }
    if (got < 0) failure = errno;
    OPENSSL_cleanse(buffer, sizeof buffer);
  }
  close(file);
  if (failure != 0) return refuse("cannot be read: ", std::strerror(failure));
  if (!S_ISREG(state.st_mode)) return refuse("is no regular file");
  if (content.size() > kMaxFileBytes) return refuse("is larger than 1 MiB");
  if (secret && (state.st_mode & S_IROTH) != 0) {
    return refuse(absl::StrFormat(
        "everybody on this machine can read it (mode %04o), so it is no secret; say chmod 600 (or "
        "640, for the group) and, where others may have read it, make a new one",
        state.st_mode & 07777));
  }
  return content;
}

}  // namespace

absl::StatusOr<std::string> ReadSecretFile(const std::string& flag, const std::string& path) {
  return ReadSmallFile(flag, path, true);
}

absl::StatusOr<std::string> ReadPublicFile(const std::string& flag, const std::string& path) {
  return ReadSmallFile(flag, path, false);
}

absl::StatusOr<std::string> LoadJobToken(const std::string& path) {
  constexpr char kFlag[] = "--token-file";
  absl::StatusOr<std::string> content = ReadSecretFile(kFlag, path);
  if (!content.ok()) return content.status();
  while (!content->empty() && (content->back() == '\n' || content->back() == '\r')) {
    content->pop_back();
  }
  if (!std::all_of(content->begin(), content->end(), [](char c) { return c > ' ' && c < 127; })) {
    return absl::InvalidArgumentError(absl::StrCat(
        kFlag, ": ", path, ": has something beside one line of printable characters without "
        "spaces; make one with: openssl rand -hex 32"));
  }
  if (content->size() < kMinTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        kFlag, ": ", path, ": a token of ", content->size(), " characters can be guessed; it needs ",
        kMinTokenBytes, " or more: make one with: openssl rand -hex 32"));
  }
  return content;
}

bool SameSecret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace foreshard
