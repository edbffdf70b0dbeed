// A small HTTP server for what people and Prometheus look at: a fixed list of pages, read only.
//
//   auto endpoint = HttpEndpoint::Start("127.0.0.1:0", {{"/hello", {"text/plain", [] { return "hi\n"; }}}});
//   ... http://(*endpoint)->address()/hello ...
//
// GET alone is answered; a body that a caller sends is not read, no file is served, and each answer
// closes its connection. Four threads: whoever says nothing holds one for five seconds at most.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct mg_connection;
struct mg_context;

namespace foreshard {

struct HttpPage {
  std::string type;  // as the header Content-Type says it
  // The body. Called by several threads at once, for each request anew.
  std::function<std::string()> body;
};

// By path: "/metrics".
using HttpPages = std::map<std::string, HttpPage>;

class HttpEndpoint {
 public:
  // "127.0.0.1:0" picks a free port. INVALID_ARGUMENT: no port in it. UNAVAILABLE: the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(const std::string& address, HttpPages pages);
  // Waits for the answers under way; no body is asked for after it.
  ~HttpEndpoint();
  HttpEndpoint(const HttpEndpoint&) = delete;
  HttpEndpoint& operator=(const HttpEndpoint&) = delete;

  // "host:port" as bound.
  const std::string& address() const { return address_; }

 private:
  explicit HttpEndpoint(HttpPages pages) : pages_(std::move(pages)) {}
  static int Answer(mg_connection* connection);

  const HttpPages pages_;
  std::string address_;
  mg_context* server_ = nullptr;
};

}  // namespace foreshard
