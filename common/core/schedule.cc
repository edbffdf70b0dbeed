#include "common/core/schedule.h"

#include <algorithm>
#include <cmath>
#include <iterator>
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

std::vector<uint64_t> Schedule::Steps() const {
  std::vector<uint64_t> steps;
  if (decay != Decay::kStep) return steps;
  const auto per_epoch = static_cast<double>(std::max<uint64_t>(batches_per_epoch, 1));
  for (const double at : decay_epochs) {
    const double epoch = std::max(at, warmup_epochs);
    // Beyond what a ticket can be, as a double and in any job.
    if (!(epoch * per_epoch < 0x1p53)) break;
    auto ticket = static_cast<uint64_t>(epoch * per_epoch);
    // By the very comparison of At, whatever the product was rounded to.
    while (ticket > 0 && static_cast<double>(ticket - 1) / per_epoch >= epoch) --ticket;
    while (static_cast<double>(ticket) / per_epoch < epoch) ++ticket;
    if (ticket > 0 && (steps.empty() || steps.back() < ticket)) steps.push_back(ticket);
  }
  return steps;
}

uint64_t NewestStep(const std::vector<uint64_t>& steps, uint64_t ticket) {
  const auto beyond = std::upper_bound(steps.begin(), steps.end(), ticket);
  return beyond == steps.begin() ? 0 : *std::prev(beyond);
}

}  // namespace foreshard
