#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/core/random.h"
#include "kernels/philox.h"
#include "tests/kernels/cuda/on_device.h"
#include "tests/kernels/cuda/stored_values.h"
#if defined(FORESHARD_CUDA_EMULATION)
#include "kernels/cuda/tile_products.h"
#endif

namespace foreshard::kernels::cuda {
namespace {

struct Case {
  uint32_t examples, positions, heads, channels;  // of a head
  float dropout;
  std::vector<int32_t> lengths;
  std::vector<uint64_t> keys;
  std::vector<float> qkv, dy;

  uint64_t all() const { return uint64_t{heads} * channels; }
  uint64_t At(uint64_t e, uint64_t p, uint64_t which, uint64_t head, uint64_t c) const {
    return ((e * positions + p) * 3 + which) * all() + head * channels + c;
  }
  uint64_t OutAt(uint64_t e, uint64_t p, uint64_t head, uint64_t c) const {
    return (e * positions + p) * all() + head * channels + c;
  }
};

constexpr uint32_t kNumber = 5;  // of the layer

// Numbers that are bf16 already, so that each precision begins with the same.
Case MakeCase(uint32_t examples, uint32_t positions, uint32_t heads, uint32_t channels, float dropout) {
  Case c{examples, positions, heads, channels, dropout, {}, {}, {}, {}};
  for (uint32_t e = 0; e < examples; ++e) {
    c.lengths.push_back(e == 0 ? positions : 1 + static_cast<int32_t>(RandomBits(2, e, positions) % positions));
    c.keys.push_back(RandomBits(3, e, 0));
  }
  for (uint64_t i = 0; i < examples * positions * 3 * c.all(); ++i) c.qkv.push_back(FromBf16(Bf16(static_cast<float>(RandomNormal(4, 1, i)))));
  for (uint64_t i = 0; i < examples * positions * c.all(); ++i) c.dy.push_back(FromBf16(Bf16(static_cast<float>(RandomNormal(5, 1, i)))));
  return c;
}

struct Result {
  std::vector<double> y, dqkv;
};

// The formulas of attention.cu with whole matrices, in fp64.
Result Reference(const Case& c, bool drops) {
  Result r{std::vector<double>(c.dy.size()), std::vector<double>(c.qkv.size())};
  const double factor = 1 / std::sqrt(double(c.channels));
  for (uint64_t e = 0; e < c.examples; ++e) {
    for (uint64_t head = 0; head < c.heads; ++head) {
      const auto n = static_cast<uint64_t>(c.lengths[e]);
      for (uint64_t i = 0; i < n; ++i) {
        std::vector<double> p(n), mask(n, 1), slope(n);
        double sum = 0, rowsum = 0;
        for (uint64_t j = 0; j < n; ++j) {
          double dot = 0;
          for (uint64_t k = 0; k < c.channels; ++k) dot += double(c.qkv[c.At(e, i, 0, head, k)]) * c.qkv[c.At(e, j, 1, head, k)];
          p[j] = dot * factor;
          const uint64_t value = (head * c.positions + i) * c.positions + j;
          if (drops && c.dropout > 0) {
            mask[j] = DropoutWord(c.keys[e], kNumber, value) < DropoutThreshold(c.dropout) ? 0 : 1 / (1 - double{c.dropout});
          }
        }
        const double largest = *std::max_element(p.begin(), p.end());
        for (double& score : p) sum += score = std::exp(score - largest);
        for (uint64_t j = 0; j < n; ++j) {
          p[j] /= sum;
          for (uint64_t k = 0; k < c.channels; ++k) {
            r.y[c.OutAt(e, i, head, k)] += p[j] * mask[j] * c.qkv[c.At(e, j, 2, head, k)];
            r.dqkv[c.At(e, j, 2, head, k)] += p[j] * mask[j] * c.dy[c.OutAt(e, i, head, k)];
            slope[j] += mask[j] * c.dy[c.OutAt(e, i, head, k)] * c.qkv[c.At(e, j, 2, head, k)];
          }
          rowsum += p[j] * slope[j];
        }
        for (uint64_t j = 0; j < n; ++j) {
          const double ds = p[j] * (slope[j] - rowsum) * factor;
          for (uint64_t k = 0; k < c.channels; ++k) {
            r.dqkv[c.At(e, i, 0, head, k)] += ds * c.qkv[c.At(e, j, 1, head, k)];
            r.dqkv[c.At(e, j, 1, head, k)] += ds * c.qkv[c.At(e, i, 0, head, k)];
          }
        }
      }
    }
  }
  return r;
}

struct Ran {
  std::vector<float> y, dqkv, inference;
};

template <typename T>
Ran RunAs(const Case& c, Storage storage, bool round, bool drops) {
  const auto stored = [](const std::vector<float>& values) {
    if constexpr (std::is_same_v<T, float>) {
      return values;
    } else {
      std::vector<T> all;
      for (float value : values) all.push_back(Bf16(value));
      return all;
    }
  };
  const auto read = [](const std::vector<T>& values) {
    std::vector<float> all;
    for (T value : values) {
      if constexpr (std::is_same_v<T, float>) all.push_back(value);
      else all.push_back(FromBf16(value));
    }
    return all;
  };
  const auto qkv = Upload(stored(c.qkv)), dy = Upload(stored(c.dy));
  // What is not written would be seen.
  const auto y = Upload(std::vector<T>(c.dy.size(), T{1})), dqkv = Upload(std::vector<T>(c.qkv.size(), T{1}));
  const auto inference = Upload(std::vector<T>(c.dy.size(), T{1}));
  const auto lengths = Upload(c.lengths);
  const auto keys = Upload(c.keys);
  const auto scalars = Upload(std::vector<StepScalars>{{.drops = drops ? 1u : 0u}});
  const std::vector<float> rows(uint64_t{c.examples} * c.heads * c.positions, -7);
  const auto logarithms = Upload(rows), delta = Upload(rows);
  const AttentionArguments arguments = {.storage = storage,
                                        .round_products = round,
                                        .examples = c.examples,
                                        .positions = c.positions,
                                        .heads = c.heads,
                                        .head_channels = c.channels,
                                        .qkv = qkv.data(),
                                        .lengths = lengths.data(),
                                        .drop = {c.dropout, kNumber, keys.data(), scalars.data()}};
  EXPECT_EQ(AttentionForward(arguments, inference.data(), nullptr, nullptr), absl::OkStatus());
  EXPECT_EQ(AttentionForward(arguments, y.data(), logarithms.data(), nullptr), absl::OkStatus());
  EXPECT_EQ(AttentionBackward(arguments, y.data(), logarithms.data(), dy.data(), delta.data(), dqkv.data(), nullptr),
            absl::OkStatus());
  return {read(y.Download()), read(dqkv.Download()), read(inference.Download())};
}

double Distance(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(a[i] - b[i], 2);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / std::max(size, 1e-20));
}

class CudaAttentionTest : public OnDevice {};

TEST_F(CudaAttentionTest, IsThePlainOne) {
  struct Size {
    uint32_t examples, positions, heads, channels;
    float dropout;
  };
  uint64_t turn = 0;
  for (const Size& s : {Size{3, 1, 1, 1, 0}, Size{2, 17, 2, 5, 0.3f}, Size{2, 64, 1, 16, 0.1f}, Size{2, 65, 2, 3, 0.1f},
                        Size{3, 40, 1, 64, 0.2f}, Size{1, 128, 1, 64, 0.1f}, Size{2, 67, 1, 33, 0}}) {
    SCOPED_TRACE(testing::Message() << s.positions << " positions, " << s.heads << " x " << s.channels);
    const ThreadOrder order(turn++ % kOrders);
    const Case c = MakeCase(s.examples, s.positions, s.heads, s.channels, s.dropout);
    const Result wanted = Reference(c, true), inference = Reference(c, false);
    const Ran exact = RunAs<float>(c, Storage::kFp32, false, true);
    EXPECT_LT(Distance(exact.y, wanted.y), 2e-6);
    EXPECT_LT(Distance(exact.dqkv, wanted.dqkv), 3e-6);
    EXPECT_LT(Distance(exact.inference, inference.y), 2e-6);
    const Ran rounded = RunAs<float>(c, Storage::kFp32, true, true);
    EXPECT_LT(Distance(rounded.y, wanted.y), 2e-3);
    EXPECT_LT(Distance(rounded.dqkv, wanted.dqkv), 4e-3);
    const Ran halved = RunAs<uint16_t>(c, Storage::kBf16, false, true);
    EXPECT_LT(Distance(halved.y, wanted.y), 1e-2);
    EXPECT_LT(Distance(halved.dqkv, wanted.dqkv), 2e-2);
    // Nothing of the padding.
    for (uint64_t e = 0; e < c.examples; ++e) {
      for (auto p = static_cast<uint64_t>(c.lengths[e]); p < c.positions; ++p) {
        for (uint64_t i = 0; i < c.all(); ++i) ASSERT_EQ(halved.y[(e * c.positions + p) * c.all() + i], 0);
        for (uint64_t i = 0; i < 3 * c.all(); ++i) ASSERT_EQ(halved.dqkv[(e * c.positions + p) * 3 * c.all() + i], 0);
      }
    }
  }
}

TEST_F(CudaAttentionTest, TheStepSaysWhetherItDrops) {
  const Case c = MakeCase(2, 20, 2, 8, 0.5f);
  const Ran ran = RunAs<float>(c, Storage::kFp32, false, false);
  EXPECT_LT(Distance(ran.y, Reference(c, false).y), 2e-6);
  EXPECT_LT(Distance(ran.dqkv, Reference(c, false).dqkv), 3e-6);
}

TEST_F(CudaAttentionTest, LargeScoresStayFinite) {
  Case c = MakeCase(1, 70, 1, 16, 0);
  for (float& value : c.qkv) value *= 50;
  const Ran ran = RunAs<float>(c, Storage::kFp32, false, true);
  EXPECT_LT(Distance(ran.y, Reference(c, true).y), 1e-3);
}

TEST_F(CudaAttentionTest, TheSameBitsInAnyOrder) {
  const Case c = MakeCase(2, 70, 2, 16, 0.2f);
  const Ran first = RunAs<float>(c, Storage::kFp32, false, true);
  for (uint64_t order = 1; order <= kOrders; ++order) {
    const ThreadOrder scoped(order);
    const Ran again = RunAs<float>(c, Storage::kFp32, false, true);
    EXPECT_EQ(Bits(again.y), Bits(first.y));
    EXPECT_EQ(Bits(again.dqkv), Bits(first.dqkv));
  }
}

TEST_F(CudaAttentionTest, RefusesHeadsThatAreTooWide) {
  EXPECT_EQ(CheckAttention(64), absl::OkStatus());
  const absl::Status status = CheckAttention(65);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("65 channels"), absl::string_view::npos) << status;
}

#if defined(FORESHARD_CUDA_EMULATION)
// What GPUs before sm_80 do, and what the emulation does in place of a tensor core.
void MultiplyKernel(Pointer<const float> a, Pointer<const float> b, Pointer<float> c, bool shuffles) {
  const LeftLane left = WideProducts::ReadLeft(a, 16, 0, 0);
  const RightLane right = WideProducts::ReadColumns(b, 8, 0, 0);
  ProductSums sums = {};
  if (shuffles) {
    sums = AddByShuffles(sums, left, right);
  } else {
    AddTogether(sums.x, left, right);
  }
  const uint32_t lane = LaneOfThread();
  for (uint32_t i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums.x[i];
}

TEST_F(CudaAttentionTest, LanesMultiplyTiles) {
  std::vector<float> a(16 * 16), b(16 * 8), wanted(16 * 8);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(RandomBits(1, 1, i) % 9) - 4;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(RandomBits(1, 2, i) % 9) - 4;
  for (size_t row = 0; row < 16; ++row)
    for (size_t column = 0; column < 8; ++column)
      for (size_t k = 0; k < 16; ++k) wanted[row * 8 + column] += a[row * 16 + k] * b[k * 8 + column];
  for (const bool shuffles : {false, true}) {
    for (uint64_t order = 0; order < kOrders; ++order) {
      const ThreadOrder scoped(order);
      const auto left = Upload(a), right = Upload(b), sums = Upload(std::vector<float>(16 * 8));
      ASSERT_EQ(Launch("Multiply", MultiplyKernel, Grid{{1}, {32}}, nullptr, Pointer<const float>(left.data()),
                       Pointer<const float>(right.data()), Pointer<float>(sums.data()), shuffles),
                absl::OkStatus());
      EXPECT_EQ(sums.Download(), wanted);
    }
  }
}
#endif

}  // namespace
}  // namespace foreshard::kernels::cuda
