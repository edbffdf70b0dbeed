#include "kernels/cpu/network.h"

#include <omp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/loss.h"

namespace foreshard::kernels::cpu {
namespace {

// A full batch, the last of an epoch, both cut into micro-batches, evaluation
// and recalibration: what one process meets stays below this.
constexpr size_t kMaxModes = 12;

absl::Status FromDnnl(const dnnl::error& error, const std::string& doing) {
  const std::string text = absl::StrCat("oneDNN, ", doing, ": ", error.what());
  if (error.status == dnnl_out_of_memory) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

absl::Status Open(uint64_t, uint64_t) { return absl::OkStatus(); }

}  // namespace

ThreadScope::ThreadScope(uint32_t threads) : before_(omp_get_max_threads()) {
  omp_set_num_threads(static_cast<int>(threads));
}

ThreadScope::~ThreadScope() { omp_set_num_threads(before_); }

CpuNetwork::CpuNetwork(Device& device, uint32_t threads, const NetworkSpec& spec,
                       std::vector<Shape> shapes)
    : device_(device),
      threads_(threads),
      spec_(spec),
      shapes_(std::move(shapes)),
      engine_(dnnl::engine::kind::cpu, 0),
      stream_(engine_) {}

absl::StatusOr<std::unique_ptr<Network>> CpuNetwork::Create(Device& device, uint32_t threads,
                                                            const NetworkSpec& spec) {
  auto shapes = CheckNetwork(spec);
  if (!shapes.ok()) return shapes.status();
  try {
    std::unique_ptr<CpuNetwork> network(
        new CpuNetwork(device, threads, spec, *std::move(shapes)));
    if (auto mode = network->FindMode(spec.batch_size, true); !mode.ok()) return mode.status();
    return network;
  } catch (const dnnl::error& error) {
    return FromDnnl(error, "starting its engine");
  }
}

absl::Status CpuNetwork::CheckBatch(const BatchView& batch, bool labels) const {
  if (batch.examples == 0 || batch.examples > spec_.batch_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", batch.examples, " examples does not fit a network made for 1 to ",
                     spec_.batch_size));
  }
  const auto classes = static_cast<int32_t>(shapes_.back().channels);
  for (uint64_t i = 0; labels && i < batch.examples; ++i) {
    if (batch.labels[i] < 0 || batch.labels[i] >= classes) {
      return absl::InvalidArgumentError(
          absl::StrCat("example ", i, " of the batch has label ", batch.labels[i],
                       ", the network has classes 0 to ", classes - 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CpuNetwork::Mode*> CpuNetwork::FindMode(uint64_t examples, bool training) {
  for (auto& mode : modes_) {
    if (mode->examples != examples || mode->training != training) continue;
    mode->last_used = ++uses_;
    return mode.get();
  }
  if (modes_.size() == kMaxModes) {
    modes_.erase(std::min_element(modes_.begin(), modes_.end(), [](const auto& a, const auto& b) {
      return a->last_used < b->last_used;
    }));
  }
  const ThreadScope threads(threads_);
  try {
    modes_.push_back(Build(examples, training));
  } catch (const dnnl::error& error) {
    return FromDnnl(error, absl::StrCat("planning for ", examples, " examples"));
  }
  modes_.back()->last_used = ++uses_;
  return modes_.back().get();
}

std::unique_ptr<CpuNetwork::Mode> CpuNetwork::Build(uint64_t examples, bool training) {
  auto mode = std::make_unique<Mode>();
  mode->examples = examples;
  mode->training = training;
  mode->plan = std::make_unique<Plan>(engine_);
  mode->network =
      BuildNetwork(*mode->plan, spec_, shapes_, static_cast<int64_t>(examples), training);
  return mode;
}

absl::Status CpuNetwork::Place(Mode& mode, const BatchView& batch, const float* vector,
                               const float* gradient) {
  try {
    if (arena_ == nullptr || arena_->bytes() < mode.plan->arena_bytes()) {
      arena_ = nullptr;  // before the larger one is made: both at once may not fit
      auto arena = device_.Allocate(mode.plan->arena_bytes());
      if (!arena.ok()) return arena.status();
      arena_ = *std::move(arena);
      ++arena_generation_;
    }
    if (mode.arena_generation != arena_generation_) {
      mode.plan->Place(arena_->data());
      mode.arena_generation = arena_generation_;
    }
    mode.plan->SetBase(Plan::Base::kInput, batch.inputs);
    mode.plan->SetBase(Plan::Base::kVector, vector);
    if (gradient != nullptr) mode.plan->SetBase(Plan::Base::kGradient, gradient);
  } catch (const dnnl::error& error) {
    return FromDnnl(error, "placing a step");
  }
  return absl::OkStatus();
}

void CpuNetwork::WriteStatistics(const Mode& mode, float weight, bool accumulate,
                                 float* statistics) const {
  for (const Plan::StatisticsOutput& output : mode.plan->statistics()) {
    const auto* mean = static_cast<const float*>(output.mean.get_data_handle());
    const auto* variance = static_cast<const float*>(output.variance.get_data_handle());
    float* to_mean = statistics + (output.mean_offset - spec_.trainable_elements);
    float* to_variance = statistics + (output.variance_offset - spec_.trainable_elements);
    const float values = static_cast<float>(output.values);
    const float unbiased = output.values > 1 ? values / (values - 1.0f) : 1.0f;
    for (uint32_t c = 0; c < output.channels; ++c) {
      const float m = weight * mean[c];
      const float v = weight * (unbiased * variance[c]);
      to_mean[c] = accumulate ? to_mean[c] + m : m;
      to_variance[c] = accumulate ? to_variance[c] + v : v;
    }
  }
}

absl::StatusOr<LossSum> CpuNetwork::Train(const BatchView& batch, const float* vector, Gate gate,
                                          const StepOutput& output) {
  if (auto s = CheckBatch(batch, true); !s.ok()) return s;
  auto found = FindMode(batch.examples, true);
  if (!found.ok()) return found.status();
  Mode& mode = **found;
  const ThreadScope threads(threads_);
  if (auto s = Place(mode, batch, vector, output.gradient); !s.ok()) return s;
  if (auto s = mode.plan->Run(0, mode.network.forward_end, stream_, output.accumulate, gate); !s.ok()) {
    return s;
  }
  // The weight rides on the loss: every gradient is linear in it.
  const LossSum loss = SoftmaxCrossEntropy(
      static_cast<const float*>(mode.network.logits.get_data_handle()), batch.labels, batch.examples,
      shapes_.back().channels, output.weight / static_cast<float>(batch.examples),
      static_cast<float*>(mode.network.logits_gradient.get_data_handle()));
  const absl::Status backward =
      mode.plan->Run(mode.network.forward_end, mode.plan->steps(), stream_, output.accumulate, gate);
  if (!backward.ok()) return backward;
  WriteStatistics(mode, output.weight, output.accumulate, output.statistics);
  return loss;
}

absl::Status CpuNetwork::Statistics(const BatchView& batch, const float* vector,
                                    float* statistics) {
  if (auto s = CheckBatch(batch, false); !s.ok()) return s;
  auto found = FindMode(batch.examples, true);
  if (!found.ok()) return found.status();
  Mode& mode = **found;
  const ThreadScope threads(threads_);
  if (auto s = Place(mode, batch, vector, nullptr); !s.ok()) return s;
  const size_t end = mode.plan->statistics_end();
  if (auto s = mode.plan->Run(0, end, stream_, false, Open); !s.ok()) return s;
  WriteStatistics(mode, 1, false, statistics);
  return absl::OkStatus();
}

absl::StatusOr<LossSum> CpuNetwork::Evaluate(const BatchView& batch, const float* vector) {
  if (auto s = CheckBatch(batch, true); !s.ok()) return s;
  auto found = FindMode(batch.examples, false);
  if (!found.ok()) return found.status();
  Mode& mode = **found;
  const ThreadScope threads(threads_);
  if (auto s = Place(mode, batch, vector, nullptr); !s.ok()) return s;
  if (auto s = mode.plan->Run(0, mode.plan->steps(), stream_, false, Open); !s.ok()) return s;
  return SoftmaxCrossEntropy(static_cast<const float*>(mode.network.logits.get_data_handle()),
                             batch.labels, batch.examples, shapes_.back().channels, 0, nullptr);
}

}  // namespace foreshard::kernels::cpu
