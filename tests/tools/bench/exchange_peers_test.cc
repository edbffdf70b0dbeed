#include "tools/bench/exchange_peers.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace foreshard::bench {
namespace {

// Sends the bytes and reads as many back.
std::vector<char> ThereAndBack(const std::string& address, const std::vector<char>& bytes) {
  std::vector<char> back(bytes.size());
  const int connection = ConnectTcp(address);
  EXPECT_GE(connection, 0);
  std::thread sender([&] {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(connection, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
    }
  });
  size_t got = 0;
  while (got < back.size()) {
    const ssize_t n = recv(connection, back.data() + got, back.size() - got, 0);
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  sender.join();
  close(connection);
  back.resize(got);
  return back;
}

// Whatever comes through comes whole, and no faster than it may: sleeping can be longer than
// asked for, never shorter.
TEST(ServeLink, PassesBytesOnAtItsRate) {
  constexpr double kBytesPerSecond = 4e6;
  constexpr double kSlackSeconds = 0.01;
  auto echo = Peer::Start(ServeTcpEcho);
  ASSERT_TRUE(echo.ok()) << echo.status();
  auto link = Peer::Start([target = (*echo)->address()](const auto& ready, const auto& wait) {
    ServeLink(target, kBytesPerSecond, ready, wait);
  });
  ASSERT_TRUE(link.ok()) << link.status();
  std::vector<char> bytes(800'000);
  for (size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<char>(k * 2654435761u >> 13);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(ThereAndBack((*link)->address(), bytes) == bytes);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_GE(seconds.count(), 0.2 - kSlackSeconds);
  EXPECT_TRUE(ThereAndBack((*echo)->address(), bytes) == bytes);
}

TEST(ServeLink, EndsAConnectionToNobody) {
  auto link = Peer::Start([](const auto& ready, const auto& wait) {
    ServeLink("127.0.0.1:1", 1e6, ready, wait);
  });
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_TRUE(ThereAndBack((*link)->address(), std::vector<char>(10)).empty());
}

TEST(ConnectTcp, RefusesWhatIsNoAddress) {
  for (const char* bad : {"", "localhost", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:1"}) {
    EXPECT_EQ(ConnectTcp(bad), -1) << bad;
  }
}

}  // namespace
}  // namespace foreshard::bench
