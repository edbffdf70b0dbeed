// The journal on this machine's disk (the folder for temporary files): what recording an
// event costs beside writing its bytes, synced groups beside the disk's own rate of syncs,
// reading back beside reading the bytes.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/random.h"
#include "common/storage/storage.h"
#include "server/journal.h"
#include "server/journal_reader.h"
#include "tools/bench/bench.h"
#include "tools/bench/measure.h"

namespace foreshard::bench {
namespace {

constexpr uint64_t kPassBytes = 64 << 20;
constexpr int kSyncingThreads = 8;

struct Payload {
  const char* name;
  uint64_t bytes;
};
// A segment's push in one_bit with its scales, and in fp32.
constexpr Payload kPayloads[] = {{"one_bit", (1 << 17) + (1 << 10)}, {"fp32", 4 << 20}};

// The fastest of several passes, each of which says how long it took.
template <typename Pass>
double Fastest(const BenchOptions& options, Pass pass) {
  const auto start = std::chrono::steady_clock::now();
  double best = 1e300;
  int passes = 0;
  do {
    best = std::min(best, pass());
  } while (++passes < 2 || SecondsSince(start) < options.seconds);
  return best;
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_(options), pass_bytes_(options.quick ? kPassBytes / 8 : kPassBytes), random_(4 << 20) {
    for (size_t k = 0; k < random_.size(); k += 8) {
      const uint64_t bits = RandomBits(1, 2, k);
      std::memcpy(&random_[k], &bits, sizeof bits);
    }
  }

  absl::Status Run(std::vector<BenchResult>* results) {
    auto storage = OpenStorage(folder_.path());
    if (!storage.ok()) return storage.status();
    storage_ = *std::move(storage);
    for (const Payload& payload : kPayloads) {
      if (absl::Status status = Buffered(payload, results); !status.ok()) return status;
    }
    return Synced(results);
  }

 private:
  using Clock = std::chrono::steady_clock;

  Event EventOf(const ByteSpan& piece, uint64_t number) const {
    return {.kind = EventKind::kPush,
            .codec = 1,
            .number = number,
            .payload = {absl::MakeConstSpan(&piece, 1), piece.size()}};
  }

  // Plain appends of as many bytes, in GB/s.
  absl::StatusOr<double> PlainWrite(const ByteSpan& piece, uint64_t count) {
    absl::Status status;
    const double seconds = Fastest(options_, [&] {
      auto file = storage_->Create("plain");
      if (!file.ok()) status = file.status();
      if (!status.ok()) return 1.0;
      const auto start = Clock::now();
      for (uint64_t k = 0; k < count && status.ok(); ++k) status = (*file)->Append({piece});
      const double taken = SecondsSince(start);
      if (status.ok()) status = storage_->Remove("plain");
      return taken;
    });
    if (!status.ok()) return status;
    return static_cast<double>(count * piece.size()) / seconds * 1e-9;
  }

  absl::Status Buffered(const Payload& payload, std::vector<BenchResult>* results) {
    const ByteSpan piece = ByteSpan(random_).first(payload.bytes);
    const uint64_t count = std::max<uint64_t>(1, pass_bytes_ / payload.bytes);
    const auto limit = PlainWrite(piece, count);
    if (!limit.ok()) return limit.status();
    if (absl::Status removed = RemoveFiles(); !removed.ok()) return removed;
    auto journal =
        Journal::Open(storage_.get(), {.mode = JournalMode::kBuffered, .file_bytes = 2 * kPassBytes});
    if (!journal.ok()) return journal.status();
    uint64_t number = (*journal)->first_number();
    absl::Status status;
    const double seconds = Fastest(options_, [&] {
      const auto start = Clock::now();
      for (uint64_t k = 0; k < count; ++k) (*journal)->Record(EventOf(piece, number++));
      const double taken = SecondsSince(start);
      // One pass stays, to be read.
      const auto file = (*journal)->Rotate();
      if (file.ok()) status = (*journal)->RemoveBefore(*file - 1);
      return taken;
    });
    if (status.ok()) status = (*journal)->Close();
    if (!status.ok()) return status;
    const double bytes = static_cast<double>(count * payload.bytes);
    const double rate = bytes / seconds * 1e-9;
    results->push_back(
        {absl::StrCat("journal/buffered/", payload.name), rate, "GB/s", *limit, rate / *limit});
    results->push_back({absl::StrCat("journal/buffered/", payload.name, "/event"),
                        seconds * 1e6 / static_cast<double>(count), "us",
                        static_cast<double>(payload.bytes) / *limit * 1e-3, rate / *limit});
    return Read(payload, bytes, results);
  }

  absl::Status RemoveFiles() {
    const auto files = ListJournalFiles(*storage_);
    absl::Status status = files.status();
    for (size_t k = 0; status.ok() && k < files->size(); ++k) status = storage_->Remove((*files)[k].name);
    return status;
  }

  absl::Status Read(const Payload& payload, double bytes, std::vector<BenchResult>* results) {
    const auto files = ListJournalFiles(*storage_);
    if (!files.ok()) return files.status();
    absl::Status status;
    const double plain = Fastest(options_, [&] {
      const auto start = Clock::now();
      for (const JournalFileName& file : *files) {
        // In pieces, as the reader does.
        for (uint64_t at = 0, more = 1; more > 0; at += more) {
          const auto content = storage_->ReadAt(file.name, at, kPayloads[1].bytes);
          if (!content.ok()) status = content.status();
          more = content.ok() ? content->size() : 0;
        }
      }
      return SecondsSince(start);
    });
    const double seconds = Fastest(options_, [&] {
      const auto start = Clock::now();
      auto reader = JournalReader::Open(*storage_, {}, 0);
      for (bool more = reader.ok(); more;) {
        const auto event = (*reader)->Next();
        if (!event.ok()) status = event.status();
        more = event.ok() && event->has_value();
      }
      if (!reader.ok()) status = reader.status();
      return SecondsSince(start);
    });
    if (!status.ok()) return status;
    results->push_back({absl::StrCat("journal/read/", payload.name), bytes / seconds * 1e-9, "GB/s",
                        bytes / plain * 1e-9, plain / seconds});
    return absl::OkStatus();
  }

  // The disk's own rate with the bytes of one event, and events a second of one caller and of several.
  absl::Status Synced(std::vector<BenchResult>* results) {
    const ByteSpan piece = ByteSpan(random_).first(kPayloads[0].bytes);
    absl::Status status;
    auto file = storage_->Create("synced");
    if (!file.ok()) return file.status();
    // The mean, as below: single syncs differ much.
    uint64_t syncs = 0;
    const auto begun = Clock::now();
    do {
      status = (*file)->Append({piece});
      if (status.ok()) status = (*file)->Sync();
      ++syncs;
    } while (status.ok() && SecondsSince(begun) < options_.seconds);
    const double plain = SecondsSince(begun) / static_cast<double>(syncs);
    if (status.ok()) status = storage_->Remove("synced");
    if (!status.ok()) return status;
    for (const int count : {1, kSyncingThreads}) {
      auto journal =
          Journal::Open(storage_.get(), {.mode = JournalMode::kSynced, .file_bytes = 2 * kPassBytes});
      if (!journal.ok()) return journal.status();
      std::atomic<uint64_t> number{(*journal)->first_number()};
      const auto start = Clock::now();
      std::vector<std::thread> threads;
      for (int k = 0; k < count; ++k) {
        threads.emplace_back([&] {
          while (SecondsSince(start) < options_.seconds) (*journal)->Record(EventOf(piece, number++));
        });
      }
      for (std::thread& thread : threads) thread.join();
      const double rate = static_cast<double>((*journal)->figures().events) / SecondsSince(start);
      if (!(*journal)->status().ok()) return (*journal)->status();
      results->push_back({absl::StrCat("journal/synced/", count, count == 1 ? "_caller" : "_callers"), rate,
                          "events/s", 1 / plain, rate * plain});
    }
    return absl::OkStatus();
  }

  const BenchOptions options_;
  const uint64_t pass_bytes_;
  std::vector<uint8_t> random_;
  ScratchFolder folder_;
  std::unique_ptr<Storage> storage_;
};

}  // namespace

std::vector<BenchResult> BenchJournal(const BenchOptions& options) {
  std::vector<BenchResult> results;
  if (absl::Status status = Bench(options).Run(&results); !status.ok()) {
    std::fprintf(stderr, "foreshard bench: journal: %s\n", status.ToString().c_str());
    results.clear();
  }
  return results;
}

}  // namespace foreshard::bench
