// What a real server needs to come back after it was killed, and what a checkpoint costs those who
// push meanwhile: a shard of 100 million parameters (quick: 1 million), pushed with one bit an
// element, fp32 back.
//
//   restart/load         from the start to serving, with a checkpoint and no journal behind it,
//                        beside a new server's start and reading as many bytes
//   restart/replay       what came after the checkpoint, at full speed: the time in which it was made,
//                        beside the time in which it is replayed; limit 1: no slower than it was made
//   restart/checkpoint   median step while a checkpoint is written, beside the median without
//   restart/checkpoint/longest   the longest step meanwhile, beside the longest without
//   restart/checkpoint/hold      the longest time that a segment took no push since it was copied, beside
//                        copying as many bytes as a segment has
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/net/job_spec.h"
#include "common/net/admin_client.h"
#include "tools/bench/bench.h"
#include "tools/bench/exchange_client.h"
#include "tools/bench/measure.h"
#include "tools/files.h"
#include "tools/fleet.h"

namespace foreshard::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr absl::Duration kPatience = absl::Minutes(5);
constexpr size_t kReadBytes = 4 << 20;

// Seconds to read all files of a folder from beginning to end, from the page cache where they
// are there, as the server finds them.
double ReadSeconds(const std::string& folder) {
  std::vector<char> buffer(kReadBytes);
  const auto start = Clock::now();
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
    if (!entry.is_regular_file(error)) continue;
    const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    while (read(file, buffer.data(), buffer.size()) > 0) {
    }
    close(file);
  }
  return SecondsSince(start);
}

// Seconds to copy so many bytes, that are in no cache, into memory that is there; the longest of ten.
double CopySeconds(uint64_t bytes) {
  constexpr size_t kTimes = 10;
  const std::vector<char> from(bytes * kTimes, 1);
  std::vector<char> to(bytes);
  double longest = 0;
  for (size_t k = 0; k < kTimes; ++k) {
    const auto start = Clock::now();
    std::memcpy(to.data(), from.data() + k * bytes, bytes);
    longest = std::max(longest, SecondsSince(start));
  }
  return longest;
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_(options), elements_(options.quick ? 1'000'000 : 100'000'000), state_(folder_.path() + "/state") {}

  absl::Status Run(std::vector<BenchResult>* results) {
    v1::JobSpec job = SyntheticJob(elements_, "one_bit", "none");
    // Only when asked for, and at the end.
    job.mutable_durability()->set_checkpoint_seconds(1e6);
    job.mutable_durability()->set_checkpoint_journal_bytes(uint64_t{1} << 40);
    if (absl::Status s = PrepareFolder(folder_.path()); !s.ok()) return s;
    const std::string job_path = folder_.path() + "/job.textproto";
    if (absl::Status s = WriteFileAtomically(job_path, PrintJobSpec(job)); !s.ok()) return s;
    Fleet fleet({.programs = ExecutableFolder(), .folder = folder_.path(), .job = {"--job=" + job_path}});
    const absl::StatusOr<double> fresh = StartServer(&fleet);
    if (!fresh.ok()) return fresh.status();
    const auto client = ExchangeClient::Connect(fleet.address_list(), {}, job);
    if (client == nullptr) return absl::InternalError("no exchange");
    if (absl::Status s = Checkpoint(fleet.address_list(), client.get(), results); !s.ok()) return s;
    return Restarts(&fleet, client.get(), *fresh, results);
  }

 private:
  // Seconds until it serves.
  absl::StatusOr<double> StartServer(Fleet* fleet) {
    const auto start = Clock::now();
    if (absl::Status s = fleet->StartServer(0, {"--state-directory=" + state_}); !s.ok()) return s;
    if (absl::Status s = fleet->WaitForServers(kPatience); !s.ok()) return s;
    return SecondsSince(start);
  }

  // Seconds of each step, for options.seconds and at least so many, then until `end`.
  std::vector<double> Steps(ExchangeClient* client, size_t least, const std::function<bool()>& end) {
    std::vector<double> seconds;
    const auto begin = Clock::now();
    while (client->good() && (seconds.size() < least || SecondsSince(begin) < options_.seconds || !end())) {
      const auto start = Clock::now();
      client->Step();
      seconds.push_back(SecondsSince(start));
    }
    return seconds;
  }

  absl::Status Checkpoint(const std::string& address, ExchangeClient* client, std::vector<BenchResult>* results) {
    std::vector<double> before = Steps(client, 10, [] { return true; });
    absl::StatusOr<v1::CheckpointReply> reply;
    absl::Notification written;
    std::thread asks([&] {
      reply = AdminClient({address}).Checkpoint(kPatience).front();
      written.Notify();
    });
    const std::vector<double> during = Steps(client, 1, [&] { return written.HasBeenNotified(); });
    asks.join();
    if (!reply.ok()) return reply.status();
    if (!client->good()) return absl::InternalError("a push failed");
    const double plain = Median(before), meanwhile = Median(during);
    results->push_back({"restart/checkpoint", meanwhile * 1e3, "ms", plain * 1e3, plain / meanwhile});
    const double longest = *std::max_element(before.begin(), before.end());
    const double delayed = *std::max_element(during.begin(), during.end());
    results->push_back({"restart/checkpoint/longest", delayed * 1e3, "ms", longest * 1e3, longest / delayed});
    const auto status = AdminClient({address}).GetStatus(kPatience).front();
    if (!status.ok()) return status.status();
    const double hold = reply->longest_hold_seconds();
    const double copy = CopySeconds(reply->bytes() / static_cast<uint64_t>(status->segments_size()));
    results->push_back({"restart/checkpoint/hold", hold * 1e3, "ms", copy * 1e3, copy / hold});
    return absl::OkStatus();
  }

  absl::Status Restarts(Fleet* fleet, ExchangeClient* client, double fresh, std::vector<BenchResult>* results) {
    const auto begin = Clock::now();
    const std::vector<double> steps = Steps(client, 20, [] { return true; });
    const double made = SecondsSince(begin);
    if (!client->good()) return absl::InternalError("a push failed");
    Process& server = *fleet->Find("server-0")->process;
    server.Signal(SIGKILL);
    if (!server.Wait(kPatience).has_value()) return absl::InternalError("the server was killed and runs on");
    const auto replayed = StartServer(fleet);
    if (!replayed.ok()) return replayed.status();
    const auto status = AdminClient({fleet->address_list()}).GetStatus(kPatience).front();
    if (!status.ok()) return status.status();
    if (status->replayed_events() < steps.size()) {
      return absl::InternalError(absl::StrCat(status->replayed_events(), " events came back of ", steps.size(), " steps"));
    }
    // It leaves a checkpoint, and nothing to replay.
    fleet->Terminate(Role::kServer, kPatience);
    const auto loaded = StartServer(fleet);
    if (!loaded.ok()) return loaded.status();
    const double limit = fresh + ReadSeconds(state_);
    results->push_back({"restart/load", *loaded * 1e3, "ms", limit * 1e3, limit / *loaded});
    const double replay = std::max(*replayed - *loaded, 1e-3);
    results->push_back({"restart/replay", made / replay, "times", 1, made / replay});
    return absl::OkStatus();
  }

  const BenchOptions options_;
  const uint64_t elements_;
  const ScratchFolder folder_;
  const std::string state_;
};

}  // namespace

std::vector<BenchResult> BenchRestart(const BenchOptions& options) {
  std::vector<BenchResult> results;
  if (const absl::Status status = Bench(options).Run(&results); !status.ok()) {
    std::fprintf(stderr, "restart benchmark: %s\n", status.ToString().c_str());
  }
  return results;
}

}  // namespace foreshard::bench
