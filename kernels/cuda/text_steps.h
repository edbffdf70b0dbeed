// The layers of text in a StepPlan: what each calls forward and backward, and the loss over the
// targets (internal to step_plan.cc).
#pragma once

#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/step_builder.h"

namespace FORESHARD_CUDA_NAMESPACE {

class TextSteps {
 public:
  explicit TextSteps(StepBuilder& builder)
      : builder_(builder), kept_(builder.spec().layers.size()) {}

  // Embedding, LayerNorm, Attention, Gelu, Tanh, Dropout, TargetPositions, FirstPosition.
  static bool Has(const Layer& layer);
  // Whether backward reads what the layer has read, or made.
  static bool ReadsInput(const Layer& layer);
  static bool ReadsOutput(const Layer& layer);
  // Whether the gradient of the input may take the place of the output's.
  static bool InPlace(const Layer& layer);
  // INVALID_ARGUMENT with the layer's number: what the GPU cannot do.
  absl::Status Check() const;

  // Whether Dropout i does anything in this plan.
  bool Drops(size_t i) const;
  // x is nothing of an Embedding. A Dropout's y may be its x.
  void Forward(size_t i, const Region& x, const Region& y);
  // `dx` null: not wanted. x and y only where backward reads them.
  void Backward(size_t i, const Region& x, const Region& y, const Region& dy, const Held& dx);

  // Of the targets; `gradient` null: none.
  void Loss(const Region& logits, const Held& gradient);

 private:
  void ForwardEmbedding(const Embedding& layer, const Region& y);
  void BackwardEmbedding(const Embedding& layer, const Region& dy);
  void ForwardNorm(const LayerNorm& layer, size_t i, const Region& x, const Region& y);
  void BackwardNorm(const LayerNorm& layer, size_t i, const Region& x, const Region& dy,
                    const Held& dx);
  void AddDropout(const Dropout& layer, size_t i, const Region& from, const Region& to);
  AttentionArguments ArgumentsOfAttention(const Attention& layer, size_t i) const;
  void ForwardAttention(const Attention& layer, size_t i, const Region& x, const Region& y);
  void BackwardAttention(const Attention& layer, size_t i, const Region& x, const Region& y,
                         const Region& dy, const Region& dx);

  StepBuilder& builder_;
  // By layer: a norm's means and deviations, attention's logarithms, until backward is done.
  std::vector<Held> kept_;
};

}  // namespace FORESHARD_CUDA_NAMESPACE
