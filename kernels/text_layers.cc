#include "kernels/text_layers.h"

#include "absl/strings/str_cat.h"

namespace foreshard::kernels {
namespace {

bool OfText(const Layer& layer) {
  return std::holds_alternative<Attention>(layer) || std::holds_alternative<Dropout>(layer) ||
         std::holds_alternative<TargetPositions>(layer) ||
         std::holds_alternative<FirstPosition>(layer) || std::holds_alternative<SideLoss>(layer);
}

absl::Status CheckRate(float rate) {
  if (rate >= 0 && rate < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("drops a part of ", rate, "; it must be at least 0 and below 1"));
}

absl::StatusOr<Shape> EmbeddingShape(const Embedding& embedding, const Shape& input) {
  if (input.width != 1 || input.channels != 1) {
    return absl::InvalidArgumentError(absl::StrCat("an embedding's input is positions x 1 x 1, not ",
                                                   input.height, " x ", input.width, " x ",
                                                   input.channels));
  }
  if (embedding.channels == 0 || embedding.tokens == 0 || embedding.segments == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("an embedding needs channels, tokens and segments of at least 1, not ",
                     embedding.channels, ", ", embedding.tokens, " and ", embedding.segments));
  }
  if (input.height > embedding.positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sequence of ", input.height, " tokens is longer than the table of ",
                     embedding.positions, " positions"));
  }
  return Shape{input.height, 1, embedding.channels};
}

absl::StatusOr<Shape> AttentionShape(const Attention& attention, const Shape& input) {
  if (attention.heads == 0 || input.channels % 3 != 0 ||
      input.channels / 3 % attention.heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("an input of ", input.channels, " channels does not divide into Q, K and V of ",
                     attention.heads, " heads"));
  }
  if (auto s = CheckRate(attention.dropout); !s.ok()) return s;
  return Shape{input.height, input.width, input.channels / 3};
}

}  // namespace

absl::Status CheckTensor(const char* what, uint64_t offset, uint64_t elements, uint64_t begin,
                         uint64_t end) {
  if (offset == kNoTensor) return absl::InvalidArgumentError(absl::StrCat("has no ", what));
  if (offset < begin || offset > end || elements > end - offset) {
    return absl::InvalidArgumentError(absl::StrCat(what, " covers elements ", offset, " to ",
                                                   offset + elements, ", outside of ", begin,
                                                   " to ", end));
  }
  return absl::OkStatus();
}

bool ReadsText(const NetworkSpec& spec) {
  return !spec.layers.empty() && std::holds_alternative<Embedding>(spec.layers.front());
}

bool IsTied(const NetworkSpec& spec, const Embedding& embedding) {
  for (const Layer& layer : spec.layers) {
    if (const auto* dense = std::get_if<Dense>(&layer); dense != nullptr && dense->weight == embedding.token) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<Shape> TextOutputShape(const Layer& layer, const Shape& input) {
  if (const auto* embedding = std::get_if<Embedding>(&layer)) return EmbeddingShape(*embedding, input);
  if (const auto* attention = std::get_if<Attention>(&layer)) return AttentionShape(*attention, input);
  if (const auto* dropout = std::get_if<Dropout>(&layer)) {
    if (auto s = CheckRate(dropout->rate); !s.ok()) return s;
  }
  if (const auto* targets = std::get_if<TargetPositions>(&layer)) {
    if (targets->count == 0 || targets->count > input.height) {
      return absl::InvalidArgumentError(absl::StrCat(targets->count, " targets do not fit a sequence of ",
                                                     input.height, " positions"));
    }
    return Shape{targets->count, 1, input.channels};
  }
  if (std::holds_alternative<FirstPosition>(layer)) return Shape{1, 1, input.channels};
  return input;
}

absl::Status CheckTextTensors(const Layer& layer, const Shape& in, uint64_t trainable) {
  if (const auto* embedding = std::get_if<Embedding>(&layer)) {
    const uint64_t channels = embedding->channels;
    auto s = CheckTensor("token table", embedding->token, embedding->tokens * channels, 0, trainable);
    if (!s.ok()) return s;
    s = CheckTensor("position table", embedding->position, embedding->positions * channels, 0, trainable);
    if (!s.ok()) return s;
    return CheckTensor("segment table", embedding->segment, embedding->segments * channels, 0, trainable);
  }
  if (const auto* norm = std::get_if<LayerNorm>(&layer)) {
    if (auto s = CheckTensor("weight", norm->weight, in.channels, 0, trainable); !s.ok()) return s;
    return CheckTensor("bias", norm->bias, in.channels, 0, trainable);
  }
  return absl::OkStatus();
}

absl::Status CheckTextOrder(const NetworkSpec& spec, size_t i) {
  const Layer& layer = spec.layers[i];
  if (std::holds_alternative<Embedding>(layer) && i > 0) {
    return absl::InvalidArgumentError("an embedding must be the first layer");
  }
  if (OfText(layer) && !ReadsText(spec)) {
    return absl::InvalidArgumentError("is of text, and the first layer is no embedding");
  }
  if (!std::holds_alternative<SideLoss>(layer)) return absl::OkStatus();
  if (i != SideLossAt(spec)) return absl::InvalidArgumentError("is a second side loss");
  if (i < 2 || !std::holds_alternative<Dense>(spec.layers[i - 1]) ||
      std::get<Dense>(spec.layers[i - 1]).each_position) {
    return absl::InvalidArgumentError("a side loss needs the logits of a Dense before it");
  }
  if (i + 1 == spec.layers.size() || !std::holds_alternative<From>(spec.layers[i + 1])) {
    return absl::InvalidArgumentError("only From can follow a side loss");
  }
  return absl::OkStatus();
}

size_t SideLossAt(const NetworkSpec& spec) {
  size_t i = 0;
  while (i < spec.layers.size() && !std::holds_alternative<SideLoss>(spec.layers[i])) ++i;
  return i;
}

absl::Status CheckText(const NetworkSpec& spec, absl::Span<const Shape> shapes,
                       const BatchView& batch, bool labels) {
  const auto& embedding = std::get<Embedding>(spec.layers.front());
  const TextView& text = batch.text;
  const uint64_t positions = spec.input.height, targets = shapes.back().height;
  const auto wrong = [](uint64_t example, uint64_t at, const char* what, int64_t value,
                        int64_t least, int64_t most) {
    return absl::InvalidArgumentError(absl::StrCat("example ", example, " of the batch has ", what,
                                                   " ", value, " at ", at, ", outside of ", least,
                                                   " to ", most));
  };
  const auto within = [](int64_t value, int64_t least, int64_t most) {
    return value >= least && value <= most;
  };
  for (uint64_t e = 0; e < batch.examples; ++e) {
    const int64_t length = text.lengths[e];
    if (!within(length, 1, static_cast<int64_t>(positions))) {
      return wrong(e, 0, "the length", length, 1, static_cast<int64_t>(positions));
    }
    for (uint64_t p = 0; p < positions; ++p) {
      const int64_t token = text.tokens[e * positions + p], segment = text.segments[e * positions + p];
      if (!within(token, 0, embedding.tokens - 1)) {
        return wrong(e, p, "token", token, 0, embedding.tokens - 1);
      }
      if (!within(segment, 0, embedding.segments - 1)) {
        return wrong(e, p, "segment", segment, 0, embedding.segments - 1);
      }
    }
    for (uint64_t t = 0; labels && t < targets; ++t) {
      const int64_t target = text.targets[e * targets + t], at = text.target_positions[e * targets + t];
      if (!within(target, kNoTarget, shapes.back().channels - 1)) {
        return wrong(e, t, "target", target, kNoTarget, shapes.back().channels - 1);
      }
      if (!within(at, 0, length - 1)) return wrong(e, t, "a target at position", at, 0, length - 1);
    }
    if (const size_t side = SideLossAt(spec); labels && side < spec.layers.size()) {
      const int64_t classes = shapes[side].channels;
      if (!within(batch.labels[e], 0, classes - 1)) {
        return wrong(e, 0, "label", batch.labels[e], 0, classes - 1);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace foreshard::kernels
