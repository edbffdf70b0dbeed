// The whole answer of a server on 127.0.0.1 to one HTTP request; "" for none.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace foreshard {

// `request`: every byte that is sent.
inline std::string HttpAsk(const std::string& address, const std::string& request) {
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &peer.sin_addr);
  std::string reply;
  if (connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof peer) == 0) {
    // A server that has heard enough may hang up before the end.
    EXPECT_GT(send(fd, request.data(), request.size(), MSG_NOSIGNAL), 0);
    shutdown(fd, SHUT_WR);
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) reply.append(buffer, n);
  }
  close(fd);
  return reply;
}

inline std::string HttpGet(const std::string& address, const std::string& path) {
  return HttpAsk(address, "GET " + path + " HTTP/1.0\r\nConnection: close\r\n\r\n");
}

}  // namespace foreshard
