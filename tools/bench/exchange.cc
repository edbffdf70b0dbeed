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
// The same exchange again with a server that keeps a journal, and with TLS, each in turns with the
// plain one and beside it (medians of the steps).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/channel.h"
#include "common/net/credentials.h"
#include "common/net/process.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "kernels/codecs/codec.h"
#include "server/available_memory.h"
#include "server/shard_server.h"
#include "tools/bench/bench.h"
#include "tools/bench/exchange_client.h"
#include "tools/bench/exchange_peers.h"
#include "tools/bench/measure.h"

namespace foreshard::bench {
namespace {

constexpr uint64_t kSegmentBytes = 4 << 20;  // the default of servers.segment_elements
constexpr uint64_t kLargeModelBytes = 1 << 30;
constexpr double kLargeModelMemory = 6.0 * kLargeModelBytes;
constexpr char kExchange[] = "/foreshard.v1.ParameterServer/Exchange";

constexpr char kRoundtrip[] = "roundtrip";

constexpr double kLinkBytesPerSecond = 100e6 / 8;
constexpr char kLinkName[] = "/100Mbit";

struct Case {
  std::string name;
  uint64_t model_bytes;
  std::string push = "none", reply = "none";
  bool over_link = false;
};

v1::JobSpec Job(const Case& c) { return SyntheticJob(c.model_bytes / sizeof(float), c.push, c.reply); }

// `files` are loaded by the process that serves, as gRPC must not be used before it is forked.
void ServeShard(const v1::JobSpec& job, const CredentialFiles& files, const std::string& state_directory,
                const std::function<void(const std::string&)>& ready,
                const std::function<void()>& wait) {
  const auto credentials = Credentials::Load(files, TlsSide::kServer);
  if (!credentials.ok()) {
    std::fprintf(stderr, "exchange benchmark: %s\n", credentials.status().ToString().c_str());
    return;
  }
  auto server = ShardServer::Start({.job = job, .credentials = *credentials, .state_directory = state_directory});
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

// Another way to serve a case, measured in turns with the plain one.
struct Variant {
  std::string name;
  std::unique_ptr<Peer> peer;
  Credentials credentials;
};

// The servers of a case.
struct Served {
  Case c;
  std::unique_ptr<Peer> shard, link;
  std::vector<Variant> variants;
};

// The journal is in the exchange's way, and TLS too; what they cost shows at the usual sizes.
constexpr uint64_t kVariantBytes = 64 << 20;

absl::Status Serve(const Case& c, const BenchOptions& options, const std::string& scratch, std::vector<Served>* all) {
  const auto start = [&](const CredentialFiles& files, const std::string& state_directory) {
    return Peer::Start([job = Job(c), files, state_directory](const auto& ready, const auto& wait) {
      ServeShard(job, files, state_directory, ready, wait);
    });
  };
  Served served{.c = c};
  auto shard = start({}, "");
  if (!shard.ok()) return shard.status();
  served.shard = *std::move(shard);
  if (c.over_link) {
    auto link = Peer::Start([target = served.shard->address()](const auto& ready, const auto& wait) {
      ServeLink(target, kLinkBytesPerSecond, ready, wait);
    });
    if (!link.ok()) return link.status();
    served.link = *std::move(link);
  } else if (c.model_bytes <= kVariantBytes) {
    auto journal = start({}, absl::StrCat(scratch, "/", all->size()));
    if (!journal.ok()) return journal.status();
    served.variants.push_back({"journal", *std::move(journal), {}});
    if (!options.credentials.pem.certificate.empty()) {
      auto tls = start(options.credentials, "");
      if (!tls.ok()) return tls.status();
      served.variants.push_back({"tls", *std::move(tls), {}});
    }
  }
  all->push_back(std::move(served));
  return absl::OkStatus();
}

std::string SizeName(uint64_t bytes) {
  return bytes >= 1 << 20 ? absl::StrCat(bytes >> 20, "MiB") : absl::StrCat(bytes >> 10, "KiB");
}

// What the machine itself needs for the same.
struct Yardsticks {
  std::string tcp, echo;  // addresses
  double stream = 0;      // bytes a second
};

// Over the link, beside `limit`, GB/s. Returns the rate, 0 where it failed.
double MeasureOverLink(const BenchOptions& options, const Served& served, double limit,
                       std::vector<BenchResult>* results) {
  const auto client = ExchangeClient::Connect(served.link->address(), {}, Job(served.c));
  if (client == nullptr) return 0;
  const double seconds = BestSeconds(options, [&] { client->Step(); });
  if (!client->good()) return 0;
  const double rate = static_cast<double>(served.c.model_bytes) / seconds / 1e9;
  results->push_back({absl::StrCat("exchange/", served.c.name, "/", SizeName(served.c.model_bytes), kLinkName), rate,
                      "GB/s", limit, rate / limit});
  return rate;
}

// The plain exchange and its variants in turns: a line each of those.
void MeasureVariants(const BenchOptions& options, const Served& served, ExchangeClient* plain, const std::string& name,
                     std::vector<BenchResult>* results) {
  for (const Variant& variant : served.variants) {
    const auto other = ExchangeClient::Connect(variant.peer->address(), variant.credentials, Job(served.c));
    if (other == nullptr) continue;
    std::vector<std::function<void()>> ways = {[&] { plain->Step(); }, [&] { other->Step(); }};
    const std::vector<double> seconds = MedianSecondsInTurns(options, ways);
    if (!other->good() || !plain->good()) continue;
    const double ratio = seconds[0] / seconds[1];
    if (served.c.name == kRoundtrip) {
      results->push_back({absl::StrCat(name, "/", variant.name), seconds[1] * 1e6, "us", seconds[0] * 1e6, ratio});
    } else {
      const double bytes = static_cast<double>(served.c.model_bytes) / 1e9;
      results->push_back({absl::StrCat(name, "/", variant.name), bytes / seconds[1], "GB/s", bytes / seconds[0], ratio});
    }
  }
}

void MeasureCase(const BenchOptions& options, const Served& served, const Yardsticks& yardsticks,
                 std::vector<BenchResult>* results) {
  const Case& c = served.c;
  const auto model_bytes = static_cast<double>(c.model_bytes);
  const auto client = ExchangeClient::Connect(served.shard->address(), {}, Job(c));
  if (client == nullptr) return;
  const double seconds = BestSeconds(options, [&] { client->Step(); });
  if (!client->good()) return;
  const double push = client->push_bytes(), pull = client->pull_bytes();
  const double echo_seconds = EchoSeconds(
      options, yardsticks.echo,
      {.segments = (c.model_bytes + kSegmentBytes - 1) / kSegmentBytes,
       .request_bytes = static_cast<uint64_t>(push),
       .reply_bytes = static_cast<uint64_t>(pull),
       .window = client->window()});
  if (echo_seconds == 0) return;
  const std::string name = absl::StrCat("exchange/", c.name, "/", SizeName(c.model_bytes));
  if (c.name == kRoundtrip) {
    const double tcp_seconds = TcpSeconds(options, yardsticks.tcp, c.model_bytes);
    results->push_back({name + "/tcp", tcp_seconds * 1e6, "us", tcp_seconds * 1e6, 1});
    results->push_back({name + "/echo", echo_seconds * 1e6, "us", tcp_seconds * 1e6, tcp_seconds / echo_seconds});
    results->push_back({name, seconds * 1e6, "us", echo_seconds * 1e6, echo_seconds / seconds});
    MeasureVariants(options, served, client.get(), name, results);
    return;
  }
  if (c.name == "fp32") {
    const double tcp_seconds = TcpSeconds(options, yardsticks.tcp, c.model_bytes);
    const double tcp_rate = model_bytes / tcp_seconds / 1e9;
    results->push_back({name + "/tcp", tcp_rate, "GB/s", tcp_rate, 1});
    const double echo_rate = model_bytes / echo_seconds / 1e9;
    results->push_back({name + "/echo", echo_rate, "GB/s", tcp_rate, echo_rate / tcp_rate});
  }
  double applied = push + 2 * model_bytes + pull;
  if (c.push != "none") applied += 3 * model_bytes + push;
  if (!FindCodec(c.reply)->replies_carry_values()) applied += 4 * model_bytes + pull;
  const double rate = model_bytes / seconds / 1e9;
  const double limit = model_bytes / (echo_seconds + applied / yardsticks.stream) / 1e9;
  results->push_back({name, rate, "GB/s", limit, rate / limit});
  MeasureVariants(options, served, client.get(), name, results);
  if (c.push == "none") return;
  const double stream_limit = model_bytes / (applied / yardsticks.stream) / 1e9;
  results->push_back({name + "/stream", rate, "GB/s", stream_limit, rate / stream_limit});
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
  std::vector<Case> cases = {{kRoundtrip, 1 << 10}};
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
  const ScratchFolder scratch;
  auto tcp = Peer::Start(ServeTcpEcho);
  auto echo = Peer::Start(ServeEcho);
  std::vector<Served> served;
  absl::Status started = tcp.ok() ? echo.status() : tcp.status();
  for (const Case& c : cases) {
    if (started.ok()) started = Serve(c, options, scratch.path(), &served);
  }
  if (!started.ok()) {
    std::fprintf(stderr, "exchange benchmark: %s\n", started.ToString().c_str());
    return results;
  }
  if (!served.front().shard->is_process()) {
    std::fprintf(stderr, "exchange benchmark: servers are threads of this process\n");
  }
  const auto credentials = Credentials::Load(options.credentials, TlsSide::kBoth);
  if (!credentials.ok()) {
    std::fprintf(stderr, "exchange benchmark: %s\n", credentials.status().ToString().c_str());
    return results;
  }
  const Yardsticks yardsticks{(*tcp)->address(), (*echo)->address(), StreamTriad(1, options) * 1e9};
  double link_rate = kLinkBytesPerSecond / 1e9;  // then that of fp32 over it
  for (Served& one : served) {
    for (Variant& variant : one.variants) {
      if (variant.name == "tls") variant.credentials = *credentials;
    }
    if (one.c.over_link) {
      if (const double rate = MeasureOverLink(options, one, link_rate, &results); rate > 0) link_rate = rate;
    } else {
      MeasureCase(options, one, yardsticks, &results);
    }
    one = {};  // ends its servers
  }
  return results;
}

}  // namespace foreshard::bench
