#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "common/core/safetensors.h"
#include "tests/worker/data/data_folder.h"
#include "tests/worker/emulated_device.h"
#include "worker/data/random_text.h"
#include "worker/models/layered_model.h"
#include "worker/models/pytorch_weights.h"

namespace foreshard {
namespace {

using testing::HasSubstr;

ModelOptions Options(bool next_sentence = false) {
  return {.name = "bert_tiny",
          .input = {16, 1, 1},
          .classes = 50,
          .batch_size = 4,
          .text = {.targets = 3, .positions = 20, .dropout = 0, .next_sentence = next_sentence}};
}

class BertTest : public DataFolderTest {
 protected:
  BertTest() : DataFolderTest("foreshard-bert") {}
  std::unique_ptr<Model> Make(const ModelOptions& options) {
    auto model = MakeModel(options, *device_);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : nullptr;
  }
  std::unique_ptr<kernels::Device> device_ = kernels::MakeDevice("cpu").value();
};

TEST_F(BertTest, HasTheSizesThatArePublished) {
  const auto elements = [&](const char* name) {
    ModelOptions options = Options(/*next_sentence=*/true);
    options.name = name;
    options.classes = 30522;
    options.batch_size = 1;
    options.text.positions = 512;
    return Make(options)->schema().trainable_elements();
  };
  // Of Hugging Face's BertForPreTraining.
  EXPECT_EQ(elements("bert_tiny"), 4'433'468u);
  EXPECT_EQ(elements("bert_base"), 110'106'428u);
  EXPECT_EQ(elements("bert_large"), 336'226'108u);
}

TEST_F(BertTest, NamesShapesAndDecay) {
  const auto model = Make(Options(true));
  const Schema& schema = model->schema();
  EXPECT_EQ(schema.statistic_elements(), 0u);
  std::set<std::string> names;
  for (const TensorSpec& tensor : schema.tensors()) {
    names.insert(tensor.name);
    EXPECT_EQ(tensor.decayed, tensor.shape.size() == 2) << tensor.name;
  }
  for (const char* name : {"bert.embeddings.word_embeddings.weight", "bert.embeddings.LayerNorm.bias",
                           "bert.encoder.layer.1.attention.self.key.weight", "bert.encoder.layer.0.intermediate.dense.bias",
                           "bert.pooler.dense.weight", "cls.seq_relationship.bias", "cls.predictions.bias",
                           "cls.predictions.transform.LayerNorm.weight"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  std::vector<float> vector(schema.elements());
  model->InitialValues(1, vector.data());
  for (size_t i = 0; i < schema.tensors().size(); ++i) {
    const TensorSpec& tensor = schema.tensors()[i];
    double squares = 0;
    for (uint64_t k = 0; k < tensor.elements(); ++k) squares += std::pow(vector[schema.offset(i) + k], 2);
    const double deviation = std::sqrt(squares / static_cast<double>(tensor.elements()));
    const double wanted = tensor.shape.size() == 2 ? 0.02 : absl::EndsWith(tensor.name, "LayerNorm.weight") ? 1 : 0;
    EXPECT_NEAR(deviation, wanted, 0.3 * wanted) << tensor.name;
  }
}

TEST_F(BertTest, GradientIsTheSlopeOfItsOwnLoss) {
  ModelOptions options = Options(true);
  options.text.dropout = 0.1f;
  const auto model = Make(options);
  std::vector<float> vector(model->schema().elements()), gradient(vector.size());
  model->InitialValues(1, vector.data());
  // Larger weights, so that a step along the gradient is more than rounding.
  for (float& value : vector) value *= 5;
  Batch batch = RandomText(options, 2, /*full=*/false);
  batch.keys = {11, 12, 13, 14};
  OpenGate gate;
  const auto mean = [](const StepResult& step) {
    return step.loss_sum / static_cast<double>(step.count) + step.side_loss_sum / 4;
  };
  ASSERT_TRUE(model->ForwardBackward(batch, vector.data(), gate, 1, false, gradient.data(), nullptr).ok());
  double squares = 0;
  for (float g : gradient) squares += double{g} * g;
  const double step = 3e-5 / std::sqrt(squares);
  std::vector<float> ignored(vector.size());
  double losses[2];
  for (int side : {0, 1}) {
    std::vector<float> moved = vector;
    for (size_t i = 0; i < moved.size(); ++i) moved[i] += static_cast<float>((side == 0 ? -step : step) * gradient[i]);
    const auto result = model->ForwardBackward(batch, moved.data(), gate, 1, false, ignored.data(), nullptr);
    ASSERT_TRUE(result.ok());
    losses[side] = mean(*result);
  }
  EXPECT_NEAR((losses[1] - losses[0]) / (2 * step) / squares, 1, 0.02);
}

// With dropout, and both objectives: what is not the same is rounding.
TEST_F(BertTest, OnAGpuItIsTheSameModel) {
  ModelOptions options = Options(/*next_sentence=*/true);
  options.text.dropout = 0.1f;
  const auto model = Make(options);
  EmulatedDevice gpu;
  const auto there = MakeModel(options, gpu);
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_GT((*there)->step_bytes(), 0u);
  std::vector<float> vector(model->schema().elements()), gradient(vector.size()), made(vector.size());
  model->InitialValues(1, vector.data());
  Batch batch = RandomText(options, 2, /*full=*/false);
  batch.keys = {11, 12, 13, 14};
  OpenGate gate;
  const auto wanted = model->ForwardBackward(batch, vector.data(), gate, 1, false, gradient.data(), nullptr);
  const auto step = (*there)->ForwardBackward(batch, vector.data(), gate, 1, false, made.data(), nullptr);
  ASSERT_TRUE(wanted.ok() && step.ok()) << step.status();
  const auto same = [](const StepResult& a, const StepResult& b) {
    EXPECT_NEAR(a.loss_sum, b.loss_sum, 1e-5 * b.loss_sum);
    EXPECT_NEAR(a.side_loss_sum, b.side_loss_sum, 1e-5 * b.side_loss_sum);
    EXPECT_EQ(a.correct, b.correct);
    EXPECT_EQ(a.side_correct, b.side_correct);
    EXPECT_EQ(a.count, b.count);
  };
  same(*step, *wanted);
  double difference = 0, squares = 0;
  for (size_t i = 0; i < vector.size(); ++i) {
    difference += std::pow(made[i] - gradient[i], 2);
    squares += std::pow(gradient[i], 2);
  }
  EXPECT_LT(std::sqrt(difference / squares), 1e-5);
  const auto evaluated = model->Evaluate(batch, vector.data()), evaluated_there = (*there)->Evaluate(batch, vector.data());
  ASSERT_TRUE(evaluated.ok() && evaluated_there.ok()) << evaluated_there.status();
  same(*evaluated_there, *evaluated);
}

TEST_F(BertTest, LearnsASmallSet) {
  const ModelOptions options = Options(true);
  const auto model = Make(options);
  std::vector<float> vector(model->schema().elements()), gradient(vector.size()), m(vector.size()), v(vector.size());
  model->InitialValues(1, vector.data());
  const Batch batch = RandomText(options, 3, /*full=*/true);
  OpenGate gate;
  double first = 0, last = 0;
  for (int step = 1; step <= 60; ++step) {
    const auto result = model->ForwardBackward(batch, vector.data(), gate, 1, false, gradient.data(), nullptr);
    ASSERT_TRUE(result.ok());
    last = result->loss_sum / static_cast<double>(result->count);
    if (step == 1) first = last;
    for (size_t i = 0; i < vector.size(); ++i) {
      m[i] = 0.9f * m[i] + 0.1f * gradient[i];
      v[i] = 0.99f * v[i] + 0.01f * gradient[i] * gradient[i];
      vector[i] -= 2e-3f * m[i] / (std::sqrt(v[i]) + 1e-8f);
    }
  }
  EXPECT_NEAR(first, std::log(50.0), 0.5);
  EXPECT_LT(last, 0.3 * first);
}

TEST_F(BertTest, RefusesBatchesThatDoNotFit) {
  const ModelOptions options = Options();
  const auto model = Make(options);
  std::vector<float> vector(model->schema().elements());
  Batch batch = RandomText(options, 1, true);
  batch.targets.pop_back();
  const auto result = model->Evaluate(batch, vector.data());
  EXPECT_TRUE(absl::IsInvalidArgument(result.status()));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("11 targets"));
}

TEST_F(BertTest, RefusesOptionsThatDoNotFit) {
  const auto refused = [&](auto change, const char* part) {
    ModelOptions options = Options();
    change(options);
    EXPECT_THAT(std::string(MakeModel(options, *device_).status().message()), HasSubstr(part));
  };
  refused([](ModelOptions& o) { o.input = {21, 1, 1}; },
          "the data's sequences have 21 tokens, and model.positions is 20");
  refused([](ModelOptions& o) { o.input = {28, 28, 1}; }, "reads text, and the data are of 28 x 28 x 1");
  refused([](ModelOptions& o) { o.text.targets = 0; }, "targets is 0");
  refused([](ModelOptions& o) { o.text.dropout = 1; }, "dropout is 1");
  refused([](ModelOptions& o) { o.name = "mlp"; }, "reads images, and the data are text");
}

TEST_F(BertTest, WeightsComeBackAndMayHaveWhatHuggingFaceAdds) {
  const auto model = Make(Options());
  const Schema& schema = model->schema();
  std::vector<float> vector(schema.elements()), loaded(vector.size());
  model->InitialValues(1, vector.data());
  const std::string path = (directory_ / "w.safetensors").string();
  ASSERT_TRUE(SavePytorchWeights(*model, vector, path).ok());
  ASSERT_TRUE(LoadPytorchWeights(*model, path, loaded.data()).ok());
  EXPECT_EQ(loaded, vector);

  // TensorFlow's names of layer norms, the second objective's head, positions, and the output's
  // weight once more.
  const auto write = [&](float decoder, SafetensorsType type = SafetensorsType::kF32) {
    std::vector<SafetensorsTensor> tensors;
    std::vector<float> values;
    tensors.push_back({.name = "bert.embeddings.position_ids", .type = SafetensorsType::kI64, .shape = {1, 1}});
    for (size_t i = 0; i < schema.tensors().size(); ++i) {
      const TensorSpec& tensor = schema.tensors()[i];
      std::string name = tensor.name;
      if (absl::EndsWith(name, "LayerNorm.weight")) name.replace(name.size() - 6, 6, "gamma");
      if (absl::EndsWith(name, "LayerNorm.bias")) name.replace(name.size() - 4, 4, "beta");
      tensors.push_back({.name = name, .shape = {tensor.shape.begin(), tensor.shape.end()}});
      values.insert(values.end(), vector.begin() + static_cast<int64_t>(schema.offset(i)),
                    vector.begin() + static_cast<int64_t>(schema.offset(i) + tensor.elements()));
    }
    tensors.push_back({.name = "bert.pooler.dense.bias", .shape = {2}});
    values.insert(values.end(), {1, 2});
    tensors.push_back({.name = "cls.predictions.decoder.bias", .type = type, .shape = {50}});
    values.insert(values.end(), type == SafetensorsType::kI64 ? 100 : 50, decoder);  // the model's first values of it are 0
    std::string bytes;
    auto writer = SafetensorsWriter::Create(tensors, {}, [&](ByteSpan more) {
      bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
      return absl::OkStatus();
    });
    const std::string zeros(8, '\0');
    EXPECT_TRUE(writer->Append(AsBytes(zeros)).ok());
    EXPECT_TRUE(writer->Append({reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4}).ok());
    EXPECT_TRUE(writer->Finish().ok());
    return Write("hf.safetensors", bytes);
  };
  std::fill(loaded.begin(), loaded.end(), -1.0f);
  const absl::Status status = LoadPytorchWeights(*model, write(0), loaded.data());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(loaded, vector);
  EXPECT_THAT(std::string(LoadPytorchWeights(*model, write(0.5f), loaded.data()).message()),
              HasSubstr("'cls.predictions.decoder.bias' with the shape [50] is not equal to 'cls.predictions.bias'"));
  EXPECT_THAT(std::string(LoadPytorchWeights(*model, write(0, SafetensorsType::kI64), loaded.data()).message()),
              HasSubstr("'cls.predictions.decoder.bias' with the shape [50] is not equal to 'cls.predictions.bias'"));
}

TEST_F(BertTest, WeightsOfAnotherSizeAreRefusedWithBothShapes) {
  const auto model = Make(Options());
  std::vector<float> vector(model->schema().elements());
  model->InitialValues(1, vector.data());
  const std::string path = (directory_ / "w.safetensors").string();
  ASSERT_TRUE(SavePytorchWeights(*model, vector, path).ok());
  ModelOptions larger = Options();
  larger.classes = 60;
  const auto other = Make(larger);
  std::vector<float> wanted(other->schema().elements());
  EXPECT_THAT(std::string(LoadPytorchWeights(*other, path, wanted.data()).message()),
              HasSubstr("tensor 'bert.embeddings.word_embeddings.weight' has the shape [50, 128], but the model's is [60, 128]"));
  larger = Options();
  larger.name = "bert_base";
  const auto base = Make(larger);
  wanted.resize(base->schema().elements());
  EXPECT_THAT(std::string(LoadPytorchWeights(*base, path, wanted.data()).message()),
              HasSubstr("tensor 'bert.embeddings.word_embeddings.weight' has the shape [50, 128], but the model's is [50, 768]"));
  const auto pairs = Make(Options(true));
  wanted.resize(pairs->schema().elements());
  EXPECT_THAT(std::string(LoadPytorchWeights(*pairs, path, wanted.data()).message()),
              HasSubstr("tensor 'bert.pooler.dense.weight' of the model is missing"));
}

TEST_F(BertTest, StepMemoryIsKnownBeforehandAndGrowsWithTheBatch) {
  ModelOptions options = Options();
  const uint64_t four = Make(options)->step_bytes();
  options.batch_size = 8;
  const uint64_t eight = Make(options)->step_bytes();
  EXPECT_GT(four, 0u);
  EXPECT_GT(eight, four);
  EXPECT_LT(eight, 2 * four + 1);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Resident pages of this process, in bytes.
uint64_t Resident() {
  uint64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// What generated code may take more or less on this processor than on those with AVX-512, where its
// size was measured.
double CodeTolerance() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return 0;
#endif
  return 4 << 20;
}

// Ends the process with 0 where steps took what was said, within 5 % (and CodeTolerance).
[[noreturn]] void TakeSteps(uint32_t batch_size) {
  ModelOptions options = Options();
  options.input = {128, 1, 1};
  options.classes = 8192;
  options.batch_size = batch_size;
  options.text = {.targets = 19};
  const auto device = kernels::MakeDevice("cpu").value();
  const auto model = MakeModel(options, *device).value();
  std::vector<float> vector(model->schema().elements()), gradient(vector.size());
  model->InitialValues(1, vector.data());
  Batch batch = RandomText(options, 1, /*full=*/true);
  batch.keys.assign(batch_size, 7);
  OpenGate gate;
  const uint64_t before = Resident();
  bool fine = true;
  for (int step = 0; step < 2; ++step) {
    fine &= model->ForwardBackward(batch, vector.data(), gate, 1, false, gradient.data(), nullptr).ok();
  }
  const auto taken = static_cast<double>(Resident() - before), said = static_cast<double>(model->step_bytes());
  std::fprintf(stderr, "took %.1f MiB, said were %.1f MiB\n", taken / (1 << 20), said / (1 << 20));
  std::exit(fine && std::abs(taken - said) <= 0.05 * said + CodeTolerance() ? 0 : 1);
}

// In processes of their own, since a part is taken once a process.
TEST(BertMemoryDeathTest, AStepTakesTheMemoryThatWasSaid) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (uint32_t batch : {1, 16, 64}) {
    SCOPED_TRACE(batch);
    EXPECT_EXIT(TakeSteps(batch), testing::ExitedWithCode(0), "took .* MiB");
  }
}
#endif

}  // namespace
}  // namespace foreshard
