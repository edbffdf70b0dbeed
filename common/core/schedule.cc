#include "common/core/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace foreshard {

float Schedule::At(uint64_t ticket) const {
  const double epoch = static_cast<double>(ticket) / static_cast<double>(std::max<uint64_t>(batches_per_epoch, 1));
  double rate = learning_rate;
  if (epoch < warmup_epochs) {
    const double first = learning_rate / std::max(workers, 1u);
    return static_cast<float>(first + (learning_rate - first) * epoch / warmup_epochs);
  }
  switch (decay) {
    case Decay::kConstant:
      break;
    case Decay::kStep:
      for (const double at : decay_epochs) {
        if (epoch >= at) rate *= decay_factor;
      }
      break;
    case Decay::kCosine: {
      const double length = std::max(epochs - warmup_epochs, 1e-9);
      const double progress = std::clamp((epoch - warmup_epochs) / length, 0.0, 1.0);
      const double last = learning_rate * final_fraction;
      rate = last + (learning_rate - last) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
      break;
    }
  }
  return static_cast<float>(rate);
}

}  // namespace foreshard
