// What a server's figures cost: the counting of one push beside the shortest exchange there is, and a
// scrape of a registry that is being counted in.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "server/figures.h"
#include "tools/bench/bench.h"
#include "tools/bench/measure.h"

namespace foreshard::bench {
namespace {

using Clock = std::chrono::steady_clock;

// The part of a 1 KiB exchange, the shortest, that counting may take; and milliseconds of a scrape.
constexpr double kPushPart = 0.03;
constexpr double kScrapeMilliseconds = 20;

// All that parameter_service.cc notes of one push and its reply.
void CountPush(Figures& figures, uint64_t push) {
  Outcome outcome;
  outcome.result = Result::kApplied;
  outcome.lag = push % 8;
  outcome.eta = 0.1f;
  outcome.sampled_elements = 4096;
  outcome.gap_squares = 1e-3;
  outcome.surprise_squares = 1e-4;
  figures.NotePush(0, outcome, true, 1024, 256);
  figures.NotePull(1024, 256);
  ServerMetrics& metrics = figures.metrics();
  metrics.apply_duration_seconds->Observe(1e-5);
  metrics.exchange_duration_seconds->Observe(1e-4);
  metrics.parameter_version->Set(static_cast<double>(push));
  metrics.epoch->Set(1);
}

// The length of the answer to one GET of /metrics; 0: none.
size_t Scrape(const std::string& address) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) return 0;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(port));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  constexpr char kRequest[] = "GET /metrics HTTP/1.0\r\n\r\n";
  size_t length = 0;
  if (connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof peer) == 0 &&
      send(fd, kRequest, sizeof kRequest - 1, MSG_NOSIGNAL) > 0) {
    char buffer[1 << 14];
    for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) length += static_cast<size_t>(n);
  }
  close(fd);
  return length;
}

double SecondsOfAPush(const BenchOptions& options) {
  constexpr uint64_t kBatch = 2000;
  Figures figures("bench", "dana_slim", 0, 1);
  double best = 1e300;
  uint64_t push = 0;
  const auto begun = Clock::now();
  do {
    const auto start = Clock::now();
    for (uint64_t k = 0; k < kBatch; ++k) CountPush(figures, push++);
    best = std::min(best, SecondsSince(start) / kBatch);
  } while (SecondsSince(begun) < options.seconds);
  return best;
}

// The median, while another thread counts.
double SecondsOfAScrape(const BenchOptions& options) {
  Figures figures("bench", "dana_slim", 0, 1);
  const auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", figures.metrics().registry);
  if (!endpoint.ok()) return 0;
  std::atomic<bool> over{false};
  std::thread busy([&] {
    for (uint64_t push = 0; !over.load(std::memory_order_relaxed); ++push) CountPush(figures, push);
  });
  std::vector<double> taken;
  const auto begun = Clock::now();
  do {
    const auto start = Clock::now();
    if (Scrape((*endpoint)->address()) > 1000) taken.push_back(SecondsSince(start));
  } while (SecondsSince(begun) < options.seconds);
  over = true;
  busy.join();
  if (taken.empty()) return 0;
  std::nth_element(taken.begin(), taken.begin() + taken.size() / 2, taken.end());
  return taken[taken.size() / 2];
}

}  // namespace

std::vector<BenchResult> BenchMetrics(const BenchOptions& options) {
  std::vector<BenchResult> results;
  BenchOptions shortest = options;
  shortest.quick = true;
  for (const BenchResult& result : BenchExchange(shortest)) {
    if (result.name != "exchange/roundtrip/1KiB") continue;
    const double push = SecondsOfAPush(options) * 1e6;
    const double may = kPushPart * result.value;
    results.push_back({"metrics/push", push, "us", may, may / push});
  }
  if (const double scrape = SecondsOfAScrape(options) * 1e3; scrape > 0) {
    results.push_back({"metrics/scrape", scrape, "ms", kScrapeMilliseconds, kScrapeMilliseconds / scrape});
  } else {
    std::fprintf(stderr, "foreshard bench: metrics: nothing was answered on loopback\n");
  }
  return results;
}

}  // namespace foreshard::bench
