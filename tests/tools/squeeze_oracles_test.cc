// APMSqueeze's servers and workers together, without network: nothing is ever lost, whoever
// comes, goes, is late or absent; and every bit is where it should be.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "tests/server/segment_records.h"
#include "tests/tools/squeeze_fleet.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

std::vector<float> Gradient(uint64_t elements, uint64_t round, uint64_t worker) {
  std::vector<float> gradient(elements);
  for (uint64_t k = 0; k < elements; ++k) {
    // Scales that differ by element and change with time.
    const double scale = 0.01 + RandomUniform(5, 1, k);
    gradient[k] = static_cast<float>(
        scale * RandomNormal(6, round * 64 + worker, k) + 0.1 * std::sin(0.1 * static_cast<double>(round + k)));
  }
  return gradient;
}

// The terms of the conservation law, in fp64.
struct Balance {
  explicit Balance(const SqueezeFleet& fleet, double members) {
    const auto rule = fleet.rule().momentum();
    momentum.assign(rule.begin(), rule.end());
    error.assign(fleet.rule().error().begin(), fleet.rule().error().end());
    for (const SqueezeFleet::Worker& worker : fleet.workers) {
      if (!worker.member) continue;
      for (size_t k = 0; k < error.size(); ++k) error[k] += worker.error[k] / members;
    }
  }
  std::vector<double> momentum, error;
};

// || m' + E' - (beta1 m + (1 - beta1) g + E) || over the largest term's norm. Where gradients are
// compressed the errors are gradients' too, and count (1 - beta1) times.
double Imbalance(const SqueezeFleet& fleet, const Balance& before, const Balance& after,
                 const std::vector<double>& gradient) {
  const double beta = fleet.options.beta1;
  const double share = fleet.options.compress_gradients ? 1 - beta : 1;
  double off = 0, m = 0, g = 0, e = 0;
  for (size_t k = 0; k < gradient.size(); ++k) {
    const double terms[] = {after.momentum[k], share * after.error[k], beta * before.momentum[k],
                            (1 - beta) * gradient[k], share * before.error[k]};
    off += std::pow(terms[0] + terms[1] - terms[2] - terms[3] - terms[4], 2);
    m += std::max(terms[0] * terms[0], terms[2] * terms[2]);
    g += terms[3] * terms[3];
    e += std::max(terms[1] * terms[1], terms[4] * terms[4]);
  }
  return std::sqrt(off / std::max({m, g, e, 1e-30}));
}

class Conservation : public ::testing::TestWithParam<std::tuple<CodecId, bool>> {
 protected:
  SqueezeFleetOptions Options(uint32_t workers, uint64_t elements) const {
    SqueezeFleetOptions options;
    options.codec = std::get<0>(GetParam());
    options.compress_gradients = std::get<1>(GetParam());
    options.workers = workers;
    options.elements = elements;
    return options;
  }

  // Rounds in full precision, up to the freeze.
  static void WarmUp(SqueezeFleet* fleet) {
    for (uint64_t round = 0; round < fleet->options.freeze_round; ++round) {
      for (uint32_t w = 0; w < fleet->options.workers; ++w) {
        fleet->Contribute(w, Gradient(fleet->options.elements, round, w));
      }
      fleet->Close();
      for (uint32_t w = 0; w < fleet->options.workers; ++w) fleet->Fetch(w);
    }
    ASSERT_EQ(fleet->segment->phase(), Phase::kFrozen);
  }

  static void ExpectInStep(const SqueezeFleet& fleet, uint32_t w) {
    const SqueezeFleet::Worker& worker = fleet.workers[w];
    ASSERT_EQ(std::memcmp(worker.parameters.data(), fleet.segment->theta().data(),
                          worker.parameters.size() * sizeof(float)), 0) << "worker " << w;
    ASSERT_EQ(std::memcmp(worker.replica->momentum().data(), fleet.rule().momentum().data(),
                          worker.parameters.size() * sizeof(float)), 0) << "worker " << w;
  }
};

// Oracle 8, first part: fixed members, some of them absent or late.
TEST_P(Conservation, HoldsWithAbsentAndLateWorkers) {
  for (const uint32_t n : {1u, 2u, 3u, 5u, 7u}) {
    for (const uint64_t elements : {uint64_t{1}, uint64_t{37}, uint64_t{1000}}) {
      SqueezeFleet fleet(Options(n, elements));
      WarmUp(&fleet);
      double worst = 0;
      for (uint64_t round = fleet.segment->open_round(); round < 60; ++round) {
        const Balance before(fleet, n);
        std::vector<double> mean(elements);
        const auto count = [&](const std::vector<float>& gradient) {
          for (uint64_t k = 0; k < elements; ++k) mean[k] += double{gradient[k]} / n;
        };
        std::vector<uint32_t> late;
        for (uint32_t w = 0; w < n; ++w) {
          const uint64_t choice = RandomBits(3, round, w) % 8;
          const bool last = w + 1 == n && late.size() + 1 == n;
          if (choice == 0 && !last) {
            fleet.Skip(w);
          } else if (choice == 1 && !last) {
            late.push_back(w);
            fleet.Absent(w);
          } else {
            const std::vector<float> gradient = Gradient(elements, round, w);
            fleet.Contribute(w, gradient);
            count(gradient);
          }
        }
        ASSERT_TRUE(fleet.segment->RoundComplete());
        const uint64_t version = fleet.segment->version();
        fleet.Close();
        for (uint32_t w = 0; w < n; ++w) {
          if (std::find(late.begin(), late.end(), w) == late.end()) {
            fleet.Fetch(w);
            continue;
          }
          // Its gradient counts all the same, from its error.
          const std::vector<float> gradient = Gradient(elements, round, w);
          EXPECT_EQ(fleet.Contribute(w, gradient).result, Result::kLate);
          count(gradient);
        }
        for (uint32_t w = 0; w < n; ++w) ExpectInStep(fleet, w);
        if (fleet.segment->version() == version) continue;  // nobody contributed
        worst = std::max(worst, Imbalance(fleet, before, Balance(fleet, n), mean));
      }
      EXPECT_LT(worst, 1e-6) << n << " workers, " << elements << " elements";
    }
  }
}

// Oracle 8, second part: n from 1 to 7 and back, by joins, polite leaves and deaths.
TEST_P(Conservation, HoldsWhileMembersComeAndGo) {
  constexpr uint64_t kElements = 533;
  SqueezeFleet fleet(Options(1, kElements));
  WarmUp(&fleet);
  std::vector<Member> members = {{.worker = 0, .incarnation = 1}};
  uint32_t n = 1;
  double worst = 0, worst_death = 0;
  // What happens before a round: a slot joins, leaves, or dies.
  const std::vector<std::pair<char, uint32_t>> changes = {
      {'+', 1}, {'+', 2}, {'+', 3}, {'x', 1}, {'+', 4}, {'+', 1}, {'+', 5}, {'+', 6}, {'-', 2},
      {'x', 0}, {'-', 6}, {'x', 4}, {'+', 0}, {'-', 5}, {'x', 3}, {'-', 1}, {'+', 2}};
  size_t next = 0;
  for (uint64_t round = fleet.segment->open_round(); next < changes.size() || round % 3 != 0; ++round) {
    std::vector<double> mean(kElements);
    std::vector<uint32_t> present;
    for (const Member& member : members) {
      if (member.first_round <= round) present.push_back(member.worker);
    }
    ASSERT_EQ(present.size(), n);
    ASSERT_EQ(fleet.segment->round_members(), n);
    const Balance before(fleet, n);
    const bool changing = round % 3 == 0 && next < changes.size();
    const auto [kind, slot] = changing ? changes[next++] : std::pair<char, uint32_t>{' ', 0};
    if (kind == '+') {
      SqueezeFleet::Worker& worker = fleet.workers[slot];
      ++worker.incarnation;
      fleet.Start(slot);
      worker.member = false;  // not of this round
      members.push_back({.worker = slot, .incarnation = worker.incarnation, .first_round = round + 1});
      fleet.ChangeView(members);
    } else if (kind == 'x' || kind == '-') {
      std::erase_if(members, [&](const Member& member) { return member.worker == slot; });
    }
    std::vector<double> dead(kElements);
    for (const uint32_t w : present) {
      if (kind == 'x' && w == slot) {
        for (size_t k = 0; k < dead.size(); ++k) dead[k] = fleet.workers[w].error[k];
        continue;
      }
      const std::vector<float> gradient = Gradient(kElements, round, w);
      // Who leaves says all it has kept back with its last contribution.
      fleet.Contribute(w, gradient, kind == '-' && w == slot);
      for (uint64_t k = 0; k < kElements; ++k) mean[k] += double{gradient[k]} / n;
    }
    if (kind == 'x' || kind == '-') fleet.ChangeView(members);
    ASSERT_TRUE(fleet.segment->RoundComplete());
    fleet.Close();
    const uint32_t n_before = n;
    n = fleet.segment->round_members();
    for (const Member& member : members) {
      if (member.first_round == round + 1) {
        // Others have gone on since it read: it takes the whole state again.
        fleet.workers[member.worker].member = true;
      }
      fleet.Fetch(member.worker);
    }
    if (kind == '-') {
      EXPECT_TRUE(std::all_of(fleet.workers[slot].error.begin(), fleet.workers[slot].error.end(),
                              [](float e) { return e == 0; }));
    }
    if (kind == 'x' || kind == '-') fleet.workers[slot].member = false;
    Balance after(fleet, n);
    if (kind == 'x') {
      // A death takes its share of the error along, and nothing else.
      double norm = 0;
      for (uint64_t k = 0; k < kElements; ++k) {
        after.error[k] += dead[k] / n_before;
        norm += dead[k] * dead[k];
      }
      EXPECT_EQ(norm > 0, fleet.options.codec != CodecId::kNone);
      worst_death = std::max(worst_death, Imbalance(fleet, before, after, mean));
    } else {
      worst = std::max(worst, Imbalance(fleet, before, after, mean));
    }
    for (const Member& member : members) ExpectInStep(fleet, member.worker);
  }
  EXPECT_LT(worst, 1e-6);
  EXPECT_LT(worst_death, 1e-6);
}

// A fold takes everybody's error to the server and keeps the sum.
TEST_P(Conservation, FoldsKeepTheSum) {
  SqueezeFleetOptions options = Options(3, 777);
  options.fold_rounds = 4;
  SqueezeFleet fleet(options);
  WarmUp(&fleet);
  int folds = 0;
  for (uint64_t round = fleet.segment->open_round(); round < 40; ++round) {
    const Balance before(fleet, 3);
    std::vector<double> mean(options.elements);
    const bool fold = round > options.freeze_round && (round - options.freeze_round) % 4 == 0;
    EXPECT_EQ(fleet.segment->folds(), fold);
    for (uint32_t w = 0; w < 3; ++w) {
      const std::vector<float> gradient = Gradient(options.elements, round, w);
      fleet.Contribute(w, gradient);
      for (uint64_t k = 0; k < options.elements; ++k) mean[k] += double{gradient[k]} / 3;
    }
    fleet.Close();
    for (uint32_t w = 0; w < 3; ++w) {
      // As if another device had rounded differently.
      fleet.workers[w].parameters[5] += 1e-3f;
      fleet.Fetch(w);
      EXPECT_EQ(fleet.last_parts, fold ? kResultPart | kParametersPart : uint32_t{kResultPart});
      if (!fold) fleet.workers[w].parameters[5] = fleet.segment->theta()[5];
      ExpectInStep(fleet, w);
      if (fold) {
        EXPECT_TRUE(std::all_of(fleet.workers[w].error.begin(), fleet.workers[w].error.end(),
                                [](float e) { return e == 0; }));
      }
    }
    folds += fold;
    EXPECT_LT(Imbalance(fleet, before, Balance(fleet, 3), mean), 1e-6) << round;
  }
  EXPECT_GT(folds, 5);
}

INSTANTIATE_TEST_SUITE_P(EveryCodec, Conservation,
                         ::testing::Combine(::testing::Values(CodecId::kNone, CodecId::kFp16, CodecId::kBf16,
                                                              CodecId::kOneBit, CodecId::kOneBitMean,
                                                              CodecId::kTopK, CodecId::kRandomK, CodecId::kQuantized),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           std::string name(CodecSet().Find(std::get<0>(info.param))->name());
                           std::erase(name, '_');
                           return name + (std::get<1>(info.param) ? "Gradients" : "Momenta");
                         });

// Oracle 9: without compression this is momentum over a frozen variance, summed in worker
// order.
TEST(ApmSqueeze, WithoutCompressionIsFrozenMomentumToTheBit) {
  SqueezeFleetOptions options;
  options.codec = CodecId::kNone;
  options.weight_decay = 0.01f;
  options.freeze_round = 7;
  SqueezeFleet fleet(options);
  const uint64_t d = options.elements;
  std::vector<float> m(d), v(d), x(fleet.segment->theta().begin(), fleet.segment->theta().end());
  const float beta1 = options.beta1, beta2 = options.beta2;
  for (uint64_t round = 0; round < 50; ++round) {
    std::vector<float> sum(d), gradients[3];
    for (uint32_t w = 0; w < 3; ++w) gradients[w] = Gradient(d, round, w);
    // In whatever order they come.
    for (const uint32_t w : {(0 + round) % 3, (2 + round) % 3, (1 + round) % 3}) {
      fleet.Contribute(static_cast<uint32_t>(w), gradients[w]);
    }
    fleet.Close();
    for (uint32_t w = 0; w < 3; ++w) fleet.Fetch(w);
    const float third = 1.0f / 3.0f;
    if (round == 7) {
      // The floor, over blocks of 100.
      for (uint64_t at = 0; at < d; at += 100) {
        double mean = 0;
        for (uint64_t k = at; k < at + 100; ++k) mean += double{v[k]} / 100;
        for (uint64_t k = at; k < at + 100; ++k) {
          v[k] = std::max(std::sqrt(v[k]), static_cast<float>(0.01 * std::sqrt(mean))) + 1e-8f;
        }
      }
    }
    for (uint64_t k = 0; k < d; ++k) {
      float total = 0;
      for (const std::vector<float>& gradient : gradients) {
        float part = gradient[k];
        if (round >= 7) part = beta1 * m[k] + (1 - beta1) * part;
        total += part;
      }
      const float mean = total * third;
      float step;
      if (round < 7) {
        m[k] = beta1 * m[k] + (1 - beta1) * mean;
        v[k] = beta2 * v[k] + (1 - beta2) * (mean * mean);
        step = m[k] / (std::sqrt(v[k]) + 1e-8f);
      } else {
        m[k] = mean;
        step = m[k] / v[k];
      }
      step += 0.01f * x[k];
      x[k] -= options.eta * step;
    }
    ASSERT_EQ(std::memcmp(x.data(), fleet.segment->theta().data(), d * sizeof(float)), 0) << round;
    for (uint32_t w = 0; w < 3; ++w) {
      ASSERT_EQ(std::memcmp(x.data(), fleet.workers[w].parameters.data(), d * sizeof(float)), 0) << round;
    }
  }
}

TEST(ApmSqueeze, TheFreezeCorrectsTheBiasOnce) {
  SqueezeFleetOptions options;
  options.bias_correction = true;
  options.workers = 1;
  options.freeze_round = 3;
  options.elements = 100;
  SqueezeFleet fleet(options);
  const std::vector<float> ones(100, 1.0f);
  for (int round = 0; round < 3; ++round) {
    fleet.Contribute(0, ones);
    fleet.Close();
    fleet.Fetch(0);
  }
  // The corrected moments of a constant gradient are the gradient and its square.
  EXPECT_NEAR(fleet.rule().momentum()[7], 1, 1e-6);
  EXPECT_NEAR(fleet.rule().denominator()[7], 1, 1e-6);
  EXPECT_EQ(fleet.last_parts, uint32_t{kParametersPart | kMomentumPart | kDenominatorPart});
  const float before = fleet.segment->theta()[7];
  fleet.Contribute(0, ones);
  fleet.Close();
  EXPECT_NEAR(before - fleet.segment->theta()[7], options.eta, 1e-6);
}

// algorithms.md, 3: without the floor a coordinate whose variance is tiny is thrown by its
// block's scale; masked out it would never train.
TEST(ApmSqueeze, TinyAndZeroVarianceNeitherRunsAwayNorStandsStill) {
  SqueezeFleetOptions options;
  options.workers = 2;
  options.elements = 300;  // three blocks; the last one sees no gradient before the freeze
  options.freeze_round = 50;
  options.eta = 0.003f;
  SqueezeFleet fleet(options);
  std::vector<float> target(300);
  for (int k = 0; k < 300; ++k) target[k] = static_cast<float>(RandomNormal(9, 0, k));
  const auto curvature = [](uint64_t k) { return k % 3 == 0 ? 1e-4f : 1.0f; };
  double largest = 0;
  const auto loss = [&] {
    double sum = 0;
    for (int k = 0; k < 300; ++k) {
      const double off = fleet.segment->theta()[k] - target[k];
      sum += (k % 3 == 0 && k < 200 ? 0 : 1) * off * off / 300;
    }
    return sum;
  };
  const double start = loss();
  for (uint64_t round = 0; round < 1500; ++round) {
    for (uint32_t w = 0; w < 2; ++w) {
      std::vector<float> gradient(300);
      for (uint64_t k = 0; k < 300; ++k) {
        if (k >= 200 && round < 100) continue;
        gradient[k] = curvature(k) * (fleet.workers[w].parameters[k] - target[k] +
                                      0.1f * static_cast<float>(RandomNormal(7, round * 2 + w, k)));
      }
      fleet.Contribute(w, gradient);
    }
    fleet.Close();
    for (uint32_t w = 0; w < 2; ++w) fleet.Fetch(w);
    for (const float x : fleet.segment->theta()) largest = std::max<double>(largest, std::fabs(x));
  }
  EXPECT_LT(largest, 10);
  EXPECT_LT(loss(), start / 4);
  double late = 0, late_start = 0;
  for (int k = 200; k < 300; ++k) {
    if (k % 3 == 0) continue;
    late += std::pow(fleet.segment->theta()[k] - target[k], 2);
    late_start += std::pow(static_cast<float>(RandomNormal(1, 1, k)) - target[k], 2);
  }
  EXPECT_LT(late, late_start / 10);
}

TEST(ApmSqueeze, AReturnToFullPrecisionTakesAllErrorsIntoTheMomentum) {
  SqueezeFleetOptions options;
  SqueezeFleet fleet(options);
  const auto run = [&](uint64_t rounds) {
    for (uint64_t k = 0; k < rounds; ++k) {
      const uint64_t round = fleet.segment->open_round();
      for (uint32_t w = 0; w < 3; ++w) fleet.Contribute(w, Gradient(options.elements, round, w));
      fleet.Close();
      for (uint32_t w = 0; w < 3; ++w) fleet.Fetch(w);
    }
  };
  run(20);
  const uint64_t from = fleet.segment->open_round() + 3;
  // Too early: the round before must take the errors in.
  fleet.Send({.kind = EventKind::kPhaseChange, .ticket = from - 2}, {});
  EXPECT_THAT(std::string(fleet.status.message()), HasSubstr("is the first that can begin it"));
  fleet.Send({.kind = EventKind::kPhaseChange, .ticket = from}, {});
  ASSERT_TRUE(fleet.status.ok()) << fleet.status;
  run(2);
  EXPECT_TRUE(fleet.segment->folds());
  const Balance before(fleet, 3);
  std::vector<double> mean(options.elements);
  for (uint32_t w = 0; w < 3; ++w) {
    const std::vector<float> gradient = Gradient(options.elements, 99, w);
    fleet.Contribute(w, gradient);
    for (uint64_t k = 0; k < options.elements; ++k) mean[k] += double{gradient[k]} / 3;
  }
  fleet.Close();
  EXPECT_EQ(fleet.segment->phase(), Phase::kFull);
  for (uint32_t w = 0; w < 3; ++w) fleet.Fetch(w);
  EXPECT_LT(Imbalance(fleet, before, Balance(fleet, 3), mean), 1e-6);
  for (const float e : fleet.rule().error()) ASSERT_EQ(e, 0);
  for (uint32_t w = 0; w < 3; ++w) EXPECT_FALSE(fleet.workers[w].replica->frozen(fleet.plan));
  run(5);
  // And freeze anew.
  fleet.Send({.kind = EventKind::kPhaseChange, .ticket = fleet.segment->open_round() + 1,
              .argument = static_cast<uint64_t>(Phase::kFrozen)}, {});
  run(5);
  EXPECT_EQ(fleet.segment->phase(), Phase::kFrozen);
  EXPECT_EQ(fleet.last_parts, uint32_t{kResultPart});
}

TEST(ApmSqueeze, AnAutomaticFreezeWaitsForItsAnnouncementAndFoldsCountFromIt) {
  SqueezeFleetOptions options;
  options.freeze_round = SqueezeOptions::kAutomatic;
  options.fold_rounds = 4;
  SqueezeFleet fleet(options);
  std::vector<uint64_t> frozen, folds;
  for (uint64_t round = 0; round < 30; ++round) {
    if (round == 10) {
      fleet.Send({.kind = EventKind::kPhaseChange, .ticket = 13,
                  .argument = static_cast<uint64_t>(Phase::kFrozen)}, {});
      ASSERT_TRUE(fleet.status.ok()) << fleet.status;
      EXPECT_EQ(fleet.segment->announced_round(), 13u);
    }
    if (fleet.segment->phase() == Phase::kFrozen) frozen.push_back(round);
    if (fleet.segment->folds()) folds.push_back(round);
    for (uint32_t w = 0; w < 3; ++w) fleet.Contribute(w, Gradient(options.elements, round, w));
    fleet.Close();
    for (uint32_t w = 0; w < 3; ++w) fleet.Fetch(w);
  }
  ASSERT_EQ(frozen.size(), 17u);
  EXPECT_EQ(frozen.front(), 13u);
  EXPECT_EQ(folds, (std::vector<uint64_t>{17, 21, 25, 29}));
}

TEST(ApmSqueeze, EveryFewRoundsOneIsMeasured) {
  SqueezeFleetOptions options;
  options.freeze_round = 8;
  options.measure_rounds = 4;
  options.bias_correction = true;
  SqueezeFleet fleet(options);
  std::vector<double> v(options.elements);
  double power = 1;
  const double beta2 = options.beta2;
  for (uint64_t round = 0; round < 16; ++round) {
    std::vector<float> mean(options.elements);
    for (uint32_t w = 0; w < 3; ++w) {
      const std::vector<float> gradient = Gradient(options.elements, round, w);
      for (size_t k = 0; k < mean.size(); ++k) mean[k] += gradient[k] / 3;
      fleet.Contribute(w, gradient);
    }
    double sum = 0;
    power *= beta2;
    for (size_t k = 0; k < mean.size(); ++k) {
      v[k] = beta2 * v[k] + (1 - beta2) * mean[k] * mean[k];
      sum += v[k] / (1 - power);
    }
    const Outcome closed = fleet.Send({.kind = EventKind::kRoundClosed, .argument = round}, {});
    ASSERT_EQ(closed.measure.has_value(), round % 4 == 3) << round;
    for (uint32_t w = 0; w < 3; ++w) fleet.Fetch(w);
    if (!closed.measure.has_value()) continue;
    EXPECT_EQ(closed.measure->round, round);
    EXPECT_EQ(fleet.segment->measure().round, round);
    if (round < 8) {
      EXPECT_NEAR(closed.measure->variance_sum, sum, 1e-5 * sum);
      EXPECT_EQ(closed.measure->momentum_squares, 0);
      continue;
    }
    double error = 0, momentum = 0;
    for (size_t k = 0; k < mean.size(); ++k) {
      error += double{fleet.rule().error()[k]} * fleet.rule().error()[k];
      momentum += double{fleet.rule().momentum()[k]} * fleet.rule().momentum()[k];
    }
    EXPECT_GT(error, 0);
    EXPECT_NEAR(closed.measure->error_squares, error, 1e-9 * error);
    EXPECT_NEAR(closed.measure->momentum_squares, momentum, 1e-9 * momentum);
    EXPECT_EQ(closed.measure->variance_sum, 0);
  }
}

TEST(ApmSqueeze, ASkipThatComesTooLateLosesNothing) {
  SqueezeFleet fleet({});
  for (uint64_t round = 0; round < 8; ++round) {
    for (uint32_t w = 0; w < 3; ++w) fleet.Contribute(w, Gradient(fleet.options.elements, round, w));
    fleet.Close();
    for (uint32_t w = 0; w < 3; ++w) fleet.Fetch(w);
  }
  fleet.Absent(2);
  for (uint32_t w = 0; w < 2; ++w) fleet.Contribute(w, Gradient(fleet.options.elements, 8, w));
  fleet.Close();
  const std::vector<float> error = fleet.workers[2].error;
  const Outcome late = fleet.Send({.kind = EventKind::kSkip, .worker = 2, .incarnation = 1,
                                   .sequence = ++fleet.workers[2].sequence,
                                   .held_version = fleet.workers[2].held_version, .argument = 8}, {});
  EXPECT_EQ(late.result, Result::kLate);
  fleet.Take(2, late);
  EXPECT_TRUE(fleet.workers[2].error == error);
  EXPECT_EQ(fleet.workers[2].held_version, fleet.segment->version());
}

TEST(ApmSqueeze, AFreezeAfterARoundWithoutContributionsIsSeen) {
  SqueezeFleetOptions options;
  options.freeze_round = 3;
  SqueezeFleet fleet(options);
  for (uint64_t round = 0; round < 2; ++round) {
    for (uint32_t w = 0; w < 3; ++w) fleet.Contribute(w, Gradient(options.elements, round, w));
    fleet.Close();
    for (uint32_t w = 0; w < 3; ++w) fleet.Fetch(w);
  }
  for (uint32_t w = 0; w < 3; ++w) fleet.Skip(w);
  fleet.Close();
  ASSERT_EQ(fleet.segment->phase(), Phase::kFrozen);
  EXPECT_EQ(fleet.segment->version(), 2u);
  for (uint32_t w = 0; w < 3; ++w) {
    fleet.Fetch(w);
    EXPECT_TRUE(fleet.workers[w].replica->frozen(fleet.plan));
    EXPECT_EQ(fleet.workers[w].replica->denominator()[3], fleet.rule().denominator()[3]);
  }
}

TEST(ApmSqueeze, RefusesWhatDoesNotBelongToItsRound) {
  SqueezeFleetOptions options;
  SqueezeFleet fleet(options);
  const auto send = [&](uint64_t round, CodecId codec, float value, uint64_t sequence) {
    fleet.sent_codec = codec;
    const std::vector<float> values(options.elements, value);
    std::vector<uint8_t> bytes(EncodedBytes(*FindCodec(codec), fleet.plan.blocks));
    EncodeSegment(*FindCodec(codec), fleet.plan.blocks, values.data(), nullptr, {}, bytes.data());
    return fleet.Send({.kind = EventKind::kPush, .codec = static_cast<uint8_t>(codec), .worker = 0,
                       .incarnation = 1, .sequence = sequence, .argument = round}, bytes);
  };
  send(0, CodecId::kOneBit, 1, 1);
  EXPECT_THAT(std::string(fleet.status.message()), HasSubstr("the variance is not frozen yet"));
  EXPECT_EQ(send(0, CodecId::kNone, 1, 1).result, Result::kPending);
  EXPECT_EQ(send(0, CodecId::kNone, 1, 1).result, Result::kPending);  // said again
  send(0, CodecId::kNone, 2, 1);
  EXPECT_THAT(std::string(fleet.status.message()), HasSubstr("sends other bytes than before"));
  EXPECT_TRUE(absl::IsInvalidArgument(fleet.status));
  fleet.workers[0].sequence = 1;
  for (uint64_t round = 0; round < options.freeze_round; ++round) {
    for (uint32_t w = round == 0 ? 1 : 0; w < 3; ++w) {
      fleet.Contribute(w, Gradient(options.elements, round, w));
    }
    fleet.Close();
    for (uint32_t w = 0; w < 3; ++w) fleet.Fetch(w);
  }
  send(options.freeze_round, CodecId::kFp16, 1, 99);
  EXPECT_THAT(std::string(fleet.status.message()), HasSubstr("as 'fp16', which must be 'one_bit' or 'none'"));
  // A negative or infinite scale.
  std::vector<uint8_t> lies(EncodedBytes(*FindCodec(CodecId::kOneBit), fleet.plan.blocks));
  const float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(lies.data(), &infinite, sizeof infinite);
  fleet.Send({.kind = EventKind::kPush, .codec = static_cast<uint8_t>(CodecId::kOneBit), .worker = 0,
              .incarnation = 1, .sequence = 99, .argument = options.freeze_round}, lies);
  EXPECT_TRUE(absl::IsInvalidArgument(fleet.status)) << fleet.status;
  // Not of the view.
  fleet.sent_codec = CodecId::kOneBit;
  fleet.Send({.kind = EventKind::kPush, .codec = static_cast<uint8_t>(CodecId::kOneBit), .worker = 5,
              .incarnation = 1, .sequence = 1, .argument = options.freeze_round},
             std::vector<uint8_t>(lies.size()));
  // It is not counted: late, as far as the round goes.
  EXPECT_TRUE(fleet.status.ok());
  EXPECT_EQ(fleet.segment->version(), options.freeze_round);
  EXPECT_EQ(fleet.segment->MissingMembers(), (std::vector<uint32_t>{0, 1, 2}));
}

TEST(ApmSqueeze, ViewsThatLieAreRefused) {
  SqueezeFleet fleet({});
  const auto change = [&](uint64_t view, std::vector<Member> members, size_t cut = 0) {
    std::string payload;
    for (const Member& member : members) AppendMember(member, &payload);
    payload.resize(payload.size() - cut);
    fleet.Send({.kind = EventKind::kViewChange, .argument = view},
               ByteSpan(reinterpret_cast<const uint8_t*>(payload.data()), payload.size()));
    return fleet.status;
  };
  EXPECT_THAT(std::string(change(1, {{.worker = 8}}).message()), HasSubstr("beyond the job's 8 slots"));
  EXPECT_THAT(std::string(change(1, {{.worker = 1}, {.worker = 1}}).message()), HasSubstr("twice"));
  EXPECT_THAT(std::string(change(1, {{.worker = 1}}, 3).message()), HasSubstr("no list of members"));
  EXPECT_TRUE(change(1, {{.worker = 1, .incarnation = 1}}).ok());
  EXPECT_THAT(std::string(change(1, {{.worker = 1}}).message()), HasSubstr("does not follow view 1"));
}

// Random lives through every kind of event: records replay to the same bits, from the start
// and from a state saved in the middle.
TEST(ApmSqueeze, ReplaysAndRestoresToTheBit) {
  SqueezeFleetOptions options;
  options.elements = 333;
  options.fold_rounds = 6;
  SqueezeFleet fleet(options);
  std::string saved;
  size_t saved_at = 0;
  for (uint64_t step = 0; step < 60; ++step) {
    if (step == 31) {
      // In the middle of a round.
      fleet.Contribute(1, Gradient(options.elements, step, 1));
      saved = fleet.segment->Save();
      saved_at = fleet.records.size();
    }
    const uint64_t round = fleet.segment->open_round();
    for (uint32_t w = 0; w < 3; ++w) {
      if (step == 31 && w == 1) continue;
      if (step % 7 == 3 && w == 2) {
        fleet.Absent(w);
      } else if (step % 5 == 2 && w == 0) {
        fleet.Skip(w);
      } else {
        fleet.Contribute(w, Gradient(options.elements, step, w));
      }
    }
    fleet.Close();
    for (uint32_t w = 0; w < 3; ++w) {
      if (step % 7 == 3 && w == 2) {
        EXPECT_EQ(fleet.Push(w, round, fleet.Encode(w, Gradient(options.elements, step, w))).result, Result::kLate);
      } else {
        fleet.Fetch(w);
      }
    }
    if (step == 40) fleet.ChangeView({{.worker = 0, .incarnation = 1}, {.worker = 1, .incarnation = 1},
                                      {.worker = 2, .incarnation = 1}});
  }
  const std::string end = fleet.segment->Save();
  for (const bool from_the_middle : {false, true}) {
    const auto copy = Segment::Create(fleet.segment_options).value();
    if (from_the_middle) {
      const absl::Status loaded = copy->Load(saved);
      ASSERT_TRUE(loaded.ok()) << loaded;
      EXPECT_TRUE(copy->Save() == saved);
    }
    ReplayRecords(std::string_view(fleet.records).substr(from_the_middle ? saved_at : 0), copy.get());
    EXPECT_TRUE(copy->Save() == end) << (from_the_middle ? "from the middle" : "from the start");
  }
}

// One-bit contributions still reach the optimum of a noisy quadratic.
TEST(ApmSqueeze, ConvergesWithOneBit) {
  for (const bool gradients : {false, true}) {
    SqueezeFleetOptions options;
    options.compress_gradients = gradients;
    options.freeze_round = 100;
    options.eta = 0.005f;
    SqueezeFleet fleet(options);
    double first = 0, last = 0;
    for (uint64_t round = 0; round < 2000; ++round) {
      for (uint32_t w = 0; w < 3; ++w) {
        std::vector<float> gradient(options.elements);
        for (uint64_t k = 0; k < options.elements; ++k) {
          const double curvature = 0.1 + 0.9 * RandomUniform(2, 2, k);
          gradient[k] = static_cast<float>(curvature * fleet.workers[w].parameters[k] +
                                           0.05 * RandomNormal(8, round * 3 + w, k));
        }
        fleet.Contribute(w, gradient);
      }
      fleet.Close();
      for (uint32_t w = 0; w < 3; ++w) fleet.Fetch(w);
      double norm = 0;
      for (const float x : fleet.segment->theta()) norm += double{x} * x;
      if (round == 0) first = norm;
      last = norm;
    }
    EXPECT_LT(last, first / 100) << gradients;
  }
}

}  // namespace
}  // namespace foreshard
