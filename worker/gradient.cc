#include "worker/gradient.h"

#include <algorithm>
#include <cmath>

#include "common/core/random.h"
#include "kernels/cpu/vector_math.h"

namespace foreshard {
namespace {

// Random stream of the augmentation draws.
constexpr uint64_t kAugmentStream = 0x666c6970;
// Of data whose draws do not depend on the batch.
constexpr uint64_t kEpochStream = 0x65706f6368;
// Work on pieces that stay in the cache.
constexpr uint64_t kPieceElements = 1 << 14;

}  // namespace

GradientComputer::GradientComputer(const GradientOptions& options, Model* model,
                                   const Dataset* data, kernels::StepEncoder* encoder)
    : options_(options),
      model_(model),
      data_(data),
      encoder_(encoder),
      order_(options.seed, data->examples(), options.batch_size),
      expected_order_(options.seed, data->examples(), options.batch_size),
      gradient_(encoder == nullptr ? model->schema().trainable_elements() : 0),
      statistics_(model->schema().statistic_elements()) {}

uint64_t GradientComputer::Parts(absl::Span<const uint32_t> indices) const {
  return std::clamp<uint64_t>(options_.micro_batches, 1, indices.size());
}

absl::Span<const uint32_t> GradientComputer::PartOf(absl::Span<const uint32_t> indices,
                                                    uint64_t part, uint64_t parts) {
  const uint64_t begin = indices.size() * part / parts;
  return indices.subspan(begin, indices.size() * (part + 1) / parts - begin);
}

uint64_t GradientComputer::AugmentKey(uint64_t ticket, uint64_t part) const {
  const uint64_t draw =
      data_->draws_by_epoch()
          ? RandomBits(options_.seed, kEpochStream, ticket / order_.batches_per_epoch())
          : RandomBits(options_.seed, kAugmentStream + part, ticket);
  return draw == 0 ? 1 : draw;
}

void GradientComputer::Expect(uint64_t ticket) {
  const absl::Span<const uint32_t> indices = expected_order_.Indices(ticket);
  const uint64_t parts = Parts(indices);
  for (uint64_t part = 0; part < parts; ++part) {
    data_->Expect(PartOf(indices, part, parts), AugmentKey(ticket, part));
  }
}

absl::StatusOr<GradientStep> GradientComputer::Compute(uint64_t ticket, const float* parameters,
                                                       ParameterGate& gate,
                                                       const Prepare& prepare) {
  std::function<absl::Status()> given;
  if (encoder_ != nullptr) given = [&] { return prepare(options_.clip_norm); };
  const absl::Span<const uint32_t> indices = order_.Indices(ticket);
  const uint64_t parts = Parts(indices);
  GradientStep step;
  step.examples = indices.size();
  // A batch without targets is a step with a loss and a gradient of zero, not one of 0 / 0.
  const double targets = std::max(1.0, static_cast<double>(data_->Targets(indices)));
  double loss_sum = 0, side_loss_sum = 0;
  for (uint64_t part = 0; part < parts; ++part) {
    const absl::Span<const uint32_t> these = PartOf(indices, part, parts);
    const absl::Status gathered = data_->Gather(these, AugmentKey(ticket, part), &batch_);
    if (!gathered.ok()) return gathered;
    const float weight = static_cast<float>(these.size()) / static_cast<float>(indices.size());
    // So that the parts' gradients add up to the batch's also where they differ in targets.
    batch_.divisor =
        targets * static_cast<double>(these.size()) / static_cast<double>(indices.size());
    const auto result =
        encoder_ == nullptr
            ? model_->ForwardBackward(batch_, parameters, gate, weight, part > 0, gradient_.data(),
                                      statistics_.data())
            : model_->ForwardBackwardOnDevice(batch_, parameters, gate, weight, part > 0,
                                              part + 1 == parts ? given : nullptr);
    if (!result.ok()) return result.status();
    loss_sum += result->loss_sum;
    side_loss_sum += result->side_loss_sum;
    step.correct += result->correct;
  }
  step.loss = loss_sum / targets + side_loss_sum / static_cast<double>(step.examples);
  if (encoder_ != nullptr) {
    const absl::StatusOr<kernels::StepNorm> norm = encoder_->Norm();
    if (!norm.ok()) return norm.status();
    step.norm = norm->norm;
    step.finite = norm->finite;
    const absl::Status back = model_->step_memory()->Download(nullptr, statistics_.data());
    if (!back.ok()) return back;
    return step;
  }
  step.norm = ClipGlobalNorm(absl::MakeSpan(gradient_), options_.clip_norm);
  step.finite = std::isfinite(step.norm) &&
                kernels::AllFinite(statistics_.data(), statistics_.size());
  return step;
}

absl::Status GradientComputer::Clear(const Prepare& prepare) {
  if (encoder_ == nullptr) {
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    return absl::OkStatus();
  }
  const absl::Status cleared = encoder_->ClearGradient();
  return cleared.ok() ? prepare(std::nullopt) : cleared;
}

double ClipGlobalNorm(absl::Span<float> gradient, std::optional<double> clip_norm) {
  double squares = 0;
  for (uint64_t at = 0; at < gradient.size(); at += kPieceElements) {
    squares += kernels::SumOfSquares(gradient.data() + at,
                                     std::min(kPieceElements, gradient.size() - at));
  }
  const double norm = std::sqrt(squares);
  if (clip_norm.has_value() && std::isfinite(norm) && norm > *clip_norm) {
    kernels::Scale(gradient.data(), static_cast<float>(*clip_norm / norm), gradient.size());
  }
  return norm;
}

}  // namespace foreshard
