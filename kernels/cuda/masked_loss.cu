// Softmax and cross-entropy over a vocabulary: one thread block for a row. A first pass keeps each
// thread's largest logit and the sum of exponentials beside it, a second writes the gradient. A row
// without a target costs no more than zeroing its gradient.
#include "kernels/cuda/packs.h"
#include "kernels/cuda/text.h"
#include "kernels/cuda/warp_reductions.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarps = kThreads / kWarpSize;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    MaskedLossKernel(uint32_t classes, Pointer<const float> logits, Pointer<const int32_t> targets,
                     bool has_gradient, Pointer<T> gradient, Pointer<const StepScalars> scalars,
                     Pointer<double> row_loss, Pointer<uint32_t> row_correct) {
  FORESHARD_SHARED(float, warp_largest, kWarps);
  FORESHARD_SHARED(uint32_t, warp_best, kWarps);
  FORESHARD_SHARED(double, warp_sum, kWarps);
  const uint32_t row = blockIdx.x;
  const uint64_t begin = uint64_t{row} * classes;
  const int32_t target = targets[row];
  if (target == kAbsentTarget) {  // the whole block
    if (threadIdx.x == 0) {
      row_loss[row] = 0;
      row_correct[row] = 0;
    }
    if (!has_gradient) return;
    for (uint32_t c = threadIdx.x; c < classes; c += kThreads) {
      gradient[begin + c] = static_cast<T>(0);
    }
    return;
  }
  // Threads beyond the classes begin with the first logit, and add nothing.
  const bool mine = threadIdx.x < classes;
  Best best = {logits[begin + (mine ? threadIdx.x : 0)], mine ? threadIdx.x : 0};
  float sum = mine ? 1.0f : 0.0f;
#pragma unroll 4
  for (uint32_t c = threadIdx.x + kThreads; c < classes; c += kThreads) {
    const float value = logits[begin + c];
    if (value > best.value) {
      sum = sum * expf(best.value - value) + 1.0f;
      best = {value, c};
    } else {
      sum = sum + expf(value - best.value);
    }
  }
  const float own_largest = best.value;
  best = BestOfLanes(best);
  if (LaneOfThread() == 0) {
    warp_largest[WarpOfThread()] = best.value;
    warp_best[WarpOfThread()] = best.at;
  }
  __syncthreads();
  for (uint32_t warp = 0; warp < kWarps; ++warp) {
    best.Join(warp_largest[warp], warp_best[warp]);
  }
  const float largest = best.value;
  double total = SumOfLanes(static_cast<double>(sum * expf(own_largest - largest)));
  if (LaneOfThread() == 0) warp_sum[WarpOfThread()] = total;
  // Read before the gradient may take its place.
  const float logit = logits[begin + static_cast<uint32_t>(target)];
  __syncthreads();
  total = 0;
  for (uint32_t warp = 0; warp < kWarps; ++warp) {
    total = total + static_cast<double>(warp_sum[warp]);
  }
  if (threadIdx.x == 0) {
    row_loss[row] = log(total) - (static_cast<double>(logit) - static_cast<double>(largest));
    row_correct[row] = best.at == static_cast<uint32_t>(target) ? 1 : 0;
  }
  if (!has_gradient) return;
  const StepScalars step = *scalars;
  const float scale = step.target_scale;
  const float each = static_cast<float>(static_cast<double>(scale) / total);
#pragma unroll 4
  for (uint32_t c = threadIdx.x; c < classes; c += kThreads) {
    const float value = expf(static_cast<float>(logits[begin + c]) - largest) * each;
    gradient[begin + c] =
        Stored<T>::Of(c == static_cast<uint32_t>(target) ? value - scale : value);
  }
}

template <typename T>
absl::Status RowLosses(const MaskedLossArguments& arguments, NativeStream stream) {
  return Launch("MaskedLoss", MaskedLossKernel<T>, Grid{{arguments.rows}, {kThreads}}, stream,
                arguments.classes, Pointer<const float>(arguments.logits),
                Pointer<const int32_t>(arguments.targets), arguments.gradient != nullptr,
                Pointer<T>(static_cast<T*>(arguments.gradient)),
                Pointer<const StepScalars>(arguments.scalars), Pointer<double>(arguments.row_loss),
                Pointer<uint32_t>(arguments.row_correct));
}

}  // namespace

absl::Status MaskedCrossEntropy(const MaskedLossArguments& arguments, NativeStream stream) {
  if (arguments.rows == 0) return absl::OkStatus();
  const absl::Status status = arguments.storage == Storage::kFp32
                                  ? RowLosses<float>(arguments, stream)
                                  : RowLosses<uint16_t>(arguments, stream);
  if (!status.ok()) return status;
  return TotalLoss(arguments.rows, arguments.row_loss, arguments.row_correct, /*side=*/false,
                   arguments.scalars, stream);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
