#include "kernels/cuda/batch_norm.h"

#include <cmath>
#include <optional>
#include <vector>

#include "common/core/random.h"
#include "tests/kernels/cuda/on_device.h"
#include "tests/kernels/cuda/stored_values.h"

namespace foreshard::kernels::cuda {
namespace {

using CudaBatchNormTest = OnDevice;

std::vector<float> Normal(uint64_t n, uint64_t stream, double scale = 1, double mean = 0) {
  std::vector<float> values(n);
  for (uint64_t i = 0; i < n; ++i) values[i] = static_cast<float>(mean + scale * RandomNormal(11, stream, i));
  return values;
}

struct Case {
  uint64_t rows;
  uint32_t channels;
  Storage storage = Storage::kFp32;
  double mean = 0;
  bool relu = false, accumulate = false, wants_input = true, in_place = false;
};

struct Made {
  std::vector<float> y, mean, variance, inference, dx, weight_gradient, bias_gradient;
};

// A case's values, and what the GPU makes of them.
class Device {
 public:
  explicit Device(const Case& c)
      : c_(c),
        shape_{c.rows, c.channels, 1e-5f},
        x(Rounded(c.storage, Normal(c.rows * c.channels, 1, 2, c.mean))),
        dy(Rounded(c.storage, Normal(c.rows * c.channels, 2))),
        weight(Normal(c.channels, 3, 0.5, 1)),
        bias(Normal(c.channels, 4)),
        before(Normal(c.channels, 5)) {}

  Made Run() const {
    const std::vector<float> channels(c_.channels, NAN);
    const StoredValues from(c_.storage, x), out(c_.storage, x), again(c_.storage, x), d(c_.storage, dy), dx(c_.storage, dy);
    const auto w = Upload(weight), b = Upload(bias), mean = Upload(channels), variance = Upload(channels),
               inverse = Upload(channels), dw = Upload(before), db = Upload(before);
    const auto scratch = Upload(std::vector<float>(NormScratch(shape_) / sizeof(float), NAN));
    const NormTraining norm = {w.data(), b.data(), mean.data(), variance.data(), inverse.data()};
    EXPECT_EQ(NormForwardTraining(c_.storage, shape_, from.data(), norm, c_.relu, out.data(), scratch.data(), nullptr),
              absl::OkStatus());
    void* const to = !c_.wants_input ? nullptr : c_.in_place ? d.data() : dx.data();
    EXPECT_EQ(NormBackward(c_.storage, shape_, from.data(), d.data(), norm, c_.relu, c_.accumulate, to, dw.data(),
                           db.data(), scratch.data(), nullptr),
              absl::OkStatus());
    EXPECT_EQ(NormForwardInference(c_.storage, shape_, from.data(), w.data(), b.data(), mean.data(), variance.data(),
                                   c_.relu, again.data(), nullptr),
              absl::OkStatus());
    return {out.Download(),   mean.Download(), variance.Download(), again.Download(), c_.in_place ? d.Download() : dx.Download(),
            dw.Download(), db.Download()};
  }

  const Case c_;
  const NormShape shape_;
  const std::vector<float> x, dy, weight, bias, before;
};

// Beside the formulas in fp64 (Ioffe and Szegedy 2015, algorithm 1 and the derivatives below it).
void Check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " x " << c.channels << (c.storage == Storage::kBf16 ? ", bf16" : "")
                                  << (c.relu ? ", relu" : "") << (c.accumulate ? ", accumulate" : "")
                                  << (c.in_place ? ", in place" : "") << ", mean " << c.mean);
  const Device device(c);
  const Made made = device.Run();
  const double n = static_cast<double>(c.rows);
  const double rounding = RoundingOf(c.storage);
  // The mean is kept in fp32.
  const double slack = 2e-5 + 1e-6 * std::abs(c.mean);
  for (uint64_t channel = 0; channel < c.channels; ++channel) {
    const auto x = [&](uint64_t row) { return double{device.x[row * c.channels + channel]}; };
    double mean = 0, variance = 0, sum = 0, product = 0;
    for (uint64_t row = 0; row < c.rows; ++row) mean += x(row) / n;
    for (uint64_t row = 0; row < c.rows; ++row) variance += std::pow(x(row) - mean, 2) / n;
    const double inverse = 1 / std::sqrt(variance + 1e-5), weight = device.weight[channel];
    const auto z = [&](uint64_t row) { return (x(row) - mean) * inverse; };
    const auto y = [&](uint64_t row) { return weight * z(row) + device.bias[channel]; };
    const auto d = [&](uint64_t row) {
      return !c.relu || y(row) > 0 ? double{device.dy[row * c.channels + channel]} : 0.0;
    };
    // Rounding may put a y that is next to 0 on its other side.
    uint64_t near = 0;
    for (uint64_t row = 0; row < c.rows; ++row) near += c.relu && std::abs(y(row)) < 10 * slack;
    ASSERT_NEAR(made.mean[channel], mean, 1e-6 * (1 + std::abs(c.mean)));
    const double unbiased = c.rows > 1 ? variance * n / (n - 1) : 0;
    ASSERT_NEAR(made.variance[channel], unbiased, 1e-5 * (1 + unbiased));
    for (uint64_t row = 0; row < c.rows; ++row) {
      const uint64_t at = row * c.channels + channel;
      const double wanted = c.relu ? std::max(0.0, y(row)) : y(row);
      ASSERT_NEAR(made.y[at], wanted, slack * 5 + rounding * std::abs(wanted)) << row;
      const double inferred = weight * (x(row) - mean) / std::sqrt(unbiased + 1e-5) + device.bias[channel];
      ASSERT_NEAR(made.inference[at], c.relu ? std::max(0.0, inferred) : inferred,
                  slack * 5 + rounding * std::abs(inferred));
      sum += d(row);
      product += d(row) * z(row);
    }
    const double many = slack * std::sqrt(n) * 3 + 4.0 * static_cast<double>(near);
    ASSERT_NEAR(made.bias_gradient[channel], sum + (c.accumulate ? device.before[channel] : 0), many);
    ASSERT_NEAR(made.weight_gradient[channel], product + (c.accumulate ? device.before[channel] : 0), many * 4);
    for (uint64_t row = 0; row < c.rows; ++row) {
      const uint64_t at = row * c.channels + channel;
      const double wanted = c.wants_input ? weight * inverse * (d(row) - sum / n - z(row) * product / n)
                                          : double{device.dy[at]};
      const double jump = c.relu && std::abs(y(row)) < 10 * slack ? 10 * inverse : 0;
      ASSERT_NEAR(made.dx[at], wanted,
                  (slack * 5 + 20.0 * static_cast<double>(near) / n) * (1 + weight * inverse) + jump + rounding * (1 + std::abs(wanted)))
          << row;
    }
  }
}

TEST_F(CudaBatchNormTest, IsTheFormulasForAnyShape) {
  for (const uint32_t channels : {1u, 3u, 4u, 8u, 10u, 16u, 40u, 64u, 100u, 264u}) {
    for (const uint64_t rows : {2u, 7u, 33u, 200u}) {
      for (const Storage storage : kStorages) Check({.rows = rows, .channels = channels, .storage = storage, .relu = channels % 3 == 0});
    }
  }
}

TEST_F(CudaBatchNormTest, JoinsManyChunks) {
  for (const auto& [rows, channels] : std::vector<std::pair<uint64_t, uint32_t>>{{5000, 3}, {5000, 16}, {3000, 260}}) {
    for (const Storage storage : kStorages) Check({.rows = rows, .channels = channels, .storage = storage, .relu = channels == 16});
  }
}

TEST_F(CudaBatchNormTest, KeepsItsDigitsBesideALargeMean) {
  Check({.rows = 300, .channels = 8, .mean = 1000});
  Check({.rows = 300, .channels = 8, .mean = -1000, .relu = true});
}

TEST_F(CudaBatchNormTest, AddsAndGoesInPlaceAndWithoutInputs) {
  for (const uint32_t channels : {5u, 8u, 16u}) {
    for (const Storage storage : kStorages) {
      Check({.rows = 50, .channels = channels, .storage = storage, .relu = true, .accumulate = true});
      Check({.rows = 50, .channels = channels, .storage = storage, .relu = true, .in_place = true});
      Check({.rows = 50, .channels = channels, .storage = storage, .wants_input = false});
    }
  }
}

TEST_F(CudaBatchNormTest, OneRowHasNoVariance) {
  const Made made = Device({.rows = 1, .channels = 8}).Run();
  for (const float variance : made.variance) EXPECT_EQ(variance, 0);
  for (const float dx : made.dx) EXPECT_NEAR(dx, 0, 1e-3);
}

TEST_F(CudaBatchNormTest, TheSameBitsInAnyOrder) {
  std::optional<Made> first;
  for (uint64_t order = 0; order < kOrders; ++order) {
    const ThreadOrder scoped(order);
    const Made made = Device({.rows = 700, .channels = 20, .relu = true}).Run();
    if (!first.has_value()) first = made;
    EXPECT_EQ(Bits(made.y), Bits(first->y));
    EXPECT_EQ(Bits(made.dx), Bits(first->dx));
    EXPECT_EQ(Bits(made.weight_gradient), Bits(first->weight_gradient));
    EXPECT_EQ(Bits(made.bias_gradient), Bits(first->bias_gradient));
    EXPECT_EQ(Bits(made.variance), Bits(first->variance));
  }
}

// One value that is no number spoils its channel, and no other.
TEST_F(CudaBatchNormTest, WhatIsNoNumberStaysInItsChannel) {
  for (const float bad : {NAN, INFINITY}) {
    const std::vector<float> ones(4, 1), zeros(4);
    std::vector<float> x = Normal(400, 1);
    x[4 * 50 + 2] = bad;
    const auto from = Upload(x), y = Upload(x), w = Upload(ones), b = Upload(zeros), mean = Upload(zeros),
               variance = Upload(zeros), inverse = Upload(zeros);
    const NormShape shape = {100, 4, 1e-5f};
    const auto scratch = Upload(std::vector<float>(NormScratch(shape) / sizeof(float)));
    ASSERT_EQ(NormForwardTraining(Storage::kFp32, shape, from.data(),
                                  {w.data(), b.data(), mean.data(), variance.data(), inverse.data()}, true, y.data(),
                                  scratch.data(), nullptr),
              absl::OkStatus());
    const std::vector<float> means = mean.Download(), values = y.Download();
    for (uint64_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(std::isfinite(means[i % 4]), i % 4 != 2);
      EXPECT_TRUE(i % 4 == 2 || std::isfinite(values[i]));
    }
    EXPECT_TRUE(std::isnan(values[4 * 50 + 2]));
  }
}

}  // namespace
}  // namespace foreshard::kernels::cuda
