// BERT (Devlin et al., arXiv 1810.04805): an encoder that reads in both directions, trained to
// tell the tokens that were masked, and as an option whether the second segment follows the first.
// Names of tensors are Hugging Face's (BertForMaskedLM, and with the option BertForPreTraining);
// a block's layer norms come after its sums, as in the paper.
//
// With a vocabulary of 30522 the trainable numbers are 4.4 M (tiny; Turc et al., arXiv
// 1908.08962), 109.5 M (base) and 335.2 M (large).
#include "absl/strings/str_cat.h"
#include "worker/models/layered_model.h"
#include "worker/models/models.h"

namespace foreshard {
namespace {

constexpr uint32_t kSegments = 2;

struct Sizes {
  uint32_t layers, channels, heads;
  uint32_t inner() const { return 4 * channels; }
};

// A dense layer, dropout, the sum with the output of layer `shortcut`, layer norm.
void Output(LayerList* layers, const std::string& name, uint32_t channels, uint32_t shortcut,
            float dropout) {
  layers->EachPosition({name + ".dense"}, channels);
  layers->Dropout(dropout);
  layers->AddFrom(shortcut);
  layers->LayerNorm(name + ".LayerNorm");
}

void Encoder(LayerList* layers, const std::string& name, const Sizes& sizes, float dropout) {
  const std::string attention = name + ".attention";
  const uint32_t input = layers->last();
  layers->EachPosition({attention + ".self.query", attention + ".self.key", attention + ".self.value"},
                       sizes.channels);
  layers->Attention(sizes.heads, dropout);
  Output(layers, attention + ".output", sizes.channels, input, dropout);
  const uint32_t middle = layers->last();
  layers->EachPosition({name + ".intermediate.dense"}, sizes.inner());
  layers->Gelu();
  Output(layers, name + ".output", sizes.channels, middle, dropout);
}

absl::StatusOr<std::unique_ptr<Model>> MakeBert(const std::string& name, const Sizes& sizes,
                                                const ModelOptions& options,
                                                kernels::Device& device) {
  const TextOptions& text = options.text;
  LayerList layers(options.input, Initialisation::kBert);
  layers.Embedding("bert.embeddings", {.channels = sizes.channels,
                                       .tokens = options.classes,
                                       .positions = text.positions,
                                       .segments = kSegments});
  layers.LayerNorm("bert.embeddings.LayerNorm");
  layers.Dropout(text.dropout);
  for (uint32_t i = 0; i < sizes.layers; ++i) {
    Encoder(&layers, absl::StrCat("bert.encoder.layer.", i), sizes, text.dropout);
  }
  const uint32_t encoded = layers.last();
  if (text.next_sentence) {
    layers.FirstPosition();
    layers.EachPosition({"bert.pooler.dense"}, sizes.channels);
    layers.Tanh();
    layers.Dense("cls.seq_relationship", 2, /*bias=*/true);
    layers.SideLoss();
    layers.From(encoded);
  } else {
    layers.Extra("bert.pooler.dense.*");
    layers.Extra("cls.seq_relationship.*");
  }
  layers.TargetPositions(text.targets);
  layers.EachPosition({"cls.predictions.transform.dense"}, sizes.channels);
  layers.Gelu();
  layers.LayerNorm("cls.predictions.transform.LayerNorm");
  layers.TiedToEmbedding("cls.predictions.bias");
  layers.Extra("bert.embeddings.position_ids");
  layers.Extra("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight");
  layers.Extra("cls.predictions.decoder.bias", "cls.predictions.bias");
  return layers.Make(name, options, device);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeBertTiny(const ModelOptions& options,
                                                    kernels::Device& device) {
  return MakeBert("bert_tiny", {.layers = 2, .channels = 128, .heads = 2}, options, device);
}

absl::StatusOr<std::unique_ptr<Model>> MakeBertBase(const ModelOptions& options,
                                                    kernels::Device& device) {
  return MakeBert("bert_base", {.layers = 12, .channels = 768, .heads = 12}, options, device);
}

absl::StatusOr<std::unique_ptr<Model>> MakeBertLarge(const ModelOptions& options,
                                                     kernels::Device& device) {
  return MakeBert("bert_large", {.layers = 24, .channels = 1024, .heads = 16}, options, device);
}

}  // namespace foreshard
