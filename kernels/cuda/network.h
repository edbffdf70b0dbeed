// A network on the GPU: step plans by number of examples, the arena that they share, and the
// graphs that they were captured into. The first step of a plan runs as it is (libraries load
// and allocate what they want), the second is captured, all further ones are launches: one for
// each piece of forward (StepPlan), the last with the loss and backward.
//
//   auto network = CudaNetwork::Create(library, stream, spec).value();
//   network->Train(batch, device_vector, gate, {.gradient = device_gradient, ...});
//
// A graph belongs to its addresses: other vectors, or an arena that grew, mean another capture.
// Batch and results are in host memory and go through pinned memory; everything else stays on
// the device. Thread-compatible, the thread's device is set by the caller (UseDevice).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/graph.h"
#include "kernels/cuda/layer_library.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/step_plan.h"
#include "kernels/device.h"

namespace FORESHARD_CUDA_NAMESPACE {

struct NetworkFigures {
  uint64_t arena_bytes = 0;
  uint64_t captures = 0;  // graphs made so far
  uint64_t launches = 0;  // of graphs
  uint64_t refused_captures = 0;
};

class CudaNetwork final : public Network {
 public:
  // Plans training and evaluation of a full batch and allocates their arena, so that what does
  // not fit is said here: RESOURCE_EXHAUSTED with what is needed, what there is and what to
  // lower. `library` outlives the network, and everything runs on `stream`, which may not be the
  // default one.
  static absl::StatusOr<std::unique_ptr<CudaNetwork>> Create(LayerLibrary* library,
                                                             NativeStream stream,
                                                             const NetworkSpec& spec);
  ~CudaNetwork() override;

  absl::StatusOr<LossSum> Train(const BatchView& batch, const float* vector, Gate gate,
                                const StepOutput& output) override;
  absl::Status Statistics(const BatchView& batch, const float* vector,
                          float* statistics) override;
  absl::StatusOr<LossSum> Evaluate(const BatchView& batch, const float* vector) override;
  uint64_t step_bytes() const override { return figures_.arena_bytes; }

  const NetworkFigures& figures() const { return figures_; }

 private:
  // What of a step is given to the stream at once.
  enum class Part : uint8_t { kTrain, kStatistics, kEvaluate };
  struct Captured {
    Part part = Part::kTrain;
    size_t piece = 0;
    Bindings bindings;
    bool ran = false;  // as it is; the next time it is captured
    Graph graph;
    bool captured = false;
    bool uncapturable = false;  // a library refused: given call by call
    uint64_t last_used = 0;
  };
  struct Mode {
    uint64_t examples = 0;
    bool training = false;
    StepPlan plan;
    std::vector<std::unique_ptr<Captured>> graphs;
    uint64_t last_used = 0;
  };

  CudaNetwork(LayerLibrary* library, NativeStream stream, const NetworkSpec& spec,
              std::vector<Shape> shapes)
      : library_(library),
        stream_(stream),
        spec_(spec),
        shapes_(std::move(shapes)),
        filler_(Tokens(spec)) {}

  // Of the table that text is read by; 0 without.
  static uint32_t Tokens(const NetworkSpec& spec);

  absl::Status CheckBatch(const BatchView& batch, bool labels) const;
  absl::StatusOr<Mode*> FindMode(uint64_t examples, bool training);
  absl::Status GrowArena(uint64_t bytes);
  // Brings the batch to the arena and runs the part, waiting for its tensors piece by piece.
  absl::Status Run(Mode& mode, Part part, const BatchView& batch, float weight, Gate gate,
                   Bindings bindings);
  absl::Status RunPiece(Mode& mode, Part part, size_t piece, const Bindings& bindings);
  absl::Status GivePiece(const Mode& mode, Part part, size_t piece, const Bindings& bindings,
                         NativeStream stream) const;
  absl::StatusOr<LossSum> ReadLoss(const Mode& mode, const BatchView& batch);
  // The batch to the staging memory: its inputs, or its text, then its labels. Returns how many bytes
  // of each.
  struct Staged {
    uint64_t input_bytes = 0, label_bytes = 0;
  };
  Staged Stage(const Mode& mode, Part part, const BatchView& batch);

  LayerLibrary* const library_;
  const NativeStream stream_;
  const NetworkSpec spec_;
  const std::vector<Shape> shapes_;  // after each layer
  std::vector<std::unique_ptr<Mode>> modes_;
  Memory arena_;
  // Inputs, labels and scalars on their way; scalars on their way back.
  Memory staging_;
  TextFiller filler_;
  PinnedArray<StepScalars> scalars_;
  NetworkFigures figures_;
  uint64_t uses_ = 0;
};

}  // namespace FORESHARD_CUDA_NAMESPACE
