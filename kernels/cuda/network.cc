#include "kernels/cuda/network.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/device_failure.h"
#include "kernels/text_layers.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

// A full batch, the last of an epoch, both cut into micro-batches, evaluation and
// recalibration: what one process meets stays below this. Graphs of one of them: its pieces, for
// replaced and added gradients and the odd other vector.
constexpr size_t kMaxModes = 12;
constexpr size_t kMaxGraphs = 4 * StepPlan::kMostPieces;

absl::Status Open(uint64_t, uint64_t) { return absl::OkStatus(); }

}  // namespace

absl::StatusOr<std::unique_ptr<CudaNetwork>> CudaNetwork::Create(LayerLibrary* library,
                                                                 NativeStream stream,
                                                                 const NetworkSpec& spec) {
  auto shapes = CheckNetwork(spec);
  if (!shapes.ok()) return shapes.status();
  if (stream == nullptr) return absl::InvalidArgumentError("a network needs a stream of its own");
  std::unique_ptr<CudaNetwork> network(
      new CudaNetwork(library, stream, spec, *std::move(shapes)));
  const uint64_t input_bytes =
      ReadsText(spec)
          ? TextLayout(spec.batch_size, spec.input.height, network->shapes_.back().height).bytes
          : spec.batch_size * spec.input.elements() * sizeof(float);
  const uint64_t staged = input_bytes + spec.batch_size * sizeof(int32_t);
  auto staging = Memory::Allocate(MemoryKind::kPinned, staged);
  if (!staging.ok()) return staging.status();
  network->staging_ = *std::move(staging);
  auto scalars = PinnedArray<StepScalars>::Allocate(2);
  if (!scalars.ok()) return scalars.status();
  network->scalars_ = *std::move(scalars);
  for (const bool training : {true, false}) {
    if (auto mode = network->FindMode(spec.batch_size, training); !mode.ok()) return mode.status();
  }
  return network;
}

uint32_t CudaNetwork::Tokens(const NetworkSpec& spec) {
  return ReadsText(spec) ? std::get<Embedding>(spec.layers.front()).tokens : 0;
}

CudaNetwork::~CudaNetwork() {
  // Nothing may use the arena any more; an error of the stream was told to whoever waited.
  static_cast<void>(WaitFor(stream_));
}

absl::Status CudaNetwork::CheckBatch(const BatchView& batch, bool labels) const {
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

absl::StatusOr<CudaNetwork::Mode*> CudaNetwork::FindMode(uint64_t examples, bool training) {
  for (const auto& mode : modes_) {
    if (mode->examples != examples || mode->training != training) continue;
    mode->last_used = ++uses_;
    return mode.get();
  }
  auto plan = BuildStepPlan(*library_, spec_, shapes_, static_cast<uint32_t>(examples), training);
  if (!plan.ok()) return plan.status();
  if (const absl::Status grown = GrowArena(plan->arena_bytes); !grown.ok()) return grown;
  if (modes_.size() == kMaxModes) {
    modes_.erase(std::min_element(modes_.begin(), modes_.end(), [](const auto& a, const auto& b) {
      return a->last_used < b->last_used;
    }));
  }
  modes_.push_back(std::make_unique<Mode>());
  Mode& made = *modes_.back();
  made.examples = examples;
  made.training = training;
  made.plan = *std::move(plan);
  made.last_used = ++uses_;
  return &made;
}

absl::Status CudaNetwork::GrowArena(uint64_t bytes) {
  if (bytes <= arena_.bytes()) return absl::OkStatus();
  if (const absl::Status waited = WaitFor(stream_); !waited.ok()) return waited;
  // All graphs are of the old addresses.
  for (const auto& mode : modes_) mode->graphs.clear();
  arena_ = Memory();  // before the larger one is made: both at once may not fit
  auto arena = Memory::Allocate(MemoryKind::kDevice, bytes);
  if (!arena.ok()) {
    // None of them has a place now: the next step plans anew, and asks for memory again.
    modes_.clear();
    return DeviceFailure(absl::Status(
        arena.status().code(),
        absl::StrCat("a step of up to ", spec_.batch_size,
                     " examples keeps its activations and the libraries' workspace on the GPU: ",
                     arena.status().message())));
  }
  arena_ = *std::move(arena);
  figures_.arena_bytes = bytes;
  return absl::OkStatus();
}

absl::Status CudaNetwork::GivePiece(const Mode& mode, Part part, size_t piece,
                                    const Bindings& bindings, NativeStream stream) const {
  const auto give = [&](const std::vector<StepPlan::Operation>& operations) {
    for (const StepPlan::Operation& operation : operations) {
      if (const absl::Status given = operation(bindings, stream); !given.ok()) return given;
    }
    return absl::OkStatus();
  };
  absl::Status status = give(mode.plan.forward[piece].operations);
  if (piece + 1 < mode.plan.forward.size()) return status;
  if (status.ok() && part != Part::kEvaluate) status = give(mode.plan.statistics);
  if (status.ok() && part != Part::kStatistics) status = give(mode.plan.loss);
  if (status.ok() && part == Part::kTrain) status = give(mode.plan.backward);
  return status;
}

absl::Status CudaNetwork::RunPiece(Mode& mode, Part part, size_t piece, const Bindings& bindings) {
  auto found = std::find_if(mode.graphs.begin(), mode.graphs.end(), [&](const auto& captured) {
    return captured->part == part && captured->piece == piece && captured->bindings == bindings;
  });
  if (found == mode.graphs.end()) {
    if (mode.graphs.size() == kMaxGraphs) {
      // Its last launch may be under way.
      if (const absl::Status waited = WaitFor(stream_); !waited.ok()) return waited;
      mode.graphs.erase(std::min_element(
          mode.graphs.begin(), mode.graphs.end(),
          [](const auto& a, const auto& b) { return a->last_used < b->last_used; }));
    }
    mode.graphs.push_back(std::make_unique<Captured>());
    found = mode.graphs.end() - 1;
    (*found)->part = part;
    (*found)->piece = piece;
    (*found)->bindings = bindings;
  }
  Captured& captured = **found;
  captured.last_used = ++uses_;
  if (!captured.ran || captured.uncapturable) {
    const absl::Status given = GivePiece(mode, part, piece, bindings, stream_);
    captured.ran = given.ok();
    return given;
  }
  if (!captured.captured) {
    auto graph = Graph::Capture(stream_, [&](NativeStream stream) {
      return GivePiece(mode, part, piece, bindings, stream);
    });
    if (IsDeviceFailure(graph.status())) return graph.status();
    if (!graph.ok()) {
      // A library may refuse it; the step is as right without, and only costs the host more.
      captured.uncapturable = true;
      ++figures_.refused_captures;
      if (figures_.refused_captures == 1) {
        std::fprintf(stderr, "a step is given to the GPU call by call, since it cannot be captured as a graph: %s\n",
                     graph.status().ToString().c_str());
      }
      return GivePiece(mode, part, piece, bindings, stream_);
    }
    captured.graph = *std::move(graph);
    captured.captured = true;
    ++figures_.captures;
  }
  ++figures_.launches;
  return captured.graph.Launch(stream_);
}

CudaNetwork::Staged CudaNetwork::Stage(const Mode& mode, Part part, const BatchView& batch) {
  auto* const to = static_cast<uint8_t*>(staging_.data());
  const bool labels = part != Part::kStatistics;
  Staged bytes;
  if (ReadsText(spec_)) {
    bytes.input_bytes = mode.plan.text.bytes;
    filler_.Fill(mode.plan.text, batch.text, /*with_targets=*/labels, to);
  } else {
    bytes.input_bytes = batch.examples * spec_.input.elements() * sizeof(float);
    std::memcpy(to, batch.inputs, bytes.input_bytes);
  }
  // Of text only the side loss has labels.
  const bool read = !ReadsText(spec_) || SideLossAt(spec_) < spec_.layers.size();
  if (labels && read) {
    bytes.label_bytes = batch.examples * sizeof(int32_t);
    std::memcpy(to + bytes.input_bytes, batch.labels, bytes.label_bytes);
  }
  return bytes;
}

absl::Status CudaNetwork::Run(Mode& mode, Part part, const BatchView& batch, float weight,
                              Gate gate, Bindings bindings) {
  bindings.arena = static_cast<uint8_t*>(arena_.data());
  // The step before has been waited for, so that the staging is free.
  const auto* const staged = static_cast<const uint8_t*>(staging_.data());
  const Staged bytes = Stage(mode, part, batch);
  absl::Status status = CopyToDevice(bindings.arena + mode.plan.inputs.offset, staged,
                                     bytes.input_bytes, stream_);
  if (status.ok() && bytes.label_bytes > 0) {
    status = CopyToDevice(bindings.arena + mode.plan.labels.offset, staged + bytes.input_bytes,
                          bytes.label_bytes, stream_);
  }
  StepScalars& scalars = scalars_.data()[0];
  scalars = {.weight = weight, .scale = weight / static_cast<float>(batch.examples)};
  if (ReadsText(spec_)) {
    double divisor = batch.text.divisor;
    if (divisor == 0 && part != Part::kStatistics) {
      divisor = static_cast<double>(CountTargets(mode.plan.text, batch.text));
    }
    scalars.target_scale = static_cast<float>(divisor > 0 ? weight / divisor : 0);
    scalars.drops = batch.text.keys != nullptr ? 1 : 0;
  }
  if (status.ok()) {
    status = CopyToDevice(bindings.arena + mode.plan.scalars.offset, &scalars, sizeof scalars,
                          stream_);
  }
  for (size_t piece = 0; status.ok() && piece < mode.plan.forward.size(); ++piece) {
    for (const StepPlan::Wait& wait : mode.plan.forward[piece].waits) {
      status = gate(wait.begin, wait.elements);
      if (!status.ok()) break;
    }
    if (status.ok()) status = RunPiece(mode, part, piece, bindings);
  }
  // What was given uses the staging and the caller's memory.
  if (!status.ok()) static_cast<void>(WaitFor(stream_));
  return status;
}

absl::StatusOr<LossSum> CudaNetwork::ReadLoss(const Mode& mode, const BatchView& batch) {
  StepScalars& scalars = scalars_.data()[1];
  absl::Status status =
      CopyToHost(&scalars, static_cast<uint8_t*>(arena_.data()) + mode.plan.scalars.offset,
                 sizeof scalars, stream_);
  if (status.ok()) status = WaitFor(stream_);
  if (!status.ok()) return status;
  return LossSum{.loss = scalars.loss,
                 .correct = scalars.correct,
                 .count = ReadsText(spec_) ? CountTargets(mode.plan.text, batch.text) : mode.examples,
                 .side_loss = scalars.side_loss,
                 .side_correct = scalars.side_correct};
}

absl::StatusOr<LossSum> CudaNetwork::Train(const BatchView& batch, const float* vector, Gate gate,
                                           const StepOutput& output) {
  if (auto s = CheckBatch(batch, true); !s.ok()) return s;
  auto mode = FindMode(batch.examples, true);
  if (!mode.ok()) return mode.status();
  const absl::Status run =
      Run(**mode, Part::kTrain, batch, output.weight, gate,
          {.vector = vector,
           .gradient = output.gradient,
           .statistics = output.statistics,
           .accumulate = output.accumulate});
  if (!run.ok()) return run;
  if (output.given) {
    const absl::Status given = output.given();
    if (!given.ok()) {
      // What was given uses the staging and the caller's memory.
      static_cast<void>(WaitFor(stream_));
      return given;
    }
  }
  return ReadLoss(**mode, batch);
}

absl::Status CudaNetwork::Statistics(const BatchView& batch, const float* vector,
                                     float* statistics) {
  if (auto s = CheckBatch(batch, false); !s.ok()) return s;
  auto mode = FindMode(batch.examples, true);
  if (!mode.ok()) return mode.status();
  const absl::Status run = Run(**mode, Part::kStatistics, batch, 1, Open,
                               {.vector = vector, .statistics = statistics});
  return run.ok() ? WaitFor(stream_) : run;
}

absl::StatusOr<LossSum> CudaNetwork::Evaluate(const BatchView& batch, const float* vector) {
  if (auto s = CheckBatch(batch, true); !s.ok()) return s;
  auto mode = FindMode(batch.examples, false);
  if (!mode.ok()) return mode.status();
  const absl::Status run = Run(**mode, Part::kEvaluate, batch, 1, Open, {.vector = vector});
  if (!run.ok()) return run;
  return ReadLoss(**mode, batch);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
