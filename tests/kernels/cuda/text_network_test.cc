// Networks that read text on the GPU (network_machine.h), against the plain fp64 reference and its
// central differences, and in the emulation against the CPU's network too.
#include <gmock/gmock.h>

#include <set>

#include "kernels/device_failure.h"
#include "tests/kernels/cpu/reference_text.h"
#include "tests/kernels/cpu/text_case.h"
#include "tests/kernels/cuda/network_machine.h"

namespace foreshard::kernels::cuda {
namespace {

using testing::HasSubstr;

struct Shapes {
  const char* name;
  uint32_t positions;
  std::vector<Layer> layers;
  bool tied = false;
};

void PrintTo(const Shapes& shapes, std::ostream* out) { *out << shapes.name; }

class CudaTextNetworkLayersTest : public OnDevice, public testing::WithParamInterface<Shapes> {};
class CudaTextNetworkTest : public OnDevice {};

void ExpectNear(absl::Span<const float> gradient, const std::vector<double>& wanted, double factor,
                double tolerance) {
  double largest = 1e-3;
  for (double value : wanted) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(gradient[i], factor * wanted[i], tolerance * largest) << "element " << i;
  }
}

// Each tensor by its own norm; one whose gradient is 0 but for rounding (a key's bias), by a small part
// of the whole's.
void ExpectTensorsNear(const Machine& machine, const std::vector<double>& wanted, double tolerance) {
  const auto norm = [](double squares) { return std::sqrt(squares); };
  double all = 0;
  for (double value : wanted) all += value * value;
  for (const auto& [begin, count] : std::set(machine.asked.begin(), machine.asked.end())) {
    double difference = 0, size = 0;
    for (uint64_t i = begin; i < begin + count; ++i) {
      difference += std::pow(machine.gradient[i] - wanted[i], 2);
      size += wanted[i] * wanted[i];
    }
    EXPECT_LT(norm(difference), tolerance * std::max(norm(size), 0.02 * norm(all))) << "tensor at " << begin;
  }
}

TEST_P(CudaTextNetworkLayersTest, AgreesWithReference) {
  const Shapes& shapes = GetParam();
  const TextCase c = MakeTextCase(shapes.positions, shapes.layers, 4, 3, shapes.tied);
  Machine machine(c.spec);
  EXPECT_GT(machine.network().step_bytes(), 0u);
  uint64_t turn = 0;
  for (uint64_t examples : {4, 1}) {
    SCOPED_TRACE(examples);
    const BatchView batch = c.Batch(examples);
    const TextReference training = ReferenceTextForward(c.spec, batch, c.Doubles(), true);
    const std::vector<double> wanted = ReferenceTextGradient(c.spec, batch, c.Doubles());
    // As it is, captured, launched again; threads in other orders.
    for (int step = 0; step < 3; ++step) {
      const ThreadOrder order(turn++ % kOrders);
      const LossSum loss = machine.Train(c, batch);
      EXPECT_NEAR(loss.loss, training.target_loss, 1e-4 * (1 + training.target_loss));
      EXPECT_NEAR(loss.side_loss, training.side_loss, 1e-4 * (1 + training.side_loss));
      EXPECT_EQ(loss.correct, training.correct);
      EXPECT_EQ(loss.side_correct, training.side_correct);
      EXPECT_EQ(loss.count, training.count);
      ExpectNear(machine.gradient, wanted, 1, 2e-4);
    }
    // Accumulating adds, also where the tied table's gradient has two parts.
    machine.Train(c, batch, 0.5f, /*accumulate=*/true);
    ExpectNear(machine.gradient, wanted, 1.5, 3e-4);

    const TextReference inference = ReferenceTextForward(c.spec, batch, c.Doubles(), false);
    const auto evaluated = machine.network().Evaluate(batch, machine.memory().vector());
    ASSERT_TRUE(evaluated.ok()) << evaluated.status();
    EXPECT_NEAR(evaluated->loss, inference.target_loss, 1e-4 * (1 + inference.target_loss));
    EXPECT_NEAR(evaluated->side_loss, inference.side_loss, 1e-4 * (1 + inference.side_loss));
    EXPECT_EQ(evaluated->correct, inference.correct);
    EXPECT_EQ(evaluated->count, inference.count);
  }
}

std::vector<Layer> Bert(uint32_t positions, float dropout) {
  return With(Encoder(positions, dropout),
              {FirstPosition{}, Dense{.units = 5, .bias = kBias, .each_position = true}, Tanh{},
               Dense{.units = 2, .bias = kBias}, SideLoss{}, From{14}, TargetPositions{3},
               Dense{.units = 8, .bias = kBias, .each_position = true}, Gelu{}, LayerNorm{}});
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaTextNetworkLayersTest,
    testing::Values(
        Shapes{"embedding", 7, {Table(5, 9), TargetPositions{3}}},
        Shapes{"tied", 6, {Table(6, 6), TargetPositions{3}}, true},
        // More than 32 rows of a token, more than a chunk of rows.
        Shapes{"embedding_of_many_rows", 110, {Table(3, 112), TargetPositions{3}}, true},
        Shapes{"layer_norm", 6, {Table(7, 6), LayerNorm{}, TargetPositions{3}}},
        Shapes{"layer_norm_of_packs", 6, {Table(8, 6), LayerNorm{}, TargetPositions{3}}},
        Shapes{"dense_of_many_rows",
               80,
               {Table(3, 80), Dense{.units = 5, .bias = kBias, .each_position = true}, LayerNorm{},
                TargetPositions{3}}},
        Shapes{"gelu",
               6,
               {Table(5, 6), Dense{.units = 9, .bias = kBias, .each_position = true}, Gelu{}, TargetPositions{3}}},
        Shapes{"tanh", 6, {Table(5, 6), Tanh{}, TargetPositions{3}}},
        Shapes{"dropout", 6, {Table(70, 6), Dropout{0.3f}, TargetPositions{3}}},
        Shapes{"dropout_of_what_others_read",
               6,
               {Table(6, 6), Gelu{}, Dropout{0.5f}, AddFrom{1}, TargetPositions{3}}},
        Shapes{"dropout_of_nothing_first",
               6,
               {Table(6, 6), Dropout{0}, Dropout{0.5f}, AddFrom{0}, TargetPositions{3}}},
        Shapes{"dropout_of_what_backward_reads",
               6,
               {Table(6, 6), Dense{.units = 5, .bias = kBias, .each_position = true}, Relu{}, Dropout{0.5f},
                TargetPositions{3}}},
        Shapes{"attention", 7, {Table(18, 7), Attention{.heads = 2}, TargetPositions{3}}},
        Shapes{"attention_one_head", 5, {Table(9, 5), Attention{.heads = 1}, TargetPositions{3}}},
        Shapes{"attention_dropout", 9, {Table(12, 9), Attention{.heads = 2, .dropout = 0.4f}, TargetPositions{3}}},
        Shapes{"attention_of_blocks", 70, {Table(3, 70), Attention{.heads = 1, .dropout = 0.2f}, TargetPositions{3}}},
        Shapes{"encoder", 6, With(Encoder(6, 0), {TargetPositions{3}}), true},
        Shapes{"bert_dropout", 6, Bert(6, 0.2f), true}),
    [](const auto& info) { return info.param.name; });

TEST_F(CudaTextNetworkTest, PartsOfABatchAddUpToItsGradient) {
  const TextCase c = MakeTextCase(6, Bert(6, 0.1f), 4, 3, true);
  Machine machine(c.spec);
  const LossSum all = machine.Train(c, c.Batch(4));
  const std::vector<float> whole = machine.gradient;
  double loss = 0, side = 0;
  for (const auto& [first, examples] : {std::pair<uint64_t, uint64_t>{0, 1}, {1, 3}}) {
    BatchView part = c.Batch(examples, first);
    part.text.divisor = static_cast<double>(all.count) * static_cast<double>(examples) / 4;
    const LossSum result = machine.Train(c, part, static_cast<float>(examples) / 4, first > 0);
    loss += result.loss;
    side += result.side_loss;
  }
  EXPECT_NEAR(loss, all.loss, 1e-5 * all.loss);
  EXPECT_NEAR(side, all.side_loss, 1e-5 * all.side_loss);
  for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(machine.gradient[i], whole[i], 1e-6) << i;
}

TEST_F(CudaTextNetworkTest, TheSameBitsInAnyOrderAndWhateverRanBefore) {
  const TextCase c = MakeTextCase(70, With(Encoder(70, 0.2f), {TargetPositions{3}}), 4, 3, true);
  Machine machine(c.spec);
  machine.Train(c, c.Batch(4));
  const std::vector<uint32_t> first = Bits(machine.gradient);
  for (uint64_t order = 1; order <= kOrders; ++order) {
    const ThreadOrder scoped(order);
    machine.Train(c, c.Batch(2));
    ASSERT_TRUE(machine.network().Evaluate(c.Batch(3), machine.memory().vector()).ok());
    machine.Train(c, c.Batch(4));
    ASSERT_EQ(Bits(machine.gradient), first);
  }
}

TEST_F(CudaTextNetworkTest, WithoutKeysNothingIsDropped) {
  const TextCase c = MakeTextCase(8, Bert(8, 0.5f), 4, 3, true);
  Machine machine(c.spec);
  const LossSum dropped = machine.Train(c, c.Batch(4));
  BatchView batch = c.Batch(4);
  batch.text.keys = nullptr;
  // Also where the graph was captured with keys.
  machine.Train(c, c.Batch(4));
  const LossSum without = machine.Train(c, batch);
  const auto evaluated = machine.network().Evaluate(batch, machine.memory().vector());
  ASSERT_TRUE(evaluated.ok());
  EXPECT_NEAR(without.loss, evaluated->loss, 1e-6 * evaluated->loss);
  EXPECT_GT(std::abs(without.loss - dropped.loss), 1e-3 * dropped.loss);
}

TEST_F(CudaTextNetworkTest, PaddingIsNotSeen) {
  TextCase c = MakeTextCase(8, Bert(8, 0), 3, 3, true);
  Machine machine(c.spec);
  const LossSum before = machine.Train(c, c.Batch(3));
  for (uint64_t e = 0; e < 3; ++e) {
    for (auto p = static_cast<uint64_t>(c.lengths[e]); p < 8; ++p) c.tokens[e * 8 + p] = (c.tokens[e * 8 + p] + 1) % kTokens;
  }
  EXPECT_EQ(machine.Train(c, c.Batch(3)).loss, before.loss);
}

TEST_F(CudaTextNetworkTest, WithoutAnyTargetThereIsNoGradient) {
  TextCase c = MakeTextCase(6, With(Encoder(6, 0), {TargetPositions{3}}), 2, 3, true);
  std::fill(c.targets.begin(), c.targets.end(), kNoTarget);
  Machine machine(c.spec);
  const LossSum loss = machine.Train(c, c.Batch(2));
  EXPECT_EQ(loss.loss, 0);
  EXPECT_EQ(loss.count, 0u);
  for (float value : machine.gradient) ASSERT_EQ(value, 0);
}

TEST_F(CudaTextNetworkTest, Bf16IsNearTheReference) {
  for (const float dropout : {0.0f, 0.2f}) {
    const TextCase c = MakeTextCase(8, Bert(8, dropout), 4, 3, true);
    const TextReference training = ReferenceTextForward(c.spec, c.Batch(4), c.Doubles(), true);
    const std::vector<double> wanted = ReferenceTextGradient(c.spec, c.Batch(4), c.Doubles());
    Machine machine(c.spec, Storage::kBf16);
    for (int step = 0; step < 2; ++step) {
      const LossSum loss = machine.Train(c, c.Batch(4));
      EXPECT_NEAR(loss.loss, training.target_loss, 0.03 * training.target_loss);
      EXPECT_NEAR(loss.side_loss, training.side_loss, 0.05 * training.side_loss);
      ExpectTensorsNear(machine, wanted, 0.1);
    }
  }
}

TEST_F(CudaTextNetworkTest, AsksForEachTensorOnce) {
  const TextCase c = MakeTextCase(6, Bert(6, 0), 4, 3, true);
  Machine machine(c.spec);
  machine.Train(c, c.Batch(4));
  uint64_t elements = 0;
  for (const auto& [begin, count] : machine.asked) elements += count;
  EXPECT_EQ(elements, c.spec.elements);
}

TEST_F(CudaTextNetworkTest, RefusesWhatDoesNotFit) {
  TextCase c = MakeTextCase(6, {Table(6, 6), TargetPositions{3}}, 2, 3, true);
  Machine machine(c.spec);
  const auto said = [&](std::vector<int32_t>& values, size_t at, int32_t value) {
    const int32_t good = std::exchange(values[at], value);
    const auto loss = machine.network().Evaluate(c.Batch(2), machine.memory().vector());
    values[at] = good;
    EXPECT_TRUE(absl::IsInvalidArgument(loss.status()));
    return std::string(loss.status().message());
  };
  EXPECT_THAT(said(c.tokens, 8, 11), HasSubstr("example 1 of the batch has token 11 at 2, outside of 0 to 10"));
  EXPECT_THAT(said(c.lengths, 1, 7), HasSubstr("the length 7"));
  EXPECT_THAT(said(c.target_positions, 0, 6), HasSubstr("a target at position 6"));
  EXPECT_TRUE(absl::IsInvalidArgument(
      machine.network().Evaluate(c.Batch(3), machine.memory().vector()).status()));
}

#if defined(FORESHARD_CUDA_EMULATION)
TEST_F(CudaTextNetworkTest, HeadsThatAreTooWideAreSaid) {
  const Stream stream = Stream::Make().value();
  const TextCase c = MakeTextCase(6, {Table(2 * 3 * 65, 6), Attention{.heads = 2}, TargetPositions{3}}, 2, 3, false);
  PlainLibrary library(Storage::kFp32);
  const absl::Status status = CudaNetwork::Create(&library, stream.native(), c.spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1: a head of attention has 65 channels"));
}

// With dropout, whose numbers are the same, so all that differs is rounding.
TEST_F(CudaTextNetworkTest, ItIsTheCpusNetwork) {
  const TextCase c = MakeTextCase(40, Bert(40, 0.1f), 4, 3, true);
  const auto device = MakeDevice("cpu").value();
  auto cpu = device->MakeNetwork(c.spec).value();
  Machine machine(c.spec);
  for (uint64_t examples : {4, 3}) {
    std::vector<float> gradient(c.spec.elements);
    const auto wanted = cpu->Train(
        c.Batch(examples), c.vector.data(), [](uint64_t, uint64_t) { return absl::OkStatus(); },
        {.gradient = gradient.data()});
    ASSERT_TRUE(wanted.ok());
    const LossSum loss = machine.Train(c, c.Batch(examples));
    EXPECT_NEAR(loss.loss, wanted->loss, 1e-5 * wanted->loss);
    EXPECT_NEAR(loss.side_loss, wanted->side_loss, 1e-5 * wanted->side_loss);
    EXPECT_EQ(loss.correct, wanted->correct);
    EXPECT_EQ(loss.side_correct, wanted->side_correct);
    EXPECT_EQ(loss.count, wanted->count);
    const std::vector<double> doubles(gradient.begin(), gradient.end());
    EXPECT_LT(Distance(machine.gradient, doubles), 1e-5);
  }
}
#endif

}  // namespace
}  // namespace foreshard::kernels::cuda
