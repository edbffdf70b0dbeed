#include "common/net/channel.h"

#include <arpa/inet.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace foreshard {
namespace {

constexpr int kKeepaliveMilliseconds = 30'000;
constexpr int kKeepaliveTimeoutMilliseconds = 10'000;
constexpr int kReconnectMilliseconds = 200;
// What one attempt may take: a far host, or a busy one.
constexpr int kConnectMilliseconds = 5'000;
constexpr int kMaxReconnectMilliseconds = 1'000;
// HTTP/2's default of 16 KiB makes hundreds of pieces of a segment; far larger
// frames leave the caches between being received and being read, and let small
// messages wait. Echoes of 4 to 64 MiB (measured, medians of interleaved runs): 0.97
// GB/s at 32 to 64 KiB, 0.85 at 128 to 256 KiB, 0.8 at 1 MiB, 0.65 at 16 MiB.
constexpr int kFrameBytes = 64 << 10;
// Calls under way on one connection; what they may have sent before anything is
// checked is this many messages.
constexpr int kMaxStreams = 64;

// Calls set(name, value) for every argument that both sides share.
template <typename Set>
void SetCommonArguments(Set set) {
  set(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, kMaxMessageBytes);
  set(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMaxMessageBytes);
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
  set(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMilliseconds);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMilliseconds);
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

struct HostPort {
  std::string host;
  int port = 0;
};

// "host:port" or "[v6]:port".
absl::StatusOr<HostPort> SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  HostPort parts;
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", address, "' has no port: write it as host:port"));
  }
  parts.host = address.substr(0, colon);
  if (absl::StartsWith(parts.host, "[") && absl::EndsWith(parts.host, "]")) {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  } else if (absl::StrContains(parts.host, ":")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "address '", address, "' looks like IPv6: put the host in brackets, as in [::1]:50051"));
  }
  if (parts.host.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", address, "' has no host: write it as host:port"));
  }
  const std::string port = address.substr(colon + 1);
  if (!absl::SimpleAtoi(port, &parts.port) || parts.port < 0 || parts.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("address '", address, "': port '", port,
                                                   "' is not a number from 0 to 65535"));
  }
  return parts;
}

bool IsLoopback(const std::string& host) {
  in_addr address;
  if (inet_pton(AF_INET, host.c_str(), &address) == 1) return ntohl(address.s_addr) >> 24 == 127;
  return host == "localhost" || host == "::1";
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const Credentials& credentials) {
  grpc::ChannelArguments arguments;
  SetCommonArguments([&](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMilliseconds);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Callers repeat their own calls; gRPC's retries would keep a copy of each message
  // and could not send large ones again anyway.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      address, credentials.Channel(), arguments, credentials.Interceptors());
}

void ConfigureServer(grpc::ServerBuilder& builder, int max_receive_bytes) {
  SetCommonArguments([&](const char* name, int value) {
    if (std::string_view(name) == GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH) {
      value = std::min(value, max_receive_bytes);
    }
    builder.AddChannelArgument(name, value);
  });
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  // Without this two servers could listen on one port, each getting half of the
  // connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

absl::StatusOr<bool> IsLoopbackAddress(const std::string& address) {
  const absl::StatusOr<HostPort> parts = SplitAddress(address);
  if (!parts.ok()) return parts.status();
  return IsLoopback(parts->host);
}

absl::Status CheckBindAddress(const std::string& address, bool insecure) {
  const absl::StatusOr<bool> loopback = IsLoopbackAddress(address);
  if (!loopback.ok()) return loopback.status();
  if (insecure || *loopback) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "refusing to serve metrics on ", address,
      ": other machines can reach it and there is no encryption. Listen on a loopback address such "
      "as 127.0.0.1, or say --insecure on a network that is yours alone"));
}

absl::StatusOr<std::vector<std::string>> ParseAddresses(const std::string& list) {
  if (list.empty()) {
    return absl::InvalidArgumentError(
        "the list of servers is empty: give host:port for each shard, separated by commas");
  }
  std::vector<std::string> addresses = absl::StrSplit(list, ',');
  for (const std::string& address : addresses) {
    if (address.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "list of servers '", list, "': there is nothing between two commas or at an end"));
    }
    const absl::StatusOr<HostPort> parts = SplitAddress(address);
    if (!parts.ok()) return parts.status();
    if (parts->port == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("address '", address, "': nothing can be reached at port 0"));
    }
  }
  return addresses;
}

void SetDeadline(grpc::ClientContext& context, uint64_t bytes, absl::Duration base) {
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(base) +
                       std::chrono::milliseconds(bytes * 1000 >> 20));
}

std::string WithPort(const std::string& address, int port) {
  return absl::StrCat(address.substr(0, address.rfind(':') + 1), port);
}

}  // namespace foreshard
