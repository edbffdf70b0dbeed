#include "kernels/cpu/network.h"

#include <omp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/loss.h"
#include "kernels/text_layers.h"

namespace foreshard::kernels::cpu {
namespace {

// A full batch, the last of an epoch, both cut into micro-batches, evaluation
// and recalibration: what one process meets stays below this.
constexpr size_t kMaxModes = 12;

// What a network with attention takes beside its arena, once a process: the first products of oneDNN
// generate code for all of their kinds (3.3 MiB), and the part of the library that does is paged in
// (2.6 MiB). Measured with oneDNN 2.6.3 and AVX-512; other layers' code comes to 0.4 MiB.
constexpr uint64_t kProductsBytes = 6'600'000;

absl::Status FromDnnl(const dnnl::error& error, const std::string& doing) {
  const std::string text = absl::StrCat("oneDNN, ", doing, ": ", error.what());
  if (error.status == dnnl_out_of_memory) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

bool HasAttention(const NetworkSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const Layer& layer) { return std::holds_alternative<Attention>(layer); });
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
    auto mode = network->FindMode(spec.batch_size, true);
    if (!mode.ok()) return mode.status();
    network->step_bytes_ = (*mode)->plan->arena_bytes() + (HasAttention(spec) ? kProductsBytes : 0);
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
  if (ReadsText(spec_)) return CheckText(spec_, shapes_, batch, labels);
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
    if (ReadsText(spec_)) {
      mode.plan->SetText(batch.text);
    } else {
      mode.plan->SetBase(Plan::Base::kInput, batch.inputs);
    }
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

LossSum CpuNetwork::Loss(const Mode& mode, const BatchView& batch, float weight) const {
  const auto floats = [](const dnnl::memory& memory) {
    return memory ? static_cast<float*>(memory.get_data_handle()) : nullptr;
  };
  const BuiltNetwork& network = mode.network;
  const uint32_t classes = shapes_.back().channels;
  // The weight rides on the loss: every gradient is linear in it.
  const float of_examples = weight / static_cast<float>(batch.examples);
  if (!ReadsText(spec_)) {
    return SoftmaxCrossEntropy(floats(network.logits), batch.labels, batch.examples, classes,
                               of_examples, floats(network.logits_gradient));
  }
  const uint64_t rows = batch.examples * shapes_.back().height;
  double divisor = batch.text.divisor;
  if (divisor == 0) {
    divisor = static_cast<double>(rows - std::count(batch.text.targets, batch.text.targets + rows, kNoTarget));
  }
  const auto of_targets = static_cast<float>(divisor > 0 ? weight / divisor : 0);
  LossSum loss = MaskedCrossEntropy(floats(network.logits), batch.text.targets, rows, classes,
                                    of_targets, floats(network.logits_gradient));
  if (network.side_logits) {
    const LossSum side = SoftmaxCrossEntropy(
        floats(network.side_logits), batch.labels, batch.examples,
        shapes_[SideLossAt(spec_)].channels, of_examples, floats(network.side_gradient));
    loss.side_loss = side.loss;
    loss.side_correct = side.correct;
  }
  return loss;
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
  const LossSum loss = Loss(mode, batch, output.weight);
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
  return Loss(mode, batch, 1);
}

}  // namespace foreshard::kernels::cpu
