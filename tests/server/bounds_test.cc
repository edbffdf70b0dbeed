// Oracles 5 and 6 of the update rules, under the bounds that go with any rule: the
// staleness bound (SSP), the delay threshold (Ringmaster ASGD) and the worker ramp.
// Dealer and Segment are the very objects that the daemons run.
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "server/dealer.h"
#include "tests/server/segment_harness.h"

namespace foreshard {
namespace {

using Kind = DealerEvent::Kind;

constexpr uint64_t kElements = 120;

// Workers of fixed speeds on one dealer and one segment. Who had to wait for a
// ticket reads the parameters anew when it comes, as the training loop does.
class VirtualJob {
 public:
  struct Release {
    uint32_t worker;
    uint64_t ticket;
    uint64_t held_version;    // of the parameters the batch is computed at
    uint64_t newest_version;  // there was at that moment
  };
  struct Arrival {
    uint32_t worker;
    Outcome outcome;
  };

  VirtualJob(const DealerOptions& dealing, const SegmentOptions& segment, std::vector<uint64_t> ticks)
      : dealer(dealing),
        harness(segment, static_cast<uint32_t>(ticks.size())),
        ticks_(std::move(ticks)),
        ends_(ticks_.size()),
        waited_(ticks_.size(), false) {
    for (uint32_t w = 0; w < ticks_.size(); ++w) dealer.Apply({Kind::kJoin, w});
  }

  void Run() {
    for (uint64_t now = 0; !dealer.finished(); ++now) {
      ASSERT_LT(now, 1'000'000u);
      for (uint32_t w = 0; w < ticks_.size(); ++w) {
        if (!ends_[w].has_value() || ends_[w]->first != now) continue;
        const uint64_t ticket = ends_[w]->second;
        ends_[w].reset();
        arrivals.push_back({w, harness.Push(w, QuadraticGradient(harness.workers[w].parameters, ticket), ticket)});
        ASSERT_TRUE(harness.status.ok()) << harness.status;
        dealer.Apply({Kind::kComplete, w, ticket});
        Ask(w, now);
      }
      for (uint32_t w = 0; w < ticks_.size(); ++w) {
        if (!ends_[w].has_value()) Ask(w, now);
      }
    }
  }

  Dealer dealer;
  SegmentHarness harness;
  std::vector<Release> releases;
  std::vector<Arrival> arrivals;

 private:
  void Ask(uint32_t w, uint64_t now) {
    const Deal deal = dealer.Apply({Kind::kFetch, w, 1});
    if (deal.tickets.empty()) {
      waited_[w] = true;
      return;
    }
    if (waited_[w]) harness.Read(w);
    waited_[w] = false;
    ends_[w] = {now + ticks_[w], deal.tickets[0]};
    releases.push_back({w, deal.tickets[0], harness.workers[w].held_version, harness.segment->version()});
  }

  const std::vector<uint64_t> ticks_;  // of one batch, by worker
  std::vector<std::optional<std::pair<uint64_t, uint64_t>>> ends_;  // when, which ticket
  std::vector<bool> waited_;
};

TEST(Oracle, WithoutSlackWorkersGoInLockStep) {
  for (const std::vector<uint64_t>& ticks :
       {std::vector<uint64_t>{7, 1, 3}, std::vector<uint64_t>{2, 2, 2, 2}, std::vector<uint64_t>{1, 50}}) {
    const auto workers = static_cast<uint32_t>(ticks.size());
    const uint64_t rounds = 40;
    VirtualJob job({.batches_per_epoch = rounds * workers, .epochs = 1, .staleness_bound = 0},
                   MakeSegmentOptions("asgd", kElements, workers, 0.01f), ticks);
    // By hand: in every round all gradients are computed at the parameters from
    // before it, and applied in the order in which they come.
    std::vector<float> theta(job.harness.segment->theta().begin(), job.harness.segment->theta().end());
    ASSERT_NO_FATAL_FAILURE(job.Run());
    ASSERT_EQ(job.releases.size(), rounds * workers);
    std::map<uint64_t, uint64_t> ticket_of;  // by arrival
    for (uint64_t round = 0; round < rounds; ++round) {
      for (uint64_t k = 0; k < workers; ++k) {
        const VirtualJob::Release& release = job.releases[round * workers + k];
        EXPECT_EQ(release.ticket, round * workers + k);
        EXPECT_EQ(release.held_version, round * workers);
        EXPECT_EQ(release.newest_version, round * workers);
      }
      const std::vector<float> before = theta;
      for (uint64_t k = 0; k < workers; ++k) {
        const VirtualJob::Arrival& arrival = job.arrivals[round * workers + k];
        EXPECT_EQ(arrival.outcome.lag, k);
        const auto release = std::find_if(
            job.releases.begin() + static_cast<int64_t>(round * workers), job.releases.end(),
            [&](const VirtualJob::Release& r) { return r.worker == arrival.worker; });
        const std::vector<float> gradient = QuadraticGradient(before, release->ticket);
        for (size_t e = 0; e < kElements; ++e) theta[e] -= 0.01f * gradient[e];
      }
    }
    EXPECT_TRUE(std::equal(theta.begin(), theta.end(), job.harness.segment->theta().begin()));
  }
}

TEST(Oracle, TheStalenessBoundBoundsTheLag) {
  for (const uint32_t bound : {0u, 1u, 3u}) {
    const std::vector<uint64_t> ticks = {1, 2, 9, 30};
    VirtualJob job({.batches_per_epoch = 400, .epochs = 1, .staleness_bound = bound},
                   MakeSegmentOptions("asgd", kElements, 4, 0.01f), ticks);
    ASSERT_NO_FATAL_FAILURE(job.Run());
    uint64_t largest = 0;
    for (const VirtualJob::Arrival& arrival : job.arrivals) largest = std::max(largest, arrival.outcome.lag);
    // While a worker computes one batch, each other completes at most as many as it may
    // be ahead, and those it was behind.
    EXPECT_LE(largest, 3 * (2 * bound + 1));
    EXPECT_GE(largest, 3 * bound);
  }
}

TEST(Oracle, WhoTheRampAdmitsStartsWithTheNewestParameters) {
  VirtualJob job({.batches_per_epoch = 200, .epochs = 1, .ramp_tickets = 150, .ramp_workers = 4},
                 MakeSegmentOptions("dana_zero", kElements, 4, 0.01f), {2, 2, 2, 2});
  ASSERT_NO_FATAL_FAILURE(job.Run());
  std::map<uint32_t, uint64_t> first, batches;
  for (size_t k = 0; k < job.releases.size(); ++k) {
    const VirtualJob::Release& release = job.releases[k];
    if (first.try_emplace(release.worker, k).second) {
      EXPECT_EQ(release.held_version, release.newest_version) << release.worker;
    }
    ++batches[release.worker];
  }
  for (uint32_t w = 1; w < 4; ++w) {
    EXPECT_NEAR(static_cast<double>(first[w]), 50.0 * w, 4) << w;
    EXPECT_LT(batches[w], batches[w - 1]);
  }
}

TEST(Oracle, RingmasterAloneDiscardsNothing) {
  SegmentOptions options = MakeSegmentOptions("asgd", kElements, 1);
  options.delay_threshold = 0;
  SegmentHarness bounded(options, 1), free(MakeSegmentOptions("asgd", kElements, 1), 1);
  for (uint64_t step = 0; step < 300; ++step) {
    EXPECT_EQ(bounded.Push(0, QuadraticGradient(bounded.workers[0].parameters, step), step).result,
              Result::kApplied);
    free.Push(0, QuadraticGradient(free.workers[0].parameters, step), step);
  }
  EXPECT_EQ(bounded.segment->theta(), free.segment->theta());
}

TEST(Oracle, RingmasterDiscardsExactlyWhatIsTooLate) {
  for (const char* rule : {"asgd", "nag_asgd", "dana_zero", "dana_dc", "adam", "smega2"}) {
    SegmentOptions options = MakeSegmentOptions(rule, kElements, 4, 0.01f);
    options.delay_threshold = 3;
    SegmentHarness harness(options, 4);
    uint64_t discarded = 0, version = 0;
    std::vector<uint64_t> held(4);
    for (uint64_t step = 0; step < 400; ++step) {
      const double u = RandomUniform(11, 0, step);
      const auto w = static_cast<uint32_t>(4 * u * u);
      const uint64_t lag = version - held[w];
      const std::vector<float> theta(harness.segment->theta().begin(), harness.segment->theta().end());
      const Outcome outcome = harness.Push(w, QuadraticGradient(harness.workers[w].parameters, step), step);
      ASSERT_TRUE(harness.status.ok()) << harness.status;
      EXPECT_EQ(outcome.lag, lag);
      EXPECT_EQ(outcome.clock, step);
      if (lag > 3) {
        ++discarded;
        ASSERT_EQ(outcome.result, Result::kDiscarded);
        EXPECT_EQ(harness.segment->theta(), absl::MakeConstSpan(theta));
      } else {
        ++version;
        ASSERT_EQ(outcome.result, Result::kApplied);
      }
      ASSERT_EQ(outcome.version, version);
      held[w] = version;
      // The worker has fresh parameters, and the segment knows which.
      EXPECT_EQ(harness.workers[w].held_version, version);
      if (options.keep_all_held) {
        EXPECT_EQ(harness.segment->held(w), absl::MakeConstSpan(harness.workers[w].parameters));
      }
    }
    EXPECT_GT(discarded, 20u) << rule;
    EXPECT_LT(discarded, 200u) << rule;
  }
}

// Oracle 5 with what the bounds bring: what a worker's parameters have aged when they
// are replaced is counted as a lag (and the update itself), a discarded lag, or by a
// read.
TEST(Oracle, LagsAddUpToVersionsSentWithDiscardsAndReads) {
  for (const std::optional<uint64_t> threshold : {std::optional<uint64_t>(), std::optional<uint64_t>(2)}) {
    SegmentOptions options = MakeSegmentOptions("asgd", 50, 5);
    options.delay_threshold = threshold;
    SegmentHarness harness(options, 5);
    uint64_t lags = 0, discarded_lags = 0, read_lags = 0, discarded = 0;
    for (uint64_t step = 0; step < 1000; ++step) {
      const double u = RandomUniform(12, 0, step);
      const auto w = static_cast<uint32_t>(5 * u * u);
      if (RandomBits(12, 1, step) % 4 == 0) {
        read_lags += harness.segment->version() - harness.segment->version_sent(w);
        harness.Read(w);
        continue;
      }
      const Outcome outcome = harness.Push(w, QuadraticGradient(harness.workers[w].parameters, step), step);
      if (outcome.result == Result::kApplied) {
        lags += outcome.lag + 1;
      } else {
        ASSERT_EQ(outcome.result, Result::kDiscarded);
        discarded_lags += outcome.lag;
        ++discarded;
      }
    }
    uint64_t sent = 0;
    for (uint32_t w = 0; w < 5; ++w) sent += harness.segment->version_sent(w);
    EXPECT_EQ(lags + discarded_lags + read_lags, sent);
    EXPECT_EQ(discarded > 0, threshold.has_value());
    EXPECT_GT(read_lags, 0u);
  }
}

}  // namespace
}  // namespace foreshard
