// From a network's list of layers to the calls of one step on the GPU, for one number of
// examples: which value lies where in the arena, where branches part and meet, what each layer
// calls forward and backward. Nothing is run or allocated here; addresses come with Bindings, so
// a plan outlives the arena that it is placed in.
//
//   ASSIGN(StepPlan plan, BuildStepPlan(library, spec, shapes, examples, /*training=*/true));
//   ... allocate plan.arena_bytes ...
//   for (auto& piece : plan.forward) { await piece.waits; give piece.operations; }
//   give plan.backward;              // the loss, backward
//
// Forward is cut into pieces at layers, so that it can begin when the first parameters are
// there; a network of up to kPieceElements parameters is one piece.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/activations.h"
#include "kernels/cuda/arena.h"
#include "kernels/cuda/layer_library.h"
#include "kernels/cuda/text_batch.h"
#include "kernels/device.h"

namespace FORESHARD_CUDA_NAMESPACE {

// What a run of a plan works on; device memory.
struct Bindings {
  uint8_t* arena = nullptr;
  const float* vector = nullptr;   // the whole flat vector
  float* gradient = nullptr;       // [trainable_elements]; training
  float* statistics = nullptr;     // [elements - trainable_elements]; training
  bool accumulate = false;         // to gradient and statistics

  bool operator==(const Bindings& other) const {
    return arena == other.arena && vector == other.vector && gradient == other.gradient &&
           statistics == other.statistics && accumulate == other.accumulate;
  }
};

struct StepPlan {
  static constexpr uint64_t kPieceElements = 1 << 20;
  static constexpr uint64_t kMostPieces = 4;

  using Operation = std::function<absl::Status(const Bindings&, NativeStream)>;
  struct Wait {
    uint64_t begin = 0, elements = 0;  // of the vector
  };
  struct Piece {
    std::vector<Wait> waits;           // before the operations
    std::vector<Operation> operations;
  };

  uint64_t arena_bytes = 0;
  // Where a step's inputs are put: fp32 [examples, height, width, channels], or text as its layout
  // says, which is empty without; int32 labels; and StepScalars.
  ArenaPlan::Region inputs, labels, scalars;
  TextLayout text;
  std::vector<Piece> forward;          // at least one
  std::vector<Operation> statistics;   // training: after forward
  std::vector<Operation> loss;         // after forward; with training the logits' gradient too
  std::vector<Operation> backward;     // training
};

// `spec` and its `shapes` are as CheckNetwork approved them; `library` outlives the plan.
// Errors: the library's, where it cannot do a layer.
absl::StatusOr<StepPlan> BuildStepPlan(LayerLibrary& library, const NetworkSpec& spec,
                                       const std::vector<Shape>& shapes, uint32_t examples,
                                       bool training);

}  // namespace FORESHARD_CUDA_NAMESPACE
