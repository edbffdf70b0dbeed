#include "tools/bench/exchange_peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/net/channel.h"
#include "foreshard/v1/exchange.grpc.pb.h"
#include "grpc/grpc.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace foreshard::bench {
namespace {

constexpr size_t kEchoBytes = 256 << 10;  // read and sent back at once
constexpr size_t kLinkBytes = 16 << 10;   // passed on at once
// A link that was idle, or woken late, may catch up with so much.
constexpr std::chrono::milliseconds kLinkSlack{2};

// The writing ends of this process's peers: one that is forked later must not
// keep those of the earlier open.
std::vector<int>& Controls() {
  static auto* controls = new std::vector<int>;
  return *controls;
}

// Runs the server with a pipe for its address and one whose end means stop.
void Run(const ServeFunction& serve, int address_pipe, int control) {
  serve(
      [&](const std::string& address) {
        const std::string line = address + "\n";
        if (write(address_pipe, line.data(), line.size()) < 0) return;
        close(address_pipe);
      },
      [&] {
        char byte;
        while (read(control, &byte, 1) < 0 && errno == EINTR) {
        }
      });
  close(control);
}

void Echo(int connection) {
  std::vector<char> buffer(kEchoBytes);
  for (;;) {
    const ssize_t got = recv(connection, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t n = send(connection, buffer.data() + sent, got - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += n;
    }
  }
  close(connection);
}

// A listening socket on a free port of loopback; -1 where there is none.
int Listen(int* port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener, SOMAXCONN) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    close(listener);
    return -1;
  }
  *port = ntohs(address.sin_port);
  return listener;
}

void SendAtOnce(int connection) {
  const int on = 1;
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// One direction of a link, until either side has ended.
void PassOn(int from, int to, double bytes_per_second) {
  using Clock = std::chrono::steady_clock;
  std::vector<char> buffer(kLinkBytes);
  Clock::time_point through = Clock::now();  // when what was read so far is through the link
  for (;;) {
    const ssize_t got = recv(from, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    through = std::max(through, Clock::now() - kLinkSlack) +
              std::chrono::duration_cast<Clock::duration>(
                  std::chrono::duration<double>(static_cast<double>(got) / bytes_per_second));
    std::this_thread::sleep_until(through);
    ssize_t sent = 0;
    while (sent < got) {
      const ssize_t n = send(to, buffer.data() + sent, got - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += n;
    }
    if (sent < got) break;
  }
  shutdown(from, SHUT_RDWR);
  shutdown(to, SHUT_RDWR);
}

class EchoService final
    : public v1::ParameterServer::WithRawCallbackMethod_Exchange<v1::ParameterServer::Service> {
 public:
  grpc::ServerUnaryReactor* Exchange(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* reply) override {
    uint64_t wanted = 0;
    std::vector<grpc::Slice> slices;
    if (request->Dump(&slices).ok()) {
      size_t have = 0;
      for (const grpc::Slice& slice : slices) {
        const size_t take = std::min(slice.size(), sizeof wanted - have);
        std::memcpy(reinterpret_cast<char*>(&wanted) + have, slice.begin(), take);
        have += take;
      }
    }
    if (wanted == request->Length()) {
      *reply = *request;
    } else if (wanted <= kReplyBytes) {
      const grpc::Slice slice(memory_.data(), wanted, grpc::Slice::STATIC_SLICE);
      *reply = grpc::ByteBuffer(&slice, 1);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  static constexpr uint64_t kReplyBytes = 8 << 20;
  std::vector<char> memory_ = std::vector<char>(kReplyBytes, 1);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Peer>> Peer::Start(const ServeFunction& serve) {
  int address_pipe[2], control[2];
  if (pipe(address_pipe) != 0 || pipe(control) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  auto peer = std::unique_ptr<Peer>(new Peer);
  if (grpc_is_initialized() == 0) {
    peer->process_ = fork();
    if (peer->process_ < 0) return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
    if (peer->process_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(address_pipe[0]);
      close(control[1]);
      for (const int other : Controls()) close(other);
      Run(serve, address_pipe[1], control[0]);
      _exit(0);
    }
    close(address_pipe[1]);
    close(control[0]);
  } else {
    peer->process_ = 0;
    peer->thread_ = std::thread(
        [serve, in = address_pipe[1], out = control[0]] { Run(serve, in, out); });
  }
  peer->control_ = control[1];
  Controls().push_back(peer->control_);
  char byte;
  while (read(address_pipe[0], &byte, 1) == 1 && byte != '\n') peer->address_ += byte;
  close(address_pipe[0]);
  if (peer->address_.empty()) {
    return absl::InternalError("a server of the exchange benchmark did not come up");
  }
  return peer;
}

Peer::~Peer() {
  std::erase(Controls(), control_);
  if (control_ >= 0) close(control_);
  if (process_ > 0) waitpid(process_, nullptr, 0);
  if (thread_.joinable()) thread_.join();
}

void ServeTcpEcho(const std::function<void(const std::string&)>& ready,
                  const std::function<void()>& wait) {
  int port = 0;
  const int listener = Listen(&port);
  if (listener < 0) return;
  ready(absl::StrCat("127.0.0.1:", port));
  std::thread server([listener] {
    for (;;) {
      const int connection = accept(listener, nullptr, nullptr);
      if (connection < 0) return;
      SendAtOnce(connection);
      Echo(connection);
    }
  });
  wait();
  shutdown(listener, SHUT_RDWR);
  server.join();
  close(listener);
}

void ServeLink(const std::string& target, double bytes_per_second,
               const std::function<void(const std::string&)>& ready, const std::function<void()>& wait) {
  int port = 0;
  const int listener = Listen(&port);
  if (listener < 0) return;
  ready(absl::StrCat("127.0.0.1:", port));
  std::vector<int> ends;
  std::vector<std::thread> directions;
  std::thread server([&] {
    for (;;) {
      const int near = accept(listener, nullptr, nullptr);
      if (near < 0) return;
      const int far = ConnectTcp(target);
      if (far < 0) {
        close(near);
        continue;
      }
      SendAtOnce(near);
      ends.insert(ends.end(), {near, far});
      directions.emplace_back(PassOn, near, far, bytes_per_second);
      directions.emplace_back(PassOn, far, near, bytes_per_second);
    }
  });
  wait();
  shutdown(listener, SHUT_RDWR);
  server.join();
  close(listener);
  for (const int end : ends) shutdown(end, SHUT_RDWR);
  for (std::thread& direction : directions) direction.join();
  for (const int end : ends) close(end);
}

int ConnectTcp(const std::string& address) {
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &port)) return -1;
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, parts[0].c_str(), &to.sin_addr);
  if (connect(connection, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    close(connection);
    return -1;
  }
  SendAtOnce(connection);
  return connection;
}

void ServeEcho(const std::function<void(const std::string&)>& ready,
               const std::function<void()>& wait) {
  EchoService service;
  grpc::ServerBuilder builder;
  ConfigureServer(builder);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return;
  ready(absl::StrCat("127.0.0.1:", port));
  wait();
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace foreshard::bench
