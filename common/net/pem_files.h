// Looks at the PEM files that TLS is to use before anything listens or connects, so that
// what is wrong with them is said at the start, by file, rather than as a failed handshake.
//
//   const PemFiles files = {.certificate = "alpha/certificate.pem", .key = "alpha/key.pem",
//                           .ca = "alpha/ca.pem"};
//   RETURN_IF_ERROR(CheckPemFiles(files, TlsSide::kServer).status());
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace foreshard {

struct PemFiles {
  std::string certificate;  // this program's own, followed by intermediate ones if any
  std::string key;          // its private key
  std::string ca;           // who may sign the other side's
};

// What a program's certificate is for; kBoth: it listens and calls.
enum class TlsSide { kServer, kClient, kBoth };

// When the first of this program's own certificates ends. INVALID_ARGUMENT names flag and
// file: missing, unreadable, no PEM, a key with a pass phrase or of another certificate or that
// everybody can read, a certificate that has expired, is not valid yet, or is not for `side`.
absl::StatusOr<absl::Time> CheckPemFiles(const PemFiles& files, TlsSide side,
                                         absl::Time now = absl::Now());

}  // namespace foreshard
