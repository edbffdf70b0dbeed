// HTTP/2 and gRPC written by hand, for peers that do what no library would.
//
//   RawConnection connection("127.0.0.1:7000");
//   connection.Send(kPreface + Frame(0, 4, 0, 0, "") + RequestHeaders(kExchange));
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/core/random.h"

namespace foreshard {

inline constexpr char kExchange[] = "/foreshard.v1.ParameterServer/Exchange";
inline constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline std::string RandomBytes(uint64_t key, size_t count) {
  std::string bytes(count, '\0');
  for (size_t k = 0; k < count; ++k) bytes[k] = static_cast<char>(RandomBits(41, key, k));
  return bytes;
}

// A connection without gRPC.
class RawConnection {
 public:
  explicit RawConnection(const std::string& address) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    const std::vector<std::string> parts = absl::StrSplit(address, ':');
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(parts.back())));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
  }
  ~RawConnection() { close(socket_); }
  RawConnection(const RawConnection&) = delete;

  bool connected() const { return connected_; }
  // Until all is sent, the peer has closed, or it takes nothing for 200 ms.
  void Send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      pollfd ready = {.fd = socket_, .events = POLLOUT};
      if (poll(&ready, 1, 200) <= 0) return;
      const ssize_t some = send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (some <= 0) return;
      sent += static_cast<size_t>(some);
    }
  }

 private:
  int socket_;
  bool connected_ = false;
};

inline std::string Frame(uint32_t length, uint8_t type, uint8_t flags, uint32_t stream, const std::string& content) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(length >> shift);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
  return frame + content;
}

// HPACK without compression: literals that are not indexed.
inline std::string RequestHeaders(const std::string& path) {
  std::string block;
  const auto add = [&](const std::string& name, const std::string& value) {
    block += '\0';
    block += static_cast<char>(name.size()) + name;
    block += static_cast<char>(value.size()) + value;
  };
  add(":method", "POST");
  add(":scheme", "http");
  add(":path", path);
  add(":authority", "localhost");
  add("te", "trailers");
  add("content-type", "application/grpc");
  return Frame(static_cast<uint32_t>(block.size()), 1, 4, 1, block);
}

// The same frame on another stream.
inline std::string OnStream(uint32_t stream, std::string frame) {
  return frame.replace(5, 4, Frame(0, 0, 0, stream, "").substr(5, 4));
}

// gRPC's prefix of a message: not compressed, so many bytes.
inline std::string MessagePrefix(uint32_t bytes) {
  std::string prefix(1, '\0');
  for (const int shift : {24, 16, 8, 0}) prefix += static_cast<char>(bytes >> shift);
  return prefix;
}

}  // namespace foreshard
