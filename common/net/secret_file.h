// Files that hold secrets: private keys and job tokens. No error text ever has a byte of
// what is in them.
//
//   absl::StatusOr<std::string> token = LoadJobToken("certificates/token");
//   if (token.ok() && SameSecret(*token, received)) ...
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace foreshard {

// A shorter secret could be guessed.
inline constexpr size_t kMinTokenBytes = 16;

// The whole of a regular file of at most 1 MiB that only its owner and its group can read.
// INVALID_ARGUMENT names `flag` ("--tls-key"), the file and the remedy. Others' right to read
// is an error, not a warning: what they have read stays theirs when the warning is noticed.
// The group's is none, since service managers and Kubernetes hand out secrets by group.
absl::StatusOr<std::string> ReadSecretFile(const std::string& flag, const std::string& path);

// As ReadSecretFile, without that condition: certificates are no secrets.
absl::StatusOr<std::string> ReadPublicFile(const std::string& flag, const std::string& path);

// A job token: one line of at least kMinTokenBytes printable ASCII characters without spaces,
// the end of line not counted.
absl::StatusOr<std::string> LoadJobToken(const std::string& path);

// Whether both are the same, in a time that tells nothing but their lengths.
bool SameSecret(std::string_view a, std::string_view b);

}  // namespace foreshard
