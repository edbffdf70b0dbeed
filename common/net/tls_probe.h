// Why no connection comes about, in words: gRPC says of most failed handshakes only that the
// peer went away.
//
//   if (absl::IsUnavailable(status)) message += ProbeTls("alpha:7000", &files);
//   // "its certificate has expired (2024-05-01 12:00 UTC); renew it there: tools/make-..."
#pragma once

#include <string>

#include "common/net/pem_files.h"

namespace foreshard {

// Connects to `address` ("host:port") once more, at most about 3 s, shakes hands as a client
// with these files (null: as one without TLS, which only looks whether TLS is what the server
// speaks), and hangs up. "" where that works, or where nobody takes the connection at all.
// Blocks; thread-safe.
std::string ProbeTls(const std::string& address, const PemFiles* files);

}  // namespace foreshard
