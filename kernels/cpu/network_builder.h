// From a network's list of layers to a plan: which value goes where, where branches
// part and meet, and how long each piece of memory is needed.
//
//   Plan plan(engine);
//   BuiltNetwork built = BuildNetwork(plan, spec, shapes, examples, /*training=*/true);
//   plan.Place(arena);
//   plan.Run(0, built.forward_end, ...);      // then logits_gradient from logits,
//   plan.Run(built.forward_end, plan.steps(), ...);
#pragma once

#include <vector>

#include "kernels/cpu/plan.h"

namespace foreshard::kernels::cpu {

struct BuiltNetwork {
  dnnl::memory logits;           // canonical
  dnnl::memory logits_gradient;  // training only; with text in the place of the logits
  dnnl::memory side_logits, side_gradient;  // of SideLoss, where there is one
  size_t forward_end = 0;        // steps before are forward
};

// Adds a network's steps: forward in training mode and backward, or forward in inference
// mode. `spec` and its `shapes` are as CheckNetwork approved them. oneDNN's failures come
// as dnnl::error.
BuiltNetwork BuildNetwork(Plan& plan, const NetworkSpec& spec, const std::vector<Shape>& shapes,
                          int64_t examples, bool training);

}  // namespace foreshard::kernels::cpu
