#include "server/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace foreshard {
namespace {

constexpr uint64_t kFilesKept = 64;
constexpr int kBacklog = 1024;
constexpr int kRetryMilliseconds = 100;
// What a peer may leave unacknowledged before its connection is given up: that of keepalive.
constexpr unsigned int kUserTimeoutMilliseconds = 10'000;
constexpr rlim_t kMostFileLimit = 1 << 16;

absl::Status Failure(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

int PortOf(int socket) {
  sockaddr_storage bound = {};
  socklen_t bytes = sizeof bound;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("address '", address, "' has no port: write it as host:port"));
  }
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  auto listener = absl::WrapUnique(new Listener);
  listener->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listener->wake_ < 0) return Failure("eventfd");
  const bool any = host == "0.0.0.0" || host == "::";
  absl::Status status = absl::UnavailableError("it has no address");
  for (const char* name : {any ? "::" : host.c_str(), any ? "0.0.0.0" : nullptr}) {
    if (name == nullptr || !listener->listening_.empty()) break;
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (const int failed = getaddrinfo(name, port.c_str(), &hints, &found); failed != 0) {
      status = absl::UnavailableError(gai_strerror(failed));
      continue;
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
      status = listener->Add(each->ai_family, each->ai_addr, each->ai_addrlen);
      if (!status.ok() && errno == EADDRINUSE) return status;  // not on half of its addresses
    }
  }
  if (listener->listening_.empty()) return status;
  return listener;
}

absl::Status Listener::Add(int family, const void* socket_address, uint32_t bytes) {
  sockaddr_storage to = {};
  std::memcpy(&to, socket_address, std::min<size_t>(bytes, sizeof to));
  // All on the port that the first was given.
  if (port_ != 0 && family == AF_INET6) reinterpret_cast<sockaddr_in6*>(&to)->sin6_port = htons(static_cast<uint16_t>(port_));
  if (port_ != 0 && family == AF_INET) reinterpret_cast<sockaddr_in*>(&to)->sin_port = htons(static_cast<uint16_t>(port_));
  const int made = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) return Failure("socket");
  const auto failed = [&](const char* what) {
    const int error = errno;
    const absl::Status status = Failure(what);
    close(made);
    errno = error;
    return status;
  };
  const int on = 1;
  if (setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) return failed("SO_REUSEADDR");
  if (family == AF_INET6) {
    // The wildcard takes IPv4 as well; of other hosts each address has a socket.
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&to);
    const int only = IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr) ? 0 : 1;
    if (setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only) != 0) return failed("IPV6_V6ONLY");
  }
  // Connections inherit these.
  if (setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
      setsockopt(made, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMilliseconds, sizeof kUserTimeoutMilliseconds) != 0) {
    return failed("TCP options");
  }
  if (bind(made, reinterpret_cast<sockaddr*>(&to), bytes) != 0) return failed("bind");
  if (listen(made, kBacklog) != 0) return failed("listen");
  listening_.push_back(made);
  port_ = PortOf(made);
  return absl::OkStatus();
}

Listener::~Listener() {
  Stop();
  for (const int socket : listening_) close(socket);
  if (wake_ >= 0) close(wake_);
}

void Listener::AddTo(grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  using Experimental = grpc::ServerBuilder::experimental_type;
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(Experimental::ExternalConnectionType::FROM_FD,
                                                                   credentials);
}

void Listener::Start(uint32_t most_files) {
  most_files_ = most_files;
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  if (write(wake_, &one, sizeof one) != sizeof one) PLOG(ERROR) << "waking the listener";
  thread_.join();
  // Who comes now is told so by the system.
  for (const int socket : listening_) close(socket);
  listening_.clear();
}

void Listener::Run() {
  std::vector<pollfd> waits = {{.fd = wake_, .events = POLLIN}};
  for (const int socket : listening_) waits.push_back({.fd = socket, .events = POLLIN});
  for (;;) {
    if (poll(waits.data(), waits.size(), -1) < 0) {
      if (errno != EINTR) {
        PLOG(ERROR) << "waiting for connections";
        usleep(kRetryMilliseconds * 1000);
      }
      continue;
    }
    if (waits[0].revents != 0) return;
    for (size_t k = 1; k < waits.size(); ++k) {
      if (waits[k].revents != 0) TakeAll(waits[k].fd);
    }
  }
}

void Listener::TakeAll(int listening) {
  for (;;) {
    const int connection = accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      // No files or no memory: they wait until there are.
      LOG_EVERY_T(WARNING, 10) << "cannot take a connection: " << std::strerror(errno) << "; trying again";
      pollfd wake = {.fd = wake_, .events = POLLIN};
      poll(&wake, 1, kRetryMilliseconds);
      return;
    }
    // The system gives the lowest number that is free.
    if (static_cast<uint64_t>(connection) >= MostFiles()) {
      close(connection);
      refused_.fetch_add(1, std::memory_order_relaxed);
      LOG_EVERY_T(WARNING, 10) << "about " << connection << " connections and files are open, as many as this "
                               << "server may have: closing new connections (" << refused() << " so far)";
      continue;
    }
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.listener_fd = listening;
    parameters.fd = connection;
    acceptor_->HandleNewConnection(&parameters);
  }
}

uint64_t Listener::MostFiles() const {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return most_files_;
  const uint64_t may = limit.rlim_cur;
  return std::min<uint64_t>(most_files_, may - std::min(kFilesKept, may / 2));
}

void RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMostFileLimit));
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace foreshard
