// The worker's side of the exchange benchmarks: a gradient of fixed values, pushed again and again.
//
//   auto client = ExchangeClient::Connect(address, {}, SyntheticJob(1 << 24, "one_bit", "none"));
//   const double seconds = BestSeconds(options, [&] { client->Step(); });
//   if (!client->good()) ...
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/net/credentials.h"
#include "foreshard/v1/job.pb.h"
#include "worker/parameter_client.h"

namespace foreshard::bench {

// A job of one server and one worker whose model is `elements` numbers and which never ends; rule
// asgd, codecs by name.
v1::JobSpec SyntheticJob(uint64_t elements, const std::string& push, const std::string& reply);

// Thread-compatible.
class ExchangeClient {
 public:
  // Registers, brings the first values, pulls, and makes a first step. Null, with the reason on
  // stderr, where it does not come so far.
  static std::unique_ptr<ExchangeClient> Connect(const std::string& address, const Credentials& credentials,
                                                 const v1::JobSpec& job);

  // Push, apply, reply, read into the parameter vector. After a failure it does nothing.
  void Step();

  // Whether all steps went well; else the reason is on stderr.
  bool good() const;
  // Segments in flight at once.
  uint32_t window() const { return window_; }
  // Bytes of one step each way: of the first, which is as all others.
  double push_bytes() const { return push_bytes_; }
  double pull_bytes() const { return pull_bytes_; }

 private:
  explicit ExchangeClient(const v1::JobSpec& job) : job_(job) {}
  absl::Status Begin(const std::string& address, const Credentials& credentials);

  const v1::JobSpec job_;
  std::unique_ptr<ParameterClient> client_;
  std::vector<float> gradient_;  // [trainable elements]
  absl::Status status_;
  uint64_t ticket_ = 0;
  double push_bytes_ = 0, pull_bytes_ = 0;
  uint32_t window_ = 0;
};

}  // namespace foreshard::bench
