// The exchange of gradients for parameters over loopback, one worker and one server
// in processes of their own, beside what carries it: a bare TCP socket, and a bare
// echo of ByteBuffers of the same sizes through gRPC with the same channel settings
// and as many in flight.
//
//   rate = bytes of the model / time of push + apply + reply
//   limit = 1 / (echo's time for the same bytes + bytes applied / STREAM)
//
// Bytes applied (asgd): theta read and written, the payload read, the reply written;
// with a codec that keeps an error also what encoding touches: gradient and error
// read, error and payload written; with replies that carry differences also both copies
// of what the worker holds, the server's and its own, read and written.
//
// With compression also beside bytes applied / STREAM alone (.../stream): all that one core
// would need if nothing had to travel.
//
// And over a link of 100 Mbit/s each way, fp32 beside the link itself, 1-bit both ways
// beside that fp32.
//
// With TLS the same exchange again, beside its own rate in plain text.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/channel.h"
#include "common/net/credentials.h"
#include "common/net/job_spec.h"
#include "common/net/process.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "kernels/codecs/codec.h"
#include "kernels/device.h"
#include "server/available_memory.h"
#include "server/shard_server.h"
#include "tools/bench/bench.h"
#include "tools/bench/exchange_peers.h"
#include "tools/bench/measure.h"
#include "worker/job_setup.h"
#include "worker/parameter_client.h"

namespace foreshard::bench {
namespace {

constexpr uint64_t kSegmentBytes = 4 << 20;  // the default of servers.segment_elements
constexpr uint64_t kLargeModelBytes = 1 << 30;
constexpr double kLargeModelMemory = 6.0 * kLargeModelBytes;
constexpr char kExchange[] = "/foreshard.v1.ParameterServer/Exchange";

constexpr double kLinkBytesPerSecond = 100e6 / 8;
constexpr char kLinkName[] = "/100Mbit";

struct Case {
  std::string name;
  uint64_t model_bytes;
  std::string push = "none", reply = "none";
  bool over_link = false;
};

v1::JobSpec Job(const Case& c) {
  const std::string text = absl::StrCat(
      "name: 'bench' model { name: 'synthetic' elements: ", c.model_bytes / sizeof(float),
      " } data { format: 'synthetic' examples: 1000000000 } training { epochs: 1000 batch_size: 1 "
      "workers: 1 } update { rule: 'asgd' } schedule { learning_rate: 1e-6 } compression { push: '",
      c.push, "' reply: '", c.reply,
      "' } servers { shards: 1 inflight_bytes: 2147483648 } timeouts { lease_seconds: 600 "
      "connect_seconds: 30 }");
  return ParseJobSpec(text, "the exchange benchmark's job", {}).value();
}

// `files` are loaded by the process that serves, as gRPC must not be used before it is forked.
void ServeShard(const v1::JobSpec& job, const CredentialFiles& files,
                const std::function<void(const std::string&)>& ready,
                const std::function<void()>& wait) {
  const auto credentials = Credentials::Load(files, TlsSide::kServer);
  if (!credentials.ok()) {
    std::fprintf(stderr, "exchange benchmark: %s\n", credentials.status().ToString().c_str());
    return;
  }
  auto server = ShardServer::Start({.job = job, .credentials = *credentials});
  if (!server.ok()) {
    std::fprintf(stderr, "exchange benchmark: %s\n", server.status().ToString().c_str());
    return;
  }
  ready((*server)->address());
  wait();
  (*server)->Shutdown().IgnoreError();
}

// Seconds to send `bytes` and get them back. One thread sends, one receives.
double TcpSeconds(const BenchOptions& options, const std::string& address, uint64_t bytes) {
  const int connection = ConnectTcp(address);
  if (connection < 0) return 0;
  const std::vector<char> out(std::min(bytes, kSegmentBytes), 1);
  std::vector<char> in(out.size());
  const auto send_all = [&] {
    for (uint64_t sent = 0; sent < bytes;) {
      const ssize_t n = send(connection, out.data(), std::min<uint64_t>(out.size(), bytes - sent),
                             MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<uint64_t>(n);
    }
  };
  const double seconds = BestSeconds(options, [&] {
    // What the socket's buffers hold needs no thread of its own.
    std::thread sender;
    if (bytes > 64 << 10) {
      sender = std::thread(send_all);
    } else {
      send_all();
    }
    for (uint64_t got = 0; got < bytes;) {
      const ssize_t n = recv(connection, in.data(), in.size(), 0);
      if (n <= 0) break;
      got += static_cast<uint64_t>(n);
    }
    if (sender.joinable()) sender.join();
  });
  close(connection);
  return seconds;
}

struct EchoShape {
  uint64_t segments = 1;
  uint64_t request_bytes = 0, reply_bytes = 0;  // of all segments
  uint32_t window = 1;
};

// Sends the segments of a model and gets as many replies, `window` in flight.
class EchoClient {
 public:
  EchoClient(const std::string& address, const EchoShape& shape)
      : stub_(MakeChannel(address)), window_(shape.window) {
    for (uint64_t k = 0; k < shape.segments; ++k) {
      const uint64_t reply = shape.reply_bytes / shape.segments;
      memory_.emplace_back(std::max(shape.request_bytes / shape.segments, sizeof reply), 1);
      std::memcpy(memory_.back().data(), &reply, sizeof reply);
    }
  }

  // False when a call failed.
  bool Run() {
    size_t next = 0, done = 0;
    uint32_t in_flight = 0;
    while (done < memory_.size()) {
      while (in_flight < window_ && next < memory_.size()) {
        Send(memory_[next++]);
        ++in_flight;
      }
      void* tag;
      bool ok;
      if (!queue_.Next(&tag, &ok)) return false;
      const std::unique_ptr<Call> call(static_cast<Call*>(tag));
      if (!call->status.ok()) return false;
      --in_flight;
      ++done;
    }
    return true;
  }

  ~EchoClient() {
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) delete static_cast<Call*>(tag);
  }

 private:
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer reply;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
  };

  void Send(const std::vector<char>& bytes) {
    auto call = std::make_unique<Call>();
    SetDeadline(call->context, bytes.size());
    const grpc::Slice slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
    const grpc::ByteBuffer request(&slice, 1);
    call->reader = stub_.PrepareUnaryCall(&call->context, kExchange, request, &queue_);
    call->reader->StartCall();
    Call* raw = call.release();
    raw->reader->Finish(&raw->reply, &raw->status, raw);
  }

  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::CompletionQueue queue_;
  const uint32_t window_;
  std::vector<std::vector<char>> memory_;
};

double EchoSeconds(const BenchOptions& options, const std::string& address,
                   const EchoShape& shape) {
  EchoClient client(address, shape);
  bool good = client.Run();  // connects
  const double seconds = BestSeconds(options, [&] { good = client.Run() && good; });
  if (!good) std::fprintf(stderr, "exchange benchmark: an echo failed\n");
  return good ? seconds : 0;
}

// Seconds of a whole step: push, apply, reply, read into the parameter vector.
double ExchangeSeconds(const BenchOptions& options, const std::string& address,
                       const Credentials& credentials, const Case& c, double* push_bytes, double* pull_bytes, uint32_t* window) {
  const v1::JobSpec job = Job(c);
  const auto fail = [&](const absl::Status& status) {
    std::fprintf(stderr, "exchange benchmark, %s: %s\n", c.name.c_str(),
                 status.ToString().c_str());
    return 0.0;
  };
  auto device = kernels::MakeDevice("cpu");
  if (!device.ok()) return fail(device.status());
  auto data = LoadTrainingData(job);
  if (!data.ok()) return fail(data.status());
  auto model = MakeJobModel(job, **data, **device);
  if (!model.ok()) return fail(model.status());
  const Schema& schema = (*model)->schema();
  auto client_options = MakeClientOptions(job, schema, (*data)->examples(), {address});
  if (!client_options.ok()) return fail(client_options.status());
  client_options->hello.set_incarnation(1);
  client_options->credentials = credentials;
  *window = client_options->window;
  auto client = ParameterClient::Connect(*client_options);
  if (!client.ok()) return fail(client.status());
  const std::vector<float> values(schema.elements(), 0.5f);
  if (const absl::Status s = (*client)->Initialise(values); !s.ok()) return fail(s);
  if (const absl::Status s = (*client)->Pull(Parameters::kAsSent); !s.ok()) return fail(s);
  std::vector<float> gradient(schema.trainable_elements());
  for (size_t k = 0; k < gradient.size(); ++k) {
    gradient[k] = static_cast<float>(static_cast<int>(k * 2654435761u >> 16 & 0xff) - 127) / 128;
  }
  absl::Status status;
  uint64_t ticket = 0;
  const auto step = [&] {
    if (status.ok()) status = (*client)->Push({.ticket = ticket++, .gradient = gradient.data()});
    if (status.ok()) status = (*client)->Finish();
  };
  step();
  const Traffic before = (*client)->traffic();
  const uint64_t steps_before = ticket;
  const double seconds = BestSeconds(options, step);
  if (!status.ok()) return fail(status);
  const Traffic after = (*client)->traffic();
  const auto steps = static_cast<double>(ticket - steps_before);
  *push_bytes = static_cast<double>(after.push_bytes - before.push_bytes) / steps;
  *pull_bytes = static_cast<double>(after.pull_bytes - before.pull_bytes) / steps;
  return seconds;
}

std::string SizeName(uint64_t bytes) {
  return bytes >= 1 << 20 ? absl::StrCat(bytes >> 20, "MiB") : absl::StrCat(bytes >> 10, "KiB");
}

}  // namespace

std::vector<BenchResult> BenchExchange(const BenchOptions& options) {
  PrepareProcess();  // as the daemons do
  std::vector<uint64_t> sizes = {64 << 10, 1 << 20, 4 << 20};
  if (!options.quick) {
    for (const uint64_t mebibytes : {16, 64, 256}) sizes.push_back(mebibytes << 20);
    if (static_cast<double>(AvailableMemoryBytes()) > kLargeModelMemory) {
      sizes.push_back(kLargeModelBytes);
    }
  }
  std::vector<Case> cases = {{"roundtrip", 1 << 10}};
  for (const uint64_t bytes : sizes) cases.push_back({"fp32", bytes});
  const uint64_t compressed = options.quick ? 4 << 20 : 64 << 20;
  cases.push_back({"one_bit_push", compressed, "one_bit", "none"});
  cases.push_back({"one_bit_push_bf16_reply", compressed, "one_bit", "bf16"});
  cases.push_back({"one_bit_both_ways", compressed, "one_bit", "one_bit"});
  const uint64_t over_link = options.quick ? 1 << 20 : 16 << 20;
  cases.push_back({"fp32", over_link, "none", "none", true});
  cases.push_back({"one_bit_both_ways", over_link, "one_bit", "one_bit", true});

  // All servers before the first use of gRPC here, so that they can be processes.
  std::vector<BenchResult> results;
  auto tcp = Peer::Start(ServeTcpEcho);
  auto echo = Peer::Start(ServeEcho);
  const bool tls = !options.credentials.pem.certificate.empty();
  std::deque<std::unique_ptr<Peer>> shards, tls_shards;
  std::vector<std::unique_ptr<Peer>> links;
  absl::Status started = tcp.ok() ? echo.status() : tcp.status();
  for (const Case& c : cases) {
    if (!started.ok()) break;
    const auto start = [&](const CredentialFiles& files, auto& peers) {
      auto shard = Peer::Start([job = Job(c), files](const auto& ready, const auto& wait) {
        ServeShard(job, files, ready, wait);
      });
      if (shard.ok()) peers.push_back(*std::move(shard));
      return shard.status();
    };
    started = start({}, shards);
    if (started.ok() && c.over_link) {
      auto link = Peer::Start([target = shards.back()->address()](const auto& ready, const auto& wait) {
        ServeLink(target, kLinkBytesPerSecond, ready, wait);
      });
      started = link.status();
      if (link.ok()) links.push_back(*std::move(link));
    } else if (started.ok() && tls) {
      started = start(options.credentials, tls_shards);
    }
  }
  if (!started.ok()) {
    std::fprintf(stderr, "exchange benchmark: %s\n", started.ToString().c_str());
    return results;
  }
  if (!shards.front()->is_process()) {
    std::fprintf(stderr, "exchange benchmark: servers are threads of this process\n");
  }

  Credentials tls_credentials;
  if (tls) {
    auto loaded = Credentials::Load(options.credentials, TlsSide::kBoth);
    if (!loaded.ok()) {
      std::fprintf(stderr, "exchange benchmark: %s\n", loaded.status().ToString().c_str());
      return results;
    }
    tls_credentials = *std::move(loaded);
  }
  const double stream = StreamTriad(1, options) * 1e9;
  size_t link = 0;
  double link_rate = kLinkBytesPerSecond / 1e9;  // then that of fp32 over it
  for (const Case& c : cases) {
    const auto model_bytes = static_cast<double>(c.model_bytes);
    double push = 0, pull = 0;
    uint32_t window = 0;
    const std::string& address = c.over_link ? links[link++]->address() : shards.front()->address();
    const double seconds = ExchangeSeconds(options, address, {}, c, &push, &pull, &window);
    shards.pop_front();
    double tls_seconds = 0;
    if (tls && !c.over_link) {
      double tls_push = 0, tls_pull = 0;
      tls_seconds = ExchangeSeconds(options, tls_shards.front()->address(), tls_credentials, c,
                                    &tls_push, &tls_pull, &window);
      tls_shards.pop_front();
    }
    if (seconds == 0) continue;
    if (c.over_link) {
      const double rate = model_bytes / seconds / 1e9;
      results.push_back({absl::StrCat("exchange/", c.name, "/", SizeName(c.model_bytes), kLinkName), rate,
                         "GB/s", link_rate, rate / link_rate});
      link_rate = rate;
      continue;
    }
    const double echo_seconds = EchoSeconds(
        options, (*echo)->address(),
        {.segments = (c.model_bytes + kSegmentBytes - 1) / kSegmentBytes,
         .request_bytes = static_cast<uint64_t>(push),
         .reply_bytes = static_cast<uint64_t>(pull),
         .window = window});
    if (echo_seconds == 0) continue;
    double applied = push + 2 * model_bytes + pull;
    if (c.push != "none") applied += 3 * model_bytes + push;
    if (!FindCodec(c.reply)->replies_carry_values()) applied += 4 * model_bytes + pull;
    const double limit_seconds = echo_seconds + applied / stream;
    if (c.name == "roundtrip") {
      const double tcp_seconds = TcpSeconds(options, (*tcp)->address(), c.model_bytes);
      results.push_back({"exchange/roundtrip/1KiB/tcp", tcp_seconds * 1e6, "us",
                         tcp_seconds * 1e6, 1});
      results.push_back({"exchange/roundtrip/1KiB/echo", echo_seconds * 1e6, "us",
                         tcp_seconds * 1e6, tcp_seconds / echo_seconds});
      results.push_back({"exchange/roundtrip/1KiB", seconds * 1e6, "us", echo_seconds * 1e6,
                         echo_seconds / seconds});
      if (tls_seconds > 0) {
        results.push_back({"exchange/roundtrip/1KiB/tls", tls_seconds * 1e6, "us", seconds * 1e6,
                           seconds / tls_seconds});
      }
      continue;
    }
    const std::string name = absl::StrCat("exchange/", c.name, "/", SizeName(c.model_bytes));
    if (c.name == "fp32") {
      const double tcp_seconds = TcpSeconds(options, (*tcp)->address(), c.model_bytes);
      const double tcp_rate = model_bytes / tcp_seconds / 1e9;
      results.push_back({name + "/tcp", tcp_rate, "GB/s", tcp_rate, 1});
      const double echo_rate = model_bytes / echo_seconds / 1e9;
      results.push_back({name + "/echo", echo_rate, "GB/s", tcp_rate, echo_rate / tcp_rate});
    }
    const double rate = model_bytes / seconds / 1e9;
    const double limit = model_bytes / limit_seconds / 1e9;
    results.push_back({name, rate, "GB/s", limit, rate / limit});
    if (tls_seconds > 0) {
      results.push_back({name + "/tls", model_bytes / tls_seconds / 1e9, "GB/s", rate,
                         seconds / tls_seconds});
    }
    if (c.push == "none") continue;
    const double stream_limit = model_bytes / (applied / stream) / 1e9;
    results.push_back({name + "/stream", rate, "GB/s", stream_limit, rate / stream_limit});
  }
  return results;
}

}  // namespace foreshard::bench
