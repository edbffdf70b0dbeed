#include "common/net/http_endpoint.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "civetweb.h"

namespace foreshard {
namespace {

// Pages load what is beside them here, and nothing else from anywhere.
constexpr char kHeaders[] =
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Connection: close\r\n";

int Send(mg_connection* connection, int status, absl::string_view reason, absl::string_view type,
         absl::string_view body) {
  const std::string head =
      absl::StrCat("HTTP/1.1 ", status, " ", reason, "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
                   "\r\n", status == 405 ? "Allow: GET\r\n" : "", kHeaders, "\r\n");
  if (mg_write(connection, head.data(), head.size()) > 0 && !body.empty()) {
    mg_write(connection, body.data(), body.size());
  }
  return status;
}

// Connects and hangs up. `address` is "host:port" or "[v6]:port".
void Knock(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found) != 0) return;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    // Whether it succeeds does not matter: the next knock comes soon.
    (void)!connect(fd, found->ai_addr, found->ai_addrlen);
    close(fd);
  }
  freeaddrinfo(found);
}

}  // namespace

int HttpEndpoint::Answer(mg_connection* connection) {
  const mg_request_info* request = mg_get_request_info(connection);
  const auto* endpoint = static_cast<const HttpEndpoint*>(request->user_data);
  if (absl::string_view(request->request_method) != "GET") {
    return Send(connection, 405, "Method Not Allowed", "text/plain; charset=utf-8", "only GET is answered here\n");
  }
  const auto page = endpoint->pages_.find(request->local_uri == nullptr ? "" : request->local_uri);
  if (page == endpoint->pages_.end()) {
    std::string there = "not here; what there is:\n";
    for (const auto& [path, found] : endpoint->pages_) absl::StrAppend(&there, path, "\n");
    return Send(connection, 404, "Not Found", "text/plain; charset=utf-8", there);
  }
  return Send(connection, 200, "OK", page->second.type, page->second.body());
}

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const std::string& address, HttpPages pages) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(absl::StrCat("address '", address, "' has no port: write it as host:port"));
  }
  auto endpoint = std::unique_ptr<HttpEndpoint>(new HttpEndpoint(std::move(pages)));
  // A connection that says nothing holds a thread until the time-out.
  const char* options[] = {"listening_ports", address.c_str(), "num_threads", "4", "request_timeout_ms", "5000",
                           nullptr};
  mg_callbacks callbacks = {};
  callbacks.begin_request = &HttpEndpoint::Answer;
  mg_init_data start = {&callbacks, endpoint.get(), options};
  unsigned code = 0;
  char why[256] = "";
  mg_error_data error = {&code, why, sizeof why};
  endpoint->server_ = mg_start2(&start, &error);
  mg_server_port port = {};
  if (endpoint->server_ == nullptr || mg_get_server_ports(endpoint->server_, 1, &port) < 1) {
    return absl::UnavailableError(absl::StrCat(
        "cannot serve HTTP on ", address, " (", why, "): is the port taken",
        absl::StartsWith(address, "[") ? ", or is IPv6 what this HTTP server was built without" : "",
        "? Choose another address, or port 0 for any port that is free"));
  }
  endpoint->address_ = absl::StrCat(address.substr(0, colon + 1), port.port);
  return endpoint;
}

// The HTTP server looks only every two seconds whether it should end, or when
// somebody connects; so somebody does.
HttpEndpoint::~HttpEndpoint() {
  if (server_ == nullptr) return;
  std::atomic<bool> ended{false};
  std::thread knocking([&] {
    while (!ended) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      Knock(address_);
    }
  });
  mg_stop(server_);
  ended = true;
  knocking.join();
}

}  // namespace foreshard
