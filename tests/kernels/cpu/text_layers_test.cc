// Layers of text on the CPU device, in small networks, against a plain fp64 reference and its
// central differences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernels/cpu/layers.h"
#include "tests/kernels/cpu/reference_text.h"
#include "tests/kernels/cpu/text_case.h"

namespace foreshard::kernels {
namespace {

using testing::HasSubstr;

absl::Status Open(uint64_t, uint64_t) { return absl::OkStatus(); }

struct Shapes {
  const char* name;
  uint32_t positions;
  std::vector<Layer> layers;
  bool tied = false;
};

void PrintTo(const Shapes& shapes, std::ostream* out) { *out << shapes.name; }

class TextLayersTest : public testing::TestWithParam<Shapes> {};

TEST_P(TextLayersTest, AgreeWithReference) {
  const Shapes& shapes = GetParam();
  const TextCase c = MakeTextCase(shapes.positions, shapes.layers, 4, 3, shapes.tied);
  auto device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec);
  ASSERT_TRUE(network.ok()) << network.status();
  EXPECT_GT((*network)->step_bytes(), 0u);
  for (uint64_t examples : {4, 1}) {
    SCOPED_TRACE(examples);
    const BatchView batch = c.Batch(examples);
    const TextReference training = ReferenceTextForward(c.spec, batch, c.Doubles(), true);
    const std::vector<double> wanted = ReferenceTextGradient(c.spec, batch, c.Doubles());
    std::vector<float> gradient(c.spec.elements, std::numeric_limits<float>::quiet_NaN());
    const auto loss = (*network)->Train(batch, c.vector.data(), Open, {.gradient = gradient.data()});
    ASSERT_TRUE(loss.ok()) << loss.status();
    EXPECT_NEAR(loss->loss, training.target_loss, 1e-4 * (1 + training.target_loss));
    EXPECT_NEAR(loss->side_loss, training.side_loss, 1e-4 * (1 + training.side_loss));
    EXPECT_EQ(loss->correct, training.correct);
    EXPECT_EQ(loss->side_correct, training.side_correct);
    EXPECT_EQ(loss->count, training.count);
    double largest = 1e-3;
    for (double value : wanted) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_NEAR(gradient[i], wanted[i], 2e-4 * largest) << "element " << i;
    }

    // Accumulating adds, also where the tied table's gradient has two parts.
    ASSERT_TRUE((*network)->Train(batch, c.vector.data(), Open, {.weight = 0.5f, .accumulate = true, .gradient = gradient.data()}).ok());
    for (size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_NEAR(gradient[i], 1.5 * wanted[i], 3e-4 * largest) << "accumulated element " << i;
    }

    const TextReference inference = ReferenceTextForward(c.spec, batch, c.Doubles(), false);
    const auto evaluated = (*network)->Evaluate(batch, c.vector.data());
    ASSERT_TRUE(evaluated.ok()) << evaluated.status();
    EXPECT_NEAR(evaluated->loss, inference.target_loss, 1e-4 * (1 + inference.target_loss));
    EXPECT_EQ(evaluated->correct, inference.correct);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TextLayersTest,
    testing::Values(
        Shapes{"embedding", 7, {Table(5, 9), TargetPositions{3}}},
        Shapes{"tied", 6, {Table(6, 6), TargetPositions{3}}, true},
        Shapes{"layer_norm", 6, {Table(7, 6), LayerNorm{}, TargetPositions{3}}},
        Shapes{"gelu",
               6,
               {Table(5, 6), Dense{.units = 9, .bias = kBias, .each_position = true}, Gelu{}, TargetPositions{3}}},
        Shapes{"tanh", 6, {Table(5, 6), Tanh{}, TargetPositions{3}}},
        Shapes{"dropout", 6, {Table(70, 6), Dropout{0.3f}, TargetPositions{3}}},
        Shapes{"dropout_of_what_others_read",
               6,
               {Table(6, 6), Gelu{}, Dropout{0.5f}, AddFrom{1}, TargetPositions{3}}},
        Shapes{"dropout_of_what_backward_reads",
               6,
               {Table(6, 6), Dense{.units = 5, .bias = kBias, .each_position = true}, Relu{}, Dropout{0.5f},
                TargetPositions{3}}},
        Shapes{"attention", 7, {Table(18, 7), Attention{.heads = 2}, TargetPositions{3}}},
        Shapes{"attention_one_head", 5, {Table(9, 5), Attention{.heads = 1}, TargetPositions{3}}},
        Shapes{"attention_dropout", 9, {Table(12, 9), Attention{.heads = 2, .dropout = 0.4f}, TargetPositions{3}}},
        Shapes{"attention_of_blocks", 150, {Table(3, 150), Attention{.heads = 1, .dropout = 0.2f}, TargetPositions{3}}},
        Shapes{"side_loss",
               6,
               {Table(6, 6), Dense{.units = 6, .bias = kBias, .each_position = true}, FirstPosition{},
                Dense{.units = 5, .bias = kBias, .each_position = true}, Tanh{},
                Dense{.units = 2, .bias = kBias}, SideLoss{}, From{1}, TargetPositions{3}}},
        Shapes{"encoder", 6, With(Encoder(6, 0), {TargetPositions{3}}), true},
        Shapes{"encoder_dropout_side_loss",
               6,
               With(Encoder(6, 0.2f), {FirstPosition{}, Dense{.units = 2, .bias = kBias}, SideLoss{}, From{14},
                                       TargetPositions{3}, Gelu{}, LayerNorm{}}),
               true}),
    [](const auto& info) { return info.param.name; });

TEST(TextNetworkTest, PartsOfABatchAddUpToItsGradient) {
  const TextCase c = MakeTextCase(6, With(Encoder(6, 0.1f), {FirstPosition{}, Dense{.units = 2, .bias = kBias}, SideLoss{},
                                                         From{14}, TargetPositions{3}}), 4, 3, true);
  auto device = MakeDevice("cpu").value();
  auto network = device->MakeNetwork(c.spec).value();
  std::vector<float> whole(c.spec.elements), parts(c.spec.elements);
  const auto all = network->Train(c.Batch(4), c.vector.data(), Open, {.gradient = whole.data()});
  ASSERT_TRUE(all.ok());
  // Of one and of three examples, which have other numbers of targets.
  double loss = 0;
  for (const auto& [first, examples] : {std::pair<uint64_t, uint64_t>{0, 1}, {1, 3}}) {
    BatchView part = c.Batch(examples, first);
    part.text.divisor = static_cast<double>(all->count) * static_cast<double>(examples) / 4;
    const auto result = network->Train(part, c.vector.data(), Open,
                                       {static_cast<float>(examples) / 4, first > 0, parts.data(), nullptr});
    ASSERT_TRUE(result.ok());
    loss += result->loss;
  }
  EXPECT_NEAR(loss, all->loss, 1e-5 * all->loss);
  for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(parts[i], whole[i], 1e-6) << i;
}

TEST(TextNetworkTest, ThreadsAndBatchesDoNotChangeWhatIsDropped) {
  const TextCase c = MakeTextCase(20, {Table(12, 20), Dropout{0.5f}, Attention{.heads = 2, .dropout = 0.5f}, TargetPositions{3}}, 4, 3, false);
  auto one = MakeDevice("cpu").value();
  auto two = MakeDevice("cpu", {.threads = 2}).value();
  std::vector<std::vector<float>> gradients;
  for (Device* device : {one.get(), two.get()}) {
    auto network = device->MakeNetwork(c.spec).value();
    gradients.emplace_back(c.spec.elements);
    ASSERT_TRUE(network->Train(c.Batch(4), c.vector.data(), Open, {.gradient = gradients.back().data()}).ok());
  }
  for (size_t i = 0; i < gradients[0].size(); ++i) ASSERT_NEAR(gradients[0][i], gradients[1][i], 1e-5) << i;

  // Another key drops others; no key drops nothing.
  auto network = one->MakeNetwork(c.spec).value();
  TextCase other = c;
  for (uint64_t& key : other.keys) ++key;
  std::vector<float> changed(c.spec.elements), plain(c.spec.elements);
  ASSERT_TRUE(network->Train(other.Batch(4), c.vector.data(), Open, {.gradient = changed.data()}).ok());
  EXPECT_NE(changed, gradients[0]);
  BatchView batch = c.Batch(4);
  batch.text.keys = nullptr;
  const auto without = network->Train(batch, c.vector.data(), Open, {.gradient = plain.data()});
  const auto evaluated = network->Evaluate(batch, c.vector.data());
  ASSERT_TRUE(without.ok() && evaluated.ok());
  EXPECT_NEAR(without->loss, evaluated->loss, 1e-6 * evaluated->loss);
}

TEST(TextNetworkTest, PaddingIsNotSeen) {
  TextCase c = MakeTextCase(8, With(Encoder(8, 0), {TargetPositions{3}}), 3, 3, true);
  auto device = MakeDevice("cpu").value();
  auto kept = device->MakeNetwork(c.spec).value();
  const auto before = kept->Evaluate(c.Batch(3), c.vector.data());
  for (uint64_t e = 0; e < 3; ++e) {
    for (auto p = static_cast<uint64_t>(c.lengths[e]); p < 8; ++p) c.tokens[e * 8 + p] = (c.tokens[e * 8 + p] + 1) % kTokens;
  }
  const auto after = kept->Evaluate(c.Batch(3), c.vector.data());
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(before->loss, after->loss);
}

TEST(TextNetworkTest, RefusesWhatDoesNotFit) {
  const auto device = MakeDevice("cpu").value();
  const auto refusal = [&](uint32_t positions, std::vector<Layer> layers) {
    NetworkSpec spec{.input = {positions, 1, 1}, .layers = std::move(layers), .batch_size = 1};
    spec.trainable_elements = spec.elements = 1000;
    return std::string(CheckNetwork(spec).status().message());
  };
  const Embedding table{.channels = 6, .tokens = kTokens, .positions = 8, .segments = 2, .token = 0, .position = 0, .segment = 0};
  const Dense last{.units = kTokens, .weight = 0, .each_position = true};
  EXPECT_EQ(refusal(8, {table, TargetPositions{3}, last}), "");
  EXPECT_THAT(refusal(9, {table, TargetPositions{3}, last}),
              HasSubstr("layer 0: a sequence of 9 tokens is longer than the table of 8 positions"));
  EXPECT_THAT(refusal(8, {table, TargetPositions{9}, last}), HasSubstr("9 targets do not fit a sequence of 8"));
  EXPECT_THAT(refusal(8, {table, Attention{.heads = 4}, last}), HasSubstr("6 channels does not divide into Q, K and V of 4 heads"));
  EXPECT_THAT(refusal(8, {table, Dropout{1.0f}, last}), HasSubstr("drops a part of 1"));
  EXPECT_THAT(refusal(8, {Relu{}, table, last}), HasSubstr("an embedding must be the first layer"));
  EXPECT_THAT(refusal(8, {last, Dropout{0.1f}, last}), HasSubstr("is of text"));
  EXPECT_THAT(refusal(8, {last, Relu{}, last}), HasSubstr("needs text and its targets"));
  EXPECT_THAT(refusal(8, {table, SideLoss{}, From{0}, last}), HasSubstr("needs the logits of a Dense"));
  EXPECT_THAT(refusal(8, {table, Dense{.units = 2, .weight = 0}, SideLoss{}, last}), HasSubstr("only From can follow"));
  EXPECT_THAT(refusal(8, {table, LayerNorm{.weight = 999, .bias = 0}, last}), HasSubstr("weight covers elements 999"));

  TextCase c = MakeTextCase(6, {Table(6, 6), TargetPositions{3}}, 2, 3, true);
  auto network = device->MakeNetwork(c.spec).value();
  const auto said = [&](std::vector<int32_t>& values, size_t at, int32_t value) {
    const int32_t good = std::exchange(values[at], value);
    const auto loss = network->Evaluate(c.Batch(2), c.vector.data());
    values[at] = good;
    EXPECT_TRUE(absl::IsInvalidArgument(loss.status()));
    return std::string(loss.status().message());
  };
  EXPECT_THAT(said(c.tokens, 8, 11), HasSubstr("example 1 of the batch has token 11 at 2, outside of 0 to 10"));
  EXPECT_THAT(said(c.segments, 0, 2), HasSubstr("segment 2"));
  EXPECT_THAT(said(c.lengths, 1, 7), HasSubstr("the length 7"));
  EXPECT_THAT(said(c.targets, 0, -2), HasSubstr("target -2"));
  EXPECT_THAT(said(c.target_positions, 0, 6), HasSubstr("a target at position 6"));
}

// The published test vectors of Random123.
TEST(PhiloxTest, HasThePublishedValues) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox({0, 0, 0, 0}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox({ones, ones, ones, ones}, ones, ones), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

}  // namespace
}  // namespace foreshard::kernels
