// The one place where channels and servers get their limits, keepalive and
// credentials, so that both sides always match.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/credentials.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server_builder.h"

namespace foreshard {

// Largest message either side takes: a segment in fp32 and its header, with room.
inline constexpr int kMaxMessageBytes = 64 << 20;

// An own TCP connection to `address` ("host:port", "[v6]:port"); connects lazily. Where it may
// lead is Credentials::CheckCall's to say, before.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const Credentials& credentials = {});

// Limits, keepalive permission and HTTP/2 settings that MakeChannel expects.
// Messages above max_receive_bytes are refused before they are read.
void ConfigureServer(grpc::ServerBuilder& builder, int max_receive_bytes = kMaxMessageBytes);

// Whether only this machine reaches it: 127.0.0.0/8, ::1, localhost. INVALID_ARGUMENT where it
// is no address.
absl::StatusOr<bool> IsLoopbackAddress(const std::string& address);

// For what is never encrypted, /metrics: OK when `address` is loopback, or `insecure` was said
// aloud. Otherwise INVALID_ARGUMENT that says why and what to do.
absl::Status CheckBindAddress(const std::string& address, bool insecure);

// "a:1,b:2" to its parts; INVALID_ARGUMENT for an empty list or part, a missing
// or bad port.
absl::StatusOr<std::vector<std::string>> ParseAddresses(const std::string& list);

// Deadline of a call that moves `bytes` in all: `base` and 1 s for each MiB.
void SetDeadline(grpc::ClientContext& context, uint64_t bytes,
                 absl::Duration base = absl::Seconds(30));

// The address with another port: what was bound where it said port 0.
std::string WithPort(const std::string& address, int port);

}  // namespace foreshard
