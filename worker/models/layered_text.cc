// The layers of text of a LayerList, with the names that Hugging Face's BERT has.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "worker/models/layered_model.h"

namespace foreshard {

void LayerList::Embedding(const std::string& name, const kernels::Embedding& sizes) {
  kernels::Embedding layer = sizes;
  const auto table = [&](const char* which, uint32_t rows) {
    return AddTensor(absl::StrCat(name, ".", which, "_embeddings.weight"), {rows, sizes.channels},
                     TensorKind::kTrainable, true, {.deviation = kBertDeviation});
  };
  layer.token = table("word", sizes.tokens);
  layer.position = table("position", sizes.positions);
  layer.segment = table("token_type", sizes.segments);
  Append(name, layer);
}

void LayerList::LayerNorm(const std::string& name) {
  const int64_t channels = shape().channels;
  kernels::LayerNorm layer;
  layer.weight =
      AddTensor(name + ".weight", {channels}, TensorKind::kTrainable, false, {.constant = 1});
  layer.bias = AddTensor(name + ".bias", {channels}, TensorKind::kTrainable, false, {.constant = 0});
  Append(name, layer);
}

void LayerList::EachPosition(const std::vector<std::string>& names, uint32_t units) {
  kernels::Dense layer{.units = units * static_cast<uint32_t>(names.size()), .each_position = true};
  const int64_t channels = shape().channels;
  for (const std::string& name : names) {
    const uint64_t weight = AddTensor(name + ".weight", {units, channels}, TensorKind::kTrainable,
                                      true, {.deviation = kBertDeviation});
    if (layer.weight == kernels::kNoTensor) layer.weight = weight;
  }
  for (const std::string& name : names) {
    const uint64_t bias =
        AddTensor(name + ".bias", {units}, TensorKind::kTrainable, false, {.constant = 0});
    if (layer.bias == kernels::kNoTensor) layer.bias = bias;
  }
  Append(names.front(), layer);
}

void LayerList::TiedToEmbedding(const std::string& bias) {
  const auto& embedding = std::get<kernels::Embedding>(layers_.front());
  kernels::Dense layer{
      .units = embedding.tokens, .weight = embedding.token, .each_position = true};
  layer.bias =
      AddTensor(bias, {embedding.tokens}, TensorKind::kTrainable, false, {.constant = 0});
  Append(bias, layer);
}

void LayerList::Attention(uint32_t heads, float dropout) {
  Append("attention", kernels::Attention{.heads = heads, .dropout = dropout});
}

void LayerList::Gelu() { Append("gelu", kernels::Gelu{}); }

void LayerList::Tanh() { Append("tanh", kernels::Tanh{}); }

void LayerList::Dropout(float rate) {
  if (rate > 0) Append("dropout", kernels::Dropout{.rate = rate});
}

void LayerList::TargetPositions(uint32_t count) {
  Append("targets", kernels::TargetPositions{.count = count});
}

void LayerList::FirstPosition() { Append("first position", kernels::FirstPosition{}); }

void LayerList::SideLoss() { Append("side loss", kernels::SideLoss{}); }

void LayerList::Extra(const std::string& name, const std::string& same_as) {
  extra_weights_.push_back({name, same_as});
}

// The first BERT's files have TensorFlow's names of layer normalisation.
std::string LayeredModel::OtherName(const std::string& tensor) const {
  constexpr char kWeight[] = ".LayerNorm.weight", kBias[] = ".LayerNorm.bias";
  if (absl::EndsWith(tensor, kWeight)) return absl::StrCat(absl::StripSuffix(tensor, kWeight), ".LayerNorm.gamma");
  if (absl::EndsWith(tensor, kBias)) return absl::StrCat(absl::StripSuffix(tensor, kBias), ".LayerNorm.beta");
  return {};
}

}  // namespace foreshard
