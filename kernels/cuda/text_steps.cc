#include "kernels/cuda/text_steps.h"

#include "absl/strings/str_cat.h"
#include "kernels/text_layers.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

static_assert(kAbsentTarget == kNoTarget);

template <typename... Kinds>
bool IsOneOf(const Layer& layer) {
  return (std::holds_alternative<Kinds>(layer) || ...);
}

uint32_t RowsOf(uint32_t examples, const Shape& shape) {
  return examples * shape.height * shape.width;
}

// What kernels are told of an embedding; the text's arrays are the step's.
EmbeddingArguments ArgumentsOf(const Embedding& layer, Storage storage, const Bindings& b,
                               const Region& text, const TextLayout& layout) {
  return {.storage = storage,
          .examples = layout.examples,
          .positions = layout.positions,
          .channels = layer.channels,
          .tokens = layer.tokens,
          .position_rows = layer.positions,
          .segments = layer.segments,
          .token = At<int32_t>(b, text, layout.tokens),
          .segment = At<int32_t>(b, text, layout.segments),
          .order = At<uint32_t>(b, text, layout.order),
          .starts = At<uint32_t>(b, text, layout.starts)};
}

// Of layer `number`: the step's keys, and whether it drops at all.
struct DropStream {
  float rate;
  uint32_t number;
  Region text, scalars;
  uint64_t keys;

  DropArguments Of(const Bindings& b) const {
    return {rate, number, At<uint64_t>(b, text, keys), At<StepScalars>(b, scalars)};
  }
};

DropStream StreamOf(float rate, size_t i, const StepPlan& plan) {
  return {rate, static_cast<uint32_t>(i), plan.inputs, plan.scalars, plan.text.keys};
}

}  // namespace

bool TextSteps::Has(const Layer& layer) {
  return IsOneOf<Embedding, LayerNorm, Attention, Gelu, Tanh, Dropout, TargetPositions,
                 FirstPosition>(layer);
}
bool TextSteps::ReadsInput(const Layer& layer) {
  return IsOneOf<LayerNorm, Attention, Gelu, Tanh>(layer);
}
bool TextSteps::ReadsOutput(const Layer& layer) { return IsOneOf<Attention>(layer); }
bool TextSteps::InPlace(const Layer& layer) {
  return IsOneOf<LayerNorm, Gelu, Tanh, Dropout>(layer);
}

absl::Status TextSteps::Check() const {
  for (size_t i = 0; i < builder_.spec().layers.size(); ++i) {
    const auto* attention = std::get_if<Attention>(&builder_.spec().layers[i]);
    if (attention == nullptr) continue;
    const absl::Status fits =
        CheckAttention(builder_.OutputShape(i).channels / attention->heads);
    if (!fits.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", i, ": ", fits.message()));
    }
  }
  return absl::OkStatus();
}

bool TextSteps::Drops(size_t i) const {
  return builder_.training() && std::get<Dropout>(builder_.spec().layers[i]).rate > 0;
}

void TextSteps::Forward(size_t i, const Region& x, const Region& y) {
  const Layer& layer = builder_.spec().layers[i];
  const Shape& in = builder_.InputShape(i);
  const Storage storage = builder_.storage();
  if (const auto* embedding = std::get_if<Embedding>(&layer)) {
    ForwardEmbedding(*embedding, y);
  } else if (const auto* norm = std::get_if<LayerNorm>(&layer)) {
    ForwardNorm(*norm, i, x, y);
  } else if (const auto* attention = std::get_if<Attention>(&layer)) {
    ForwardAttention(*attention, i, x, y);
  } else if (const auto* dropout = std::get_if<Dropout>(&layer)) {
    if (Drops(i)) AddDropout(*dropout, i, x, y);
  } else if (IsOneOf<Gelu, Tanh>(layer)) {
    const Curve curve = IsOneOf<Gelu>(layer) ? Curve::kGelu : Curve::kTanh;
    const uint64_t n = builder_.examples() * in.elements();
    builder_.Add([=](const Bindings& b, NativeStream stream) {
      return ApplyCurve(curve, storage, n, At(b, x), At(b, y), stream);
    });
  } else {
    const bool first = IsOneOf<FirstPosition>(layer);
    const SelectShape shape = {builder_.examples(), in.height * in.width, in.channels,
                               builder_.OutputShape(i).height};
    builder_.Add([=, text = builder_.plan().inputs, at = builder_.plan().text.target_positions](
                     const Bindings& b, NativeStream stream) {
      SelectShape named = shape;
      if (!first) named.at = At<int32_t>(b, text, at);
      return SelectForward(storage, named, At(b, x), At(b, y), stream);
    });
  }
}

void TextSteps::Backward(size_t i, const Region& x, const Region& y, const Region& dy,
                         const Held& dx) {
  const Layer& layer = builder_.spec().layers[i];
  const Shape& in = builder_.InputShape(i);
  const Storage storage = builder_.storage();
  if (const auto* embedding = std::get_if<Embedding>(&layer)) {
    BackwardEmbedding(*embedding, dy);
  } else if (const auto* norm = std::get_if<LayerNorm>(&layer)) {
    BackwardNorm(*norm, i, x, dy, dx);
  } else if (dx == nullptr) {
    return;
  } else if (const auto* attention = std::get_if<Attention>(&layer)) {
    BackwardAttention(*attention, i, x, y, dy, *dx);
  } else if (const auto* dropout = std::get_if<Dropout>(&layer)) {
    if (Drops(i)) AddDropout(*dropout, i, dy, *dx);
  } else if (IsOneOf<Gelu, Tanh>(layer)) {
    const Curve curve = IsOneOf<Gelu>(layer) ? Curve::kGelu : Curve::kTanh;
    const uint64_t n = builder_.examples() * in.elements();
    builder_.Add([=, to = *dx](const Bindings& b, NativeStream stream) {
      return CurveGradient(curve, storage, n, At(b, x), At(b, dy), At(b, to), stream);
    });
  } else {
    const bool first = IsOneOf<FirstPosition>(layer);
    const SelectShape shape = {builder_.examples(), in.height * in.width, in.channels,
                               builder_.OutputShape(i).height};
    builder_.Add([=, to = *dx, text = builder_.plan().inputs,
                  at = builder_.plan().text.target_positions](const Bindings& b,
                                                              NativeStream stream) {
      SelectShape named = shape;
      if (!first) named.at = At<int32_t>(b, text, at);
      return SelectGradient(storage, named, At(b, dy), At(b, to), stream);
    });
  }
}

void TextSteps::ForwardEmbedding(const Embedding& layer, const Region& y) {
  const uint64_t channels = layer.channels;
  builder_.AwaitTensor(layer.token, layer.tokens * channels);
  builder_.AwaitTensor(layer.position, layer.positions * channels);
  builder_.AwaitTensor(layer.segment, layer.segments * channels);
  builder_.Add([layer, y, storage = builder_.storage(), text = builder_.plan().inputs,
                layout = builder_.plan().text](const Bindings& b, NativeStream stream) {
    return EmbeddingForward(ArgumentsOf(layer, storage, b, text, layout), b.vector + layer.token,
                            b.vector + layer.position, b.vector + layer.segment, At(b, y), stream);
  });
}

void TextSteps::BackwardEmbedding(const Embedding& layer, const Region& dy) {
  const TextLayout& layout = builder_.plan().text;
  const Held scratch = builder_.TakeBytes(
      EmbeddingScratch(layout.examples, layout.positions, layer.channels, layer.segments));
  builder_.Add([layer, dy, scratch = *scratch, layout, tied = IsTied(builder_.spec(), layer),
                storage = builder_.storage(),
                text = builder_.plan().inputs](const Bindings& b, NativeStream stream) {
    return EmbeddingGradient(ArgumentsOf(layer, storage, b, text, layout), At(b, dy),
                             {.token = b.gradient + layer.token,
                              .position = b.gradient + layer.position,
                              .segment = b.gradient + layer.segment,
                              .accumulate = b.accumulate,
                              .token_written = tied},
                             At<float>(b, scratch), stream);
  });
}

void TextSteps::ForwardNorm(const LayerNorm& layer, size_t i, const Region& x, const Region& y) {
  const Shape& in = builder_.InputShape(i);
  const LayerNormShape shape = {RowsOf(builder_.examples(), in), in.channels, layer.epsilon};
  builder_.AwaitTensor(layer.weight, in.channels);
  builder_.AwaitTensor(layer.bias, in.channels);
  const bool saves = builder_.training();
  if (saves) kept_[i] = builder_.TakeBytes(uint64_t{2} * shape.rows * sizeof(float));
  builder_.Add([layer, shape, x, y, saves, saved = saves ? *kept_[i] : Region{},
                storage = builder_.storage()](const Bindings& b, NativeStream stream) {
    return LayerNormForward(storage, shape, At(b, x), b.vector + layer.weight,
                            b.vector + layer.bias, At(b, y),
                            saves ? At<float>(b, saved) : nullptr, stream);
  });
}

void TextSteps::BackwardNorm(const LayerNorm& layer, size_t i, const Region& x, const Region& dy,
                             const Held& dx) {
  const Shape& in = builder_.InputShape(i);
  const LayerNormShape shape = {RowsOf(builder_.examples(), in), in.channels, layer.epsilon};
  const Held scratch = builder_.TakeBytes(LayerNormScratch(shape.rows, shape.channels));
  builder_.Add([layer, shape, x, dy, wanted = dx != nullptr, to = dx == nullptr ? Region{} : *dx,
                saved = *kept_[i], scratch = *scratch,
                storage = builder_.storage()](const Bindings& b, NativeStream stream) {
    return LayerNormGradient(storage, shape, At(b, x), At(b, dy), b.vector + layer.weight,
                             At<float>(b, saved),
                             {.dx = wanted ? At(b, to) : nullptr,
                              .weight = b.gradient + layer.weight,
                              .bias = b.gradient + layer.bias,
                              .accumulate = b.accumulate},
                             At<float>(b, scratch), stream);
  });
  kept_[i].reset();
}

void TextSteps::AddDropout(const Dropout& layer, size_t i, const Region& from, const Region& to) {
  builder_.Add([from, to, drop = StreamOf(layer.rate, i, builder_.plan()),
                examples = builder_.examples(), elements = builder_.InputShape(i).elements(),
                storage = builder_.storage()](const Bindings& b, NativeStream stream) {
    return ApplyDropout(storage, examples, elements, drop.Of(b), At(b, from), At(b, to), stream);
  });
}

AttentionArguments TextSteps::ArgumentsOfAttention(const Attention& layer, size_t i) const {
  const Shape& in = builder_.InputShape(i);
  return {.storage = builder_.storage(),
          .round_products = builder_.library().rounds_products(),
          .examples = builder_.examples(),
          .positions = in.height * in.width,
          .heads = layer.heads,
          .head_channels = in.channels / 3 / layer.heads};
}

void TextSteps::ForwardAttention(const Attention& layer, size_t i, const Region& x,
                                 const Region& y) {
  const AttentionArguments shape = ArgumentsOfAttention(layer, i);
  const bool saves = builder_.training();
  if (saves) {
    kept_[i] = builder_.TakeBytes(uint64_t{shape.examples} * shape.heads * shape.positions *
                                  sizeof(float));
  }
  builder_.Add([shape, x, y, saves, saved = saves ? *kept_[i] : Region{},
                drop = StreamOf(layer.dropout, i, builder_.plan()), text = builder_.plan().inputs,
                lengths = builder_.plan().text.lengths](const Bindings& b, NativeStream stream) {
    AttentionArguments arguments = shape;
    arguments.qkv = At(b, x);
    arguments.lengths = At<int32_t>(b, text, lengths);
    arguments.drop = drop.Of(b);
    return AttentionForward(arguments, At(b, y), saves ? At<float>(b, saved) : nullptr, stream);
  });
}

void TextSteps::BackwardAttention(const Attention& layer, size_t i, const Region& x,
                                  const Region& y, const Region& dy, const Region& dx) {
  const Held delta = builder_.TakeBytes(kept_[i]->bytes);
  builder_.Add([shape = ArgumentsOfAttention(layer, i), x, y, dy, dx, saved = *kept_[i],
                delta = *delta, drop = StreamOf(layer.dropout, i, builder_.plan()),
                text = builder_.plan().inputs,
                lengths = builder_.plan().text.lengths](const Bindings& b, NativeStream stream) {
    AttentionArguments arguments = shape;
    arguments.qkv = At(b, x);
    arguments.lengths = At<int32_t>(b, text, lengths);
    arguments.drop = drop.Of(b);
    return AttentionBackward(arguments, At(b, y), At<float>(b, saved), At(b, dy),
                             At<float>(b, delta), At(b, dx), stream);
  });
  kept_[i].reset();
}

void TextSteps::Loss(const Region& logits, const Held& gradient) {
  const Shape& shape = builder_.OutputShape(builder_.spec().layers.size() - 1);
  const uint32_t rows = RowsOf(builder_.examples(), shape);
  const Held scratch = builder_.TakeBytes(rows * (sizeof(double) + sizeof(uint32_t)));
  builder_.Add([rows, classes = shape.channels, logits, storage = builder_.storage(),
                has_gradient = gradient != nullptr, to = gradient == nullptr ? Region{} : *gradient,
                scratch = *scratch, text = builder_.plan().inputs,
                targets = builder_.plan().text.target_tokens,
                scalars = builder_.plan().scalars](const Bindings& b, NativeStream stream) {
    double* const row_loss = At<double>(b, scratch);
    return MaskedCrossEntropy(
        {.rows = rows,
         .classes = classes,
         .logits = At<float>(b, logits),
         .targets = At<int32_t>(b, text, targets),
         .storage = storage,
         .gradient = has_gradient ? At(b, to) : nullptr,
         .row_loss = row_loss,
         .row_correct = reinterpret_cast<uint32_t*>(row_loss + rows),
         .scalars = At<StepScalars>(b, scalars)},
        stream);
  });
}

}  // namespace FORESHARD_CUDA_NAMESPACE
