// What networks of text do not show of their kernels (text_network_test.cc): other sizes, bf16, and
// exact values.
#include "kernels/cuda/text.h"

#include <cmath>
#include <utility>
#include <vector>

#include "common/core/random.h"
#include "kernels/cuda/text_batch.h"
#include "kernels/philox.h"
#include "tests/kernels/cuda/on_device.h"
#include "tests/kernels/cuda/stored_values.h"

namespace foreshard::kernels::cuda {
namespace {

using CudaTextTest = OnDevice;

std::vector<float> Normal(uint64_t n, uint64_t stream, float scale = 1) {
  std::vector<float> values(n);
  for (uint64_t i = 0; i < n; ++i) values[i] = scale * static_cast<float>(RandomNormal(9, stream, i));
  return values;
}

TEST_F(CudaTextTest, DropsWhatTheNumbersSay) {
  const std::vector<uint64_t> keys = {1, 0x123456789abcdefull, ~uint64_t{0}};
  for (const uint64_t elements : {1u, 63u, 64u, 200u}) {
    for (const Storage storage : kStorages) {
      const std::vector<float> values = Rounded(storage, Normal(3 * elements, elements));
      for (const uint32_t drops : {0u, 1u}) {
        const StoredValues from(storage, values), to(storage, std::vector<float>(values.size(), 7));
        const auto device_keys = Upload(keys);
        const auto scalars = Upload(std::vector<StepScalars>{{.drops = drops}});
        ASSERT_EQ(ApplyDropout(storage, 3, elements, {0.25f, 11, device_keys.data(), scalars.data()}, from.data(),
                               to.data(), nullptr),
                  absl::OkStatus());
        std::vector<float> wanted = values;
        for (uint64_t i = 0; drops != 0 && i < wanted.size(); ++i) {
          const bool dropped = DropoutWord(keys[i / elements], 11, i % elements) < DropoutThreshold(0.25f);
          wanted[i] = dropped ? 0 : wanted[i] * DropoutScale(0.25f);
        }
        EXPECT_EQ(Bits(to.Download()), Bits(Rounded(storage, wanted))) << elements;
      }
    }
  }
}

TEST_F(CudaTextTest, CurvesAndTheirSlopes) {
  std::vector<float> x = Normal(1003, 1, 3);
  x[0] = 0;
  x[1] = 40;
  x[2] = -40;
  const std::vector<float> dy = Normal(x.size(), 2);
  // As a whole number of words of 16 bytes, and not; in place.
  for (const uint64_t n : {uint64_t{1000}, uint64_t{1003}}) {
    for (const Curve curve : {Curve::kGelu, Curve::kTanh}) {
      const auto from = Upload(x), out = Upload(x), gradient = Upload(dy);
      ASSERT_EQ(ApplyCurve(curve, Storage::kFp32, n, out.data(), out.data(), nullptr), absl::OkStatus());
      ASSERT_EQ(CurveGradient(curve, Storage::kFp32, n, from.data(), gradient.data(), gradient.data(), nullptr),
                absl::OkStatus());
      const auto stored = Upload(ToBf16(x)), halved = Upload(std::vector<uint16_t>(x.size()));
      ASSERT_EQ(ApplyCurve(curve, Storage::kBf16, n, stored.data(), halved.data(), nullptr), absl::OkStatus());
      const std::vector<float> y = out.Download(), dx = gradient.Download();
      const std::vector<uint16_t> y16 = halved.Download();
      for (uint64_t i = 0; i < n; ++i) {
        const auto value = [&](double at) {
          return curve == Curve::kTanh ? std::tanh(at) : at * 0.5 * std::erfc(-at / std::sqrt(2.0));
        };
        const double at = x[i], tanh = std::tanh(at);
        const double slope = curve == Curve::kTanh
                                 ? 1 - tanh * tanh
                                 : 0.5 * std::erfc(-at / std::sqrt(2.0)) + at * std::exp(-at * at / 2) / std::sqrt(2 * M_PI);
        ASSERT_NEAR(y[i], value(at), 2e-6 * (1 + std::abs(at))) << at;
        ASSERT_NEAR(dx[i], slope * dy[i], 4e-6 * (1 + std::abs(dy[i]))) << at;
        ASSERT_NEAR(FromBf16(y16[i]), value(FromBf16(Bf16(x[i]))), 5e-3 * (1e-3 + std::abs(at))) << at;
      }
    }
  }
}

TEST_F(CudaTextTest, LayerNormOfManyRows) {
  for (const auto& [channels, storage] : std::vector<std::pair<uint32_t, Storage>>{
           {8, Storage::kFp32}, {13, Storage::kFp32}, {200, Storage::kFp32}, {8, Storage::kBf16}, {13, Storage::kBf16}, {200, Storage::kBf16}}) {
    const uint32_t rows = 150;
    const std::vector<float> x = Rounded(storage, Normal(rows * channels, 1, 2)), dy = Rounded(storage, Normal(rows * channels, 2));
    const std::vector<float> weight = Normal(channels, 3), bias = Normal(channels, 4), before = Normal(channels, 5);
    const LayerNormShape shape = {rows, channels, 1e-12f};
    const StoredValues from(storage, x), out(storage, x), d(storage, dy);
    const auto w = Upload(weight), b = Upload(bias);
    const double rounding = RoundingOf(storage);
    const auto saved = Upload(std::vector<float>(2 * rows));
    const auto dw = Upload(before), db = Upload(before);
    const auto scratch = Upload(std::vector<float>(LayerNormScratch(rows, channels) / sizeof(float)));
    ASSERT_EQ(LayerNormForward(storage, shape, from.data(), w.data(), b.data(), out.data(), saved.data(), nullptr),
              absl::OkStatus());
    ASSERT_EQ(LayerNormGradient(storage, shape, from.data(), d.data(), w.data(), saved.data(),
                                {.dx = d.data(), .weight = dw.data(), .bias = db.data(), .accumulate = true},
                                scratch.data(), nullptr),
              absl::OkStatus());
    std::vector<double> weights(before.begin(), before.end()), biases(before.begin(), before.end());
    const std::vector<float> y = out.Download(), dx = d.Download();
    for (uint64_t row = 0; row < rows; ++row) {
      const float *xs = x.data() + row * channels, *ds = dy.data() + row * channels;
      double mean = 0, variance = 0, sum = 0, product = 0;
      for (uint64_t c = 0; c < channels; ++c) mean += double{xs[c]} / channels;
      for (uint64_t c = 0; c < channels; ++c) variance += std::pow(xs[c] - mean, 2) / channels;
      const double inverse = 1 / std::sqrt(variance);
      const auto z = [&](uint64_t c) { return (xs[c] - mean) * inverse; };
      for (uint64_t c = 0; c < channels; ++c) {
        sum += double{weight[c]} * ds[c] / channels;
        product += double{weight[c]} * ds[c] * z(c) / channels;
        weights[c] += ds[c] * z(c);
        biases[c] += ds[c];
      }
      for (uint64_t c = 0; c < channels; ++c) {
        const double wanted = weight[c] * z(c) + bias[c];
        ASSERT_NEAR(y[row * channels + c], wanted, 1e-5 + rounding * std::abs(wanted));
        const double slope = inverse * (double{weight[c]} * ds[c] - sum - z(c) * product);
        ASSERT_NEAR(dx[row * channels + c], slope, 1e-5 * (1 + inverse) + rounding * std::abs(slope));
      }
    }
    const std::vector<float> dw_made = dw.Download(), db_made = db.Download();
    for (uint64_t c = 0; c < channels; ++c) {
      ASSERT_NEAR(dw_made[c], weights[c], 2e-4);
      ASSERT_NEAR(db_made[c], biases[c], 2e-4);
    }
  }
}

TEST_F(CudaTextTest, EmbeddingsAreSumsOfThreeRows) {
  constexpr uint32_t kExamples = 2, kPositions = 5, kTokens = 7;
  for (const uint32_t channels : {8u, 13u, 70u}) {
    for (const Storage storage : kStorages) {
      std::vector<int32_t> tokens, segments;
      for (uint32_t row = 0; row < kExamples * kPositions; ++row) {
        tokens.push_back(static_cast<int32_t>(row * 3 % kTokens));
        segments.push_back(static_cast<int32_t>(row % 3 / 2));
      }
      const std::vector<float> token = Normal(kTokens * channels, 1), position = Normal(kPositions * channels, 2),
                               segment = Normal(2 * channels, 3);
      const auto t = Upload(token), p = Upload(position), s = Upload(segment);
      const auto names = Upload(tokens), parts = Upload(segments);
      const StoredValues y(storage, std::vector<float>(tokens.size() * channels, 9));
      const EmbeddingArguments arguments = {.storage = storage,
                                            .examples = kExamples,
                                            .positions = kPositions,
                                            .channels = channels,
                                            .tokens = kTokens,
                                            .position_rows = kPositions,
                                            .segments = 2,
                                            .token = names.data(),
                                            .segment = parts.data()};
      ASSERT_EQ(EmbeddingForward(arguments, t.data(), p.data(), s.data(), y.data(), nullptr), absl::OkStatus());
      const std::vector<float> made = y.Download();
      for (uint32_t row = 0; row < tokens.size(); ++row) {
        for (uint32_t c = 0; c < channels; ++c) {
          const double wanted = double{token[tokens[row] * channels + c]} + position[row % kPositions * channels + c] +
                                segment[segments[row] * channels + c];
          ASSERT_NEAR(made[row * channels + c], wanted, 1e-6 + RoundingOf(storage) * std::abs(wanted)) << row;
        }
      }
    }
  }
}

// Tokens with many rows and with few, more channels than a warp has lanes; added to what is there.
TEST_F(CudaTextTest, GradientsOfTablesAreSumsOverTheBatch) {
  constexpr uint32_t kExamples = 3, kPositions = 70, kChannels = 70, kTokens = 5, kRows = kExamples * kPositions;
  const TextLayout layout(kExamples, kPositions, 1);
  std::vector<int32_t> tokens, segments;
  for (uint32_t row = 0; row < kRows; ++row) {
    tokens.push_back(row % 50 == 0 ? 3 : static_cast<int32_t>(row % 2 * 4));
    segments.push_back(static_cast<int32_t>(row % 3 / 2));
  }
  const std::vector<int32_t> lengths(kExamples, kPositions), targets(kExamples);
  std::vector<uint8_t> text(layout.bytes);
  TextFiller(kTokens).Fill(layout, {tokens.data(), segments.data(), lengths.data(), targets.data(), targets.data()}, true, text.data());
  const auto device_text = Upload(text);
  for (uint64_t turn = 0; turn < 2 * kOrders; ++turn) {
    const ThreadOrder scoped(turn / 2);
    const Storage storage = kStorages[turn % 2];
    const std::vector<float> dy = Rounded(storage, Normal(kRows * kChannels, 1));
    const StoredValues gradient(storage, dy);
    const std::vector<float> before = Normal((kPositions + 2) * kChannels, 2);
    const auto token = Upload(std::vector<float>(before.begin(), before.begin() + kTokens * kChannels));
    const auto position = Upload(before), segment = Upload(std::vector<float>(2 * kChannels, 9));
    const auto scratch = Upload(std::vector<float>(EmbeddingScratch(kExamples, kPositions, kChannels, 2) / sizeof(float)));
    EmbeddingArguments arguments = {.storage = storage,
                                    .examples = kExamples,
                                    .positions = kPositions,
                                    .channels = kChannels,
                                    .tokens = kTokens,
                                    .position_rows = kPositions + 2,
                                    .segments = 2,
                                    .token = reinterpret_cast<const int32_t*>(device_text.data() + layout.tokens),
                                    .segment = reinterpret_cast<const int32_t*>(device_text.data() + layout.segments),
                                    .order = reinterpret_cast<const uint32_t*>(device_text.data() + layout.order),
                                    .starts = reinterpret_cast<const uint32_t*>(device_text.data() + layout.starts)};
    // The table of tokens is added to, the others are written.
    ASSERT_EQ(EmbeddingGradient(arguments, gradient.data(),
                                {.token = token.data(), .position = position.data(), .segment = segment.data(), .token_written = true},
                                scratch.data(), nullptr),
              absl::OkStatus());
    std::vector<double> wanted_token(before.begin(), before.begin() + kTokens * kChannels);
    std::vector<double> wanted_position((kPositions + 2) * kChannels), wanted_segment(2 * kChannels);
    for (uint32_t row = 0; row < kRows; ++row) {
      for (uint32_t k = 0; k < kChannels; ++k) {
        const double d = dy[row * kChannels + k];
        wanted_token[tokens[row] * kChannels + k] += d;
        wanted_position[row % kPositions * kChannels + k] += d;
        wanted_segment[segments[row] * kChannels + k] += d;
      }
    }
    const auto expect = [](const std::vector<float>& made, const std::vector<double>& wanted, const char* what) {
      for (size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(made[i], wanted[i], 1e-4) << what << " " << i;
    };
    expect(token.Download(), wanted_token, "token");
    expect(position.Download(), wanted_position, "position");
    expect(segment.Download(), wanted_segment, "segment");
  }
}

TEST_F(CudaTextTest, LossOverAVocabulary) {
  for (const uint32_t classes : {1u, 33u, 256u, 1001u}) {
    const uint32_t rows = 5;
    std::vector<float> logits = Normal(rows * classes, classes, 4);
    std::vector<int32_t> targets;
    for (uint32_t row = 0; row < rows; ++row) targets.push_back(row == 2 ? kNoTarget : static_cast<int32_t>((row * 31) % classes));
    // The first of equal largest is the guess.
    logits[targets[3] + 3 * classes] = 30;
    if (targets[3] + 1u < classes) logits[targets[3] + 1 + 3 * classes] = 30;
    const StepScalars before = {.correct = 99, .side_loss = 5, .target_scale = 0.25f};
    // In place, in another array, and bf16.
    const auto in_place = Upload(logits), from = Upload(logits), apart = Upload(std::vector<float>(logits.size(), 9));
    const auto halved = Upload(std::vector<uint16_t>(logits.size(), 9));
    const auto device_targets = Upload(targets);
    const auto row_loss = Upload(std::vector<double>(rows));
    const auto row_correct = Upload(std::vector<uint32_t>(rows));
    const auto scalars = Upload(std::vector<StepScalars>{before});
    MaskedLossArguments arguments = {.rows = rows,
                                     .classes = classes,
                                     .logits = from.data(),
                                     .targets = device_targets.data(),
                                     .gradient = apart.data(),
                                     .row_loss = row_loss.data(),
                                     .row_correct = row_correct.data(),
                                     .scalars = scalars.data()};
    ASSERT_EQ(MaskedCrossEntropy(arguments, nullptr), absl::OkStatus());
    arguments.storage = Storage::kBf16;
    arguments.gradient = halved.data();
    ASSERT_EQ(MaskedCrossEntropy(arguments, nullptr), absl::OkStatus());
    arguments.storage = Storage::kFp32;
    arguments.logits = in_place.data();
    arguments.gradient = in_place.data();
    ASSERT_EQ(MaskedCrossEntropy(arguments, nullptr), absl::OkStatus());
    double loss = 0;
    uint64_t correct = 0;
    const std::vector<float> gradient = apart.Download();
    EXPECT_EQ(Bits(in_place.Download()), Bits(gradient));
    const std::vector<uint16_t> gradient16 = halved.Download();
    for (uint32_t row = 0; row < rows; ++row) {
      const float* l = logits.data() + row * classes;
      double sum = 0;
      for (uint32_t k = 0; k < classes; ++k) sum += std::exp(double{l[k]} - 30);
      if (targets[row] != kNoTarget) {
        loss += std::log(sum) + 30 - l[targets[row]];
        correct += std::max_element(l, l + classes) - l == targets[row];
      }
      for (uint32_t k = 0; k < classes; ++k) {
        const double p = std::exp(double{l[k]} - 30) / sum - (targets[row] == static_cast<int32_t>(k) ? 1 : 0);
        const double wanted = targets[row] == kNoTarget ? 0 : 0.25 * p;
        ASSERT_NEAR(gradient[row * classes + k], wanted, 1e-6);
        ASSERT_NEAR(FromBf16(gradient16[row * classes + k]), wanted, 1e-3);
      }
    }
    const StepScalars after = scalars.Download()[0];
    EXPECT_NEAR(after.loss, loss, 1e-5 * (1 + loss));
    EXPECT_EQ(after.correct, correct);
    EXPECT_EQ(after.side_loss, 5);
  }
}

TEST_F(CudaTextTest, PositionsNamedTwiceAddUp) {
  const SelectShape shape = {.examples = 2, .positions = 5, .channels = 3, .count = 4};
  const std::vector<int32_t> at = {1, 4, 1, 0, 2, 2, 2, 3};
  const auto names = Upload(at);
  SelectShape named = shape;
  named.at = names.data();
  for (const Storage storage : kStorages) {
    const std::vector<float> dy = Rounded(storage, Normal(2 * 4 * 3, 1));
    const StoredValues from(storage, dy), to(storage, std::vector<float>(2 * 5 * 3, 9));
    ASSERT_EQ(SelectGradient(storage, named, from.data(), to.data(), nullptr), absl::OkStatus());
    std::vector<float> wanted(2 * 5 * 3);
    for (uint64_t row = 0; row < at.size(); ++row)
      for (uint64_t c = 0; c < 3; ++c) wanted[(row / 4 * 5 + at[row]) * 3 + c] += dy[row * 3 + c];
    EXPECT_EQ(to.Download(), Rounded(storage, wanted));
  }
}

TEST_F(CudaTextTest, PositionsAreCopiedAsTheyAre) {
  const std::vector<int32_t> at = {1, 4, 1, 0, 2, 2, 2, 3};
  const auto names = Upload(at);
  for (const uint32_t channels : {3u, 8u}) {
    for (const Storage storage : kStorages) {
      const std::vector<float> x = Rounded(storage, Normal(2 * 5 * channels, 1));
      SelectShape shape = {.examples = 2, .positions = 5, .channels = channels, .count = 4, .at = names.data()};
      const StoredValues from(storage, x), to(storage, std::vector<float>(2 * 4 * channels, 9));
      ASSERT_EQ(SelectForward(storage, shape, from.data(), to.data(), nullptr), absl::OkStatus());
      std::vector<float> wanted;
      for (uint64_t row = 0; row < at.size(); ++row) {
        const auto begin = x.begin() + static_cast<int64_t>((row / 4 * 5 + at[row]) * channels);
        wanted.insert(wanted.end(), begin, begin + channels);
      }
      EXPECT_EQ(Bits(to.Download()), Bits(wanted));
    }
  }
}

TEST(TextLayoutTest, SortsByTokenAndKeepsTheOrderAmongEquals) {
  const TextLayout layout(2, 4, 1);
  EXPECT_EQ(layout.bytes % 16, 0u);
  const std::vector<int32_t> tokens = {5, 0, 5, 2, 2, 5, 6, 0}, segments(8), lengths = {4, 4}, places = {3, 1}, targets = {1, kNoTarget};
  const TextView text = {tokens.data(), segments.data(), lengths.data(), places.data(), targets.data()};
  TextFiller filler(7);
  std::vector<uint8_t> made(layout.bytes, 0x5a);
  for (int turn = 0; turn < 2; ++turn) {
    filler.Fill(layout, text, turn == 0, made.data());
    const auto* order = reinterpret_cast<const uint32_t*>(made.data() + layout.order);
    const auto* starts = reinterpret_cast<const uint32_t*>(made.data() + layout.starts);
    EXPECT_EQ(std::vector<uint32_t>(order, order + 8), (std::vector<uint32_t>{1, 7, 3, 4, 0, 2, 5, 6}));
    EXPECT_EQ(std::vector<uint32_t>(starts, starts + 9), (std::vector<uint32_t>{0, 2, 4, 7, 8, 8, 8, 8, 8}));
    const auto* at = reinterpret_cast<const int32_t*>(made.data() + layout.target_positions);
    EXPECT_EQ(at[0], turn == 0 ? 3 : 0);
    EXPECT_EQ(*reinterpret_cast<const uint64_t*>(made.data() + layout.keys), 0u);
  }
  EXPECT_EQ(CountTargets(layout, text), 1u);
}

}  // namespace
}  // namespace foreshard::kernels::cuda
