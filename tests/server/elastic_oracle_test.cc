// Elastic averaging on a noisy quadratic, worker's half and segment together, against the
// equations of the paper (EASGD, arXiv 1412.6651) in fp64.
#include <cmath>
#include <memory>
#include <numeric>
#include <tuple>
#include <vector>

#include "kernels/local_sgd.h"
#include "tests/server/segment_harness.h"

namespace foreshard {
namespace {

constexpr uint64_t kElements = 300;
constexpr uint64_t kLocalSteps = 4;
constexpr float kEta = 0.05f;

using Vector = std::vector<double>;

double NoisyGradient(double x, uint64_t key, uint64_t k) {
  const double curvature = 0.1 + 0.9 * RandomUniform(2, 2, k);
  return curvature * x + 0.1 * RandomNormal(3, key, k);
}

// The paper's worker: algorithms 1 and 2, with v in gradient units.
struct ReferenceWorker {
  Vector x, v;
  void Step(double delta, double lambda, uint64_t key) {
    for (uint64_t k = 0; k < x.size(); ++k) {
      const double at = x[k] - kEta * delta * v[k];
      const double g =
          static_cast<float>(NoisyGradient(static_cast<float>(at), key, k)) + lambda * x[k];
      v[k] = delta * v[k] + g;
      x[k] -= kEta * v[k];
    }
  }
};

class ElasticOracle : public testing::TestWithParam<std::tuple<float, float, bool, uint32_t>> {
 protected:
  void SetUp() override {
    std::tie(delta_, lambda_, synchronous_, workers_) = GetParam();
    alpha_ = 0.9f / static_cast<float>(workers_);
    SegmentOptions options =
        MakeSegmentOptions(delta_ == 0 ? "easgd" : "eamsgd", kElements, workers_, kEta);
    options.synchronous = synchronous_;
    options.members = synchronous_ ? workers_ : 0;
    harness_ = std::make_unique<SegmentHarness>(options, workers_);
    const auto theta = harness_->segment->theta();
    center_.assign(theta.begin(), theta.end());
    for (uint32_t w = 0; w < workers_; ++w) {
      local_.emplace_back(LocalSgdSettings{.momentum = delta_, .weight_decay = lambda_}, kElements,
                          kElements);
      local_.back().Restart(theta.data());
      reference_.push_back({center_, Vector(kElements)});
    }
  }

  void LocalSteps(uint32_t w) {
    for (uint64_t step = 0; step < kLocalSteps; ++step) {
      const uint64_t key = keys_++;
      local_[w].LookAhead(0, kElements, kEta);
      std::vector<float> gradient(kElements);
      for (uint64_t k = 0; k < kElements; ++k) {
        gradient[k] = static_cast<float>(NoisyGradient(local_[w].gradient_point()[k], key, k));
      }
      local_[w].Step(harness_->options.plan.blocks, 0, kEta, gradient.data());
      reference_[w].Step(delta_, lambda_, key);
    }
  }

  // What worker w pushes against what it holds of the center, which it then lacks.
  std::vector<float> Difference(uint32_t w) {
    const std::vector<float> before(local_[w].parameters().begin(), local_[w].parameters().end());
    std::vector<float> difference(kElements);
    EXPECT_TRUE(local_[w].Difference(0, kElements, alpha_, harness_->workers[w].parameters.data(),
                                     difference.data()));
    for (uint64_t k = 0; k < kElements; ++k) {
      lost_[k] += double{before[k]} - local_[w].parameters()[k];
    }
    return difference;
  }

  void AsynchronousExchange(uint32_t w) {
    LocalSteps(w);
    harness_->Read(w);
    harness_->Push(w, Difference(w), keys_);
    for (uint64_t k = 0; k < kElements; ++k) {
      const double e = double{alpha_} * (reference_[w].x[k] - center_[k]);
      center_[k] += e;
      reference_[w].x[k] -= e;
    }
  }

  void Round(uint64_t round) {
    Vector sum(kElements);
    for (uint32_t w = 0; w < workers_; ++w) {
      LocalSteps(w);
      harness_->Read(w);
      harness_->Send({.kind = EventKind::kPush, .worker = w, .incarnation = 1,
                      .sequence = round + 1, .ticket = keys_,
                      .held_version = harness_->workers[w].held_version, .argument = round},
                     Difference(w));
      ASSERT_TRUE(harness_->status.ok()) << harness_->status;
      for (uint64_t k = 0; k < kElements; ++k) {
        const double e = double{alpha_} * (reference_[w].x[k] - center_[k]);
        sum[k] += e;
        reference_[w].x[k] -= e;
      }
    }
    ASSERT_TRUE(harness_->segment->RoundComplete());
    harness_->Send({.kind = EventKind::kRoundClosed, .argument = round}, {});
    for (uint64_t k = 0; k < kElements; ++k) center_[k] += sum[k];
  }

  // In norm, relative to the reference's.
  template <typename Values>
  static double Distance(const Values& values, const Vector& reference) {
    double difference = 0, size = 0;
    for (uint64_t k = 0; k < reference.size(); ++k) {
      difference += (values[k] - reference[k]) * (values[k] - reference[k]);
      size += reference[k] * reference[k];
    }
    return std::sqrt(difference / size);
  }

  float delta_, lambda_, alpha_;
  bool synchronous_;
  uint32_t workers_;
  std::unique_ptr<SegmentHarness> harness_;
  std::vector<LocalSgd> local_;
  std::vector<ReferenceWorker> reference_;
  Vector center_, lost_ = Vector(kElements);
  uint64_t keys_ = 0;
};

INSTANTIATE_TEST_SUITE_P(All, ElasticOracle,
                         testing::Combine(testing::Values(0.0f, 0.9f), testing::Values(0.0f, 1e-2f),
                                          testing::Bool(), testing::Values(1u, 4u, 7u)));

TEST_P(ElasticOracle, IsThePapersEquations) {
  const auto theta = harness_->segment->theta();
  const Vector start(theta.begin(), theta.end());
  const double size = std::sqrt(std::inner_product(start.begin(), start.end(), start.begin(), 0.0));
  for (uint64_t exchange = 0; exchange < 40; ++exchange) {
    if (synchronous_) {
      Round(exchange);
    } else {
      AsynchronousExchange(static_cast<uint32_t>(RandomBits(9, 1, exchange) % workers_));
    }
    ASSERT_TRUE(harness_->status.ok()) << harness_->status;
  }
  EXPECT_LT(Distance(theta, center_), 1e-6);
  for (uint32_t w = 0; w < workers_; ++w) {
    EXPECT_LT(Distance(local_[w].parameters(), reference_[w].x), 1e-6) << w;
  }
  EXPECT_GT(Distance(theta, start), 0.05);  // it went somewhere

  // What the workers lost is what the center has gained.
  double missing = 0;
  for (uint64_t k = 0; k < kElements; ++k) {
    missing += std::pow(double{theta[k]} - start[k] - lost_[k], 2);
  }
  EXPECT_LT(std::sqrt(missing) / size, 1e-6);
}

// Whoever skips a round moves neither itself nor the center.
TEST(ElasticRounds, SumOnlyThoseWhoPushed) {
  SegmentOptions options = MakeSegmentOptions("easgd", 10, 3);
  options.synchronous = true;
  options.members = 3;
  SegmentHarness harness(options, 3);
  const std::vector<float> before(harness.segment->theta().begin(), harness.segment->theta().end());
  for (const uint32_t w : {2u, 0u}) {
    harness.Send({.kind = EventKind::kPush, .worker = w, .incarnation = 1, .sequence = 1},
                 std::vector<float>(10, static_cast<float>(w + 1)));
  }
  EXPECT_FALSE(harness.segment->RoundComplete());
  harness.Send({.kind = EventKind::kSkip, .worker = 1, .incarnation = 1, .sequence = 1}, {});
  ASSERT_TRUE(harness.segment->RoundComplete());
  harness.Send({.kind = EventKind::kRoundClosed}, {});
  for (uint64_t k = 0; k < 10; ++k) EXPECT_EQ(harness.segment->theta()[k], before[k] + 4);
}

}  // namespace
}  // namespace foreshard
