// Softmax and cross-entropy: one warp for a row of logits, in fp64; then one warp adds up the
// rows, in an order that is always the same.
#include "kernels/cuda/activations.h"
#include "kernels/cuda/stored.h"
#include "kernels/cuda/warp_reductions.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

constexpr uint32_t kLossWarps = 4;

template <typename T>
__global__ void __launch_bounds__(kLossWarps * kWarpSize)
    RowLossKernel(uint32_t examples, uint32_t classes, Pointer<const float> logits,
                  Pointer<const int32_t> labels, Pointer<T> gradient, bool has_gradient,
                  Pointer<const StepScalars> scalars, Pointer<double> row_loss,
                  Pointer<uint32_t> row_correct) {
  const uint32_t row = blockIdx.x * kLossWarps + WarpOfThread();
  if (row >= examples) return;  // the whole warp
  const Pointer<const float> from = logits + uint64_t{row} * classes;
  const uint32_t lane = LaneOfThread();
  // The largest logit and the first that has it; where one is no number, the first of all.
  Best best = {from[0], 0};
  for (uint32_t c = lane; c < classes; c += kWarpSize) {
    const float value = from[c];
    if (value > best.value) best = {value, c};
  }
  best = BestOfLanes(best);
  const double largest = static_cast<double>(best.value);
  double sum = 0;
  for (uint32_t c = lane; c < classes; c += kWarpSize) {
    sum = sum + exp(static_cast<double>(static_cast<float>(from[c])) - largest);
  }
  sum = SumOfLanes(sum);
  const uint32_t label = static_cast<uint32_t>(static_cast<int32_t>(labels[row]));
  if (lane == 0) {
    row_loss[row] = log(sum) - (static_cast<double>(static_cast<float>(from[label])) - largest);
    row_correct[row] = best.at == label ? 1 : 0;
  }
  if (!has_gradient) return;
  const StepScalars step = *scalars;
  const Pointer<T> to = gradient + uint64_t{row} * classes;
  for (uint32_t c = lane; c < classes; c += kWarpSize) {
    const double value = exp(static_cast<double>(static_cast<float>(from[c])) - largest) / sum;
    const double difference = c == label ? value - 1 : value;
    to[c] = Stored<T>::Of(static_cast<float>(static_cast<double>(step.scale) * difference));
  }
}

__global__ void __launch_bounds__(kWarpSize)
    TotalLossKernel(uint32_t examples, Pointer<const double> row_loss,
                    Pointer<const uint32_t> row_correct, bool side, Pointer<StepScalars> scalars) {
  double loss = 0;
  uint32_t correct = 0;
  for (uint32_t row = LaneOfThread(); row < examples; row += kWarpSize) {
    loss = loss + static_cast<double>(row_loss[row]);
    correct += static_cast<uint32_t>(row_correct[row]);
  }
  loss = SumOfLanes(loss);
  correct = SumOfWarp(correct);
  if (LaneOfThread() != 0) return;
  StepScalars step = *scalars;
  (side ? step.side_loss : step.loss) = loss;
  (side ? step.side_correct : step.correct) = correct;
  *scalars = step;
}

}  // namespace

absl::Status SoftmaxCrossEntropy(const LossArguments& arguments, NativeStream stream) {
  if (arguments.examples == 0) return absl::OkStatus();
  const Grid grid = {{(arguments.examples + kLossWarps - 1) / kLossWarps},
                     {kLossWarps * kWarpSize}};
  const Pointer<const float> logits(arguments.logits);
  const Pointer<const int32_t> labels(arguments.labels);
  const Pointer<const StepScalars> scalars(arguments.scalars);
  const Pointer<double> row_loss(arguments.row_loss);
  const Pointer<uint32_t> row_correct(arguments.row_correct);
  const bool has_gradient = arguments.gradient != nullptr;
  const absl::Status status =
      arguments.storage == Storage::kFp32
          ? Launch("SoftmaxCrossEntropy", RowLossKernel<float>, grid, stream, arguments.examples,
                   arguments.classes, logits, labels,
                   Pointer<float>(static_cast<float*>(arguments.gradient)), has_gradient, scalars,
                   row_loss, row_correct)
          : Launch("SoftmaxCrossEntropyBf16", RowLossKernel<uint16_t>, grid, stream,
                   arguments.examples, arguments.classes, logits, labels,
                   Pointer<uint16_t>(static_cast<uint16_t*>(arguments.gradient)), has_gradient,
                   scalars, row_loss, row_correct);
  if (!status.ok()) return status;
  return TotalLoss(arguments.examples, arguments.row_loss, arguments.row_correct, arguments.side,
                   arguments.scalars, stream);
}

absl::Status TotalLoss(uint32_t rows, const double* row_loss, const uint32_t* row_correct, bool side,
                       StepScalars* scalars, NativeStream stream) {
  const Grid one = {{1}, {kWarpSize}};
  return Launch("TotalLoss", TotalLossKernel, one, stream, rows, Pointer<const double>(row_loss),
                Pointer<const uint32_t>(row_correct), side, Pointer<StepScalars>(scalars));
}

}  // namespace FORESHARD_CUDA_NAMESPACE
