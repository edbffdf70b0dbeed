// The other side of the exchange benchmarks: servers in processes of their own, so
// that no poller or allocator is shared with the client that is measured.
//
//   auto echo = Peer::Start(ServeEcho).value();
//   ... MakeChannel(echo->address()) ...
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace foreshard::bench {

// Serves until `wait` returns, having told `ready` its address once.
using ServeFunction = std::function<void(const std::function<void(const std::string&)>& ready,
                                         const std::function<void()>& wait)>;

// A forked process, or a thread where this process has used gRPC already (a
// process that has cannot be forked and use it again).
class Peer {
 public:
  // INTERNAL when the server does not come up.
  static absl::StatusOr<std::unique_ptr<Peer>> Start(const ServeFunction& serve);
  ~Peer();  // ends it

  const std::string& address() const { return address_; }
  bool is_process() const { return process_ > 0; }

 private:
  Peer() = default;
  std::string address_;
  int control_ = -1;  // closing it ends the server
  int process_ = 0;
  std::thread thread_;
};

// A TCP socket that sends back what it gets, one connection at a time.
void ServeTcpEcho(const std::function<void(const std::string&)>& ready,
                  const std::function<void()>& wait);

// Passes TCP on to `target` ("host:port") and back, each way at so many bytes a second: a
// slow network between two processes of this machine.
void ServeLink(const std::string& target, double bytes_per_second,
               const std::function<void(const std::string&)>& ready, const std::function<void()>& wait);

// A connection to "host:port" over IPv4 that sends at once; -1 where there is none.
int ConnectTcp(const std::string& address);

// gRPC with the project's channel settings: Exchange, raw. A request begins with 8
// bytes, the length of the wanted reply; where that is the request's own, the
// reply is the request.
void ServeEcho(const std::function<void(const std::string&)>& ready,
               const std::function<void()>& wait);

}  // namespace foreshard::bench
