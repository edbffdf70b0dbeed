// The worker's halves and vector operations on the GPU against the references that define them,
// bit for bit.
#include "kernels/cuda/updates.h"

#include <limits>
#include <vector>

#include "kernels/codecs/codec.h"
#include "kernels/cuda/segment_codec.h"
#include "kernels/frozen_adam_reference.h"
#include "kernels/local_sgd_reference.h"
#include "kernels/worker_half_reference.h"
#include "tests/kernels/cuda/on_device.h"
#include "tests/kernels/numbers.h"

namespace foreshard::kernels::cuda {
namespace {

// Lengths of runs, aligned and odd, one and several thread blocks.
const std::vector<uint64_t> kLengths = {1, 3, 4, 31, 1024, 4096, 4097, 9001};

const std::vector<Block> kBlocks = {{.offset = 0, .elements = 4096, .decayed = true},
                                    {.offset = 4096, .elements = 101},
                                    {.offset = 4197, .elements = 3, .decayed = true},
                                    {.offset = 4200, .elements = 1000}};
constexpr uint64_t kElements = 5200;

class CudaUpdatesTest : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    auto codec = SegmentCodec::Make(*FindCodec(CodecId::kNone), kBlocks, nullptr);
    ASSERT_TRUE(codec.ok()) << codec.status();
    codec_ = *std::move(codec);
  }

  const BlockTable& table() const { return codec_.table(); }

 private:
  SegmentCodec codec_;
};

TEST_F(CudaUpdatesTest, DanaSlim) {
  for (uint64_t order = 0; order < kOrders; ++order) {
    const ThreadOrder scoped(order);
    for (const float lambda : {0.0f, 1e-2f}) {
      for (const float repair : {0.0f, -0.45f}) {
        const std::vector<float> theta = Numbers(1, kElements), gradient = Numbers(2, kElements);
        const std::vector<float> v = Numbers(3, kElements);
        std::vector<float> expected = gradient, expected_v = v;
        for (const Block& block : kBlocks) {
          DanaSlimHalfReference(0.9f, block.decayed ? lambda : 0, repair, block.elements,
                                theta.data() + block.offset, expected_v.data() + block.offset,
                                expected.data() + block.offset);
        }
        const auto t = Upload(theta, order), device_v = Upload(v, order),
                   g = Upload(gradient, order);
        ASSERT_EQ(DanaSlimHalf(table(), {0.9f, lambda, repair}, t.data(), device_v.data(), g.data(),
                               nullptr, nullptr),
                  absl::OkStatus());
        EXPECT_EQ(Bits(g.Download()), Bits(expected));
        EXPECT_EQ(Bits(device_v.Download()), Bits(expected_v));
      }
    }
  }
}

TEST_F(CudaUpdatesTest, MixMomentum) {
  for (const uint64_t n : kLengths) {
    const ThreadOrder scoped(n % kOrders);
    const std::vector<float> momentum = Numbers(1, n), gradient = Numbers(2, n);
    std::vector<float> expected = gradient;
    MixMomentumReference(0.9f, n, momentum.data(), expected.data());
    const auto m = Upload(momentum, n % 3), g = Upload(gradient, n % 3);
    ASSERT_EQ(cuda::MixMomentum(0.9f, n, m.data(), g.data(), nullptr, nullptr), absl::OkStatus());
    EXPECT_EQ(Bits(g.Download()), Bits(expected)) << n;
  }
}

TEST_F(CudaUpdatesTest, TakeResult) {
  for (uint64_t order = 0; order < kOrders; ++order) {
    const ThreadOrder scoped(order);
    for (const bool of_gradients : {false, true}) {
      const FrozenAdamStep step = {
          .eta = 0.003f, .beta1 = 0.9f, .weight_decay = 0.01f, .of_gradients = of_gradients};
      const std::vector<float> result = Numbers(1, kElements), momentum = Numbers(2, kElements);
      const std::vector<float> theta = Numbers(4, kElements);
      std::vector<float> denominator = Numbers(3, kElements);
      for (float& d : denominator) d = d * d + 1e-3f;
      std::vector<float> expected_momentum = momentum, expected_theta = theta;
      for (const Block& block : kBlocks) {
        FrozenAdamStep of_block = step;
        if (!block.decayed) of_block.weight_decay = 0;
        TakeResultReference(of_block, block.elements, result.data() + block.offset,
                            expected_momentum.data() + block.offset,
                            denominator.data() + block.offset,
                            expected_theta.data() + block.offset);
      }
      const auto r = Upload(result), m = Upload(momentum), d = Upload(denominator),
                 t = Upload(theta);
      ASSERT_EQ(cuda::TakeResult(table(), step, r.data(), m.data(), d.data(), t.data(), nullptr),
                absl::OkStatus());
      EXPECT_EQ(Bits(m.Download()), Bits(expected_momentum));
      EXPECT_EQ(Bits(t.Download()), Bits(expected_theta));
    }
  }
}

TEST_F(CudaUpdatesTest, AddScaledAndScale) {
  for (const uint64_t n : kLengths) {
    const ThreadOrder scoped(n % kOrders);
    const std::vector<float> values = Numbers(1, n), sum = Numbers(2, n);
    std::vector<float> expected = sum, scaled = values;
    foreshard::AddScaled(n, -0.9f, values.data(), expected.data());
    for (float& value : scaled) value *= 0.3f;
    const auto v = Upload(values, n % 4), s = Upload(sum, n % 4);
    ASSERT_EQ(cuda::AddScaled(n, -0.9f, v.data(), s.data(), nullptr), absl::OkStatus());
    EXPECT_EQ(Bits(s.Download()), Bits(expected)) << n;
    ASSERT_EQ(cuda::Scale(n, 0.3f, v.data(), nullptr), absl::OkStatus());
    EXPECT_EQ(Bits(v.Download()), Bits(scaled)) << n;
  }
}

TEST_F(CudaUpdatesTest, LocalSgd) {
  for (const float delta : {0.0f, 0.9f}) {
    for (uint64_t order = 0; order < kOrders; ++order) {
      const ThreadOrder scoped(order);
      const float eta = 0.05f;
      const std::vector<float> x = Numbers(1, kElements), v = Numbers(2, kElements);
      const std::vector<float> gradient = Numbers(3, kElements);
      std::vector<float> expected_x = x, expected_v = v, expected_ahead(kElements);
      LookAheadReference(delta, eta, kElements, x.data(), v.data(), expected_ahead.data());
      for (const Block& block : kBlocks) {
        LocalStepReference(delta, block.decayed ? 1e-2f : 0, eta, block.elements,
                           gradient.data() + block.offset,
                           delta == 0 ? nullptr : expected_v.data() + block.offset,
                           expected_x.data() + block.offset);
      }
      const auto device_x = Upload(x, order), device_v = Upload(v, order),
                 g = Upload(gradient, order);
      const auto ahead = Upload(std::vector<float>(kElements), order);
      ASSERT_EQ(
          LookAhead(delta, eta, kElements, device_x.data(), device_v.data(), ahead.data(), nullptr),
          absl::OkStatus());
      EXPECT_EQ(Bits(ahead.Download()), Bits(expected_ahead));
      const LocalStep step = {.momentum = delta, .weight_decay = 1e-2f, .eta = eta};
      ASSERT_EQ(LocalSgdStep(table(), step, g.data(), delta == 0 ? nullptr : device_v.data(),
                             device_x.data(), nullptr, nullptr),
                absl::OkStatus());
      EXPECT_EQ(Bits(device_x.Download()), Bits(expected_x));
      EXPECT_EQ(Bits(device_v.Download()), Bits(expected_v));
    }
  }
}

TEST_F(CudaUpdatesTest, ElasticDifference) {
  for (const uint64_t n : kLengths) {
    const ThreadOrder scoped(n % kOrders);
    for (const bool finite : {true, false}) {
      const std::vector<float> center = Numbers(1, n);
      std::vector<float> x = Numbers(2, n);
      if (!finite) x[n - 1] = std::numeric_limits<float>::infinity();
      std::vector<float> expected_x = x, expected(n);
      ElasticDifferenceReference(0.225f, n, center.data(), expected_x.data(), expected.data());
      const auto c = Upload(center, n % 2), device_x = Upload(x, n % 2);
      const auto difference = Upload(std::vector<float>(n), n % 2);
      const auto not_finite = Upload(std::vector<uint32_t>{0});
      ASSERT_EQ(cuda::ElasticDifference(0.225f, n, c.data(), device_x.data(), difference.data(),
                                        not_finite.data(), nullptr),
                absl::OkStatus());
      if (finite) {
        EXPECT_EQ(Bits(difference.Download()), Bits(expected)) << n;
        EXPECT_EQ(Bits(device_x.Download()), Bits(expected_x)) << n;
      }
      EXPECT_EQ(not_finite.Download()[0], finite ? 0u : 1u) << n;
    }
  }
}

TEST_F(CudaUpdatesTest, WhatMayBeStoppedIs) {
  const auto stop = Upload(std::vector<uint32_t>{1});
  const std::vector<float> numbers = Numbers(1, kElements);
  const auto a = Upload(numbers), b = Upload(numbers), c = Upload(numbers);
  ASSERT_EQ(
      DanaSlimHalf(table(), {0.9f, 0.1f, 0.1f}, a.data(), b.data(), c.data(), stop.data(), nullptr),
      absl::OkStatus());
  ASSERT_EQ(cuda::MixMomentum(0.9f, kElements, b.data(), c.data(), stop.data(), nullptr),
            absl::OkStatus());
  ASSERT_EQ(
      LocalSgdStep(table(), {0.9f, 0.1f, 0.1f}, a.data(), b.data(), c.data(), stop.data(), nullptr),
      absl::OkStatus());
  for (const auto* vector : {&a, &b, &c}) EXPECT_EQ(Bits(vector->Download()), Bits(numbers));
}

TEST_F(CudaUpdatesTest, NothingIsNothing) {
  EXPECT_EQ(DanaSlimHalf({}, {}, nullptr, nullptr, nullptr, nullptr, nullptr), absl::OkStatus());
  EXPECT_EQ(cuda::MixMomentum(0.9f, 0, nullptr, nullptr, nullptr, nullptr), absl::OkStatus());
  EXPECT_EQ(cuda::TakeResult({}, {}, nullptr, nullptr, nullptr, nullptr, nullptr),
            absl::OkStatus());
  EXPECT_EQ(cuda::AddScaled(0, 1, nullptr, nullptr, nullptr), absl::OkStatus());
  EXPECT_EQ(cuda::Scale(0, 1, nullptr, nullptr), absl::OkStatus());
  EXPECT_EQ(LookAhead(0, 0, 0, nullptr, nullptr, nullptr, nullptr), absl::OkStatus());
  EXPECT_EQ(LocalSgdStep({}, {}, nullptr, nullptr, nullptr, nullptr, nullptr), absl::OkStatus());
  EXPECT_EQ(cuda::ElasticDifference(0, 0, nullptr, nullptr, nullptr, nullptr, nullptr),
            absl::OkStatus());
}

}  // namespace
}  // namespace foreshard::kernels::cuda
