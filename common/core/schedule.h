// The learning rate as a pure function of the schedule clock (highest ticket
// seen), used alike by servers and workers.
#pragma once

#include <cstdint>
#include <vector>

namespace foreshard {

enum class Decay : uint8_t { kConstant = 0, kStep = 1, kCosine = 2 };

// Linear warm-up from learning_rate/workers to learning_rate over
// warmup_epochs (algorithms of DANA, arXiv 1907.11612), then the decay.
// Plain data: copy freely; At() is safe from any thread.
struct Schedule {
  double learning_rate = 0.1;
  double warmup_epochs = 0;
  uint32_t workers = 1;  // the job's planned N
  Decay decay = Decay::kConstant;
  std::vector<double> decay_epochs;  // kStep, rising
  double decay_factor = 1;           // kStep
  double final_fraction = 0;         // kCosine
  double epochs = 1;                 // kCosine: total length
  // Tickets that make one epoch; at least 1.
  uint64_t batches_per_epoch = 1;

  // The rate for an update at this clock. Ticket 0 is the first batch.
  float At(uint64_t ticket) const;

  // kStep: the first ticket at each new rate, rising; the rates on both sides of step b
  // are At(b - 1) and At(b). One that falls into the warm-up acts, and is listed, at the
  // warm-up's end. Empty for rates that change smoothly or not at all.
  std::vector<uint64_t> Steps() const;
};

// The newest of `steps` (as Steps gives them) that is not beyond the ticket; 0: none.
uint64_t NewestStep(const std::vector<uint64_t>& steps, uint64_t ticket);

}  // namespace foreshard
