// What the parts that build a StepPlan share (internal to step_plan.cc and text_steps.cc): memory
// that is given back when the last one lets go of it, and the operations, in order.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/step_plan.h"
#include "kernels/wiring.h"

namespace FORESHARD_CUDA_NAMESPACE {

using Region = ArenaPlan::Region;
using Held = std::shared_ptr<const Region>;

inline void* At(const Bindings& bindings, const Region& region) {
  return bindings.arena + region.offset;
}
template <typename T>
T* At(const Bindings& bindings, const Region& region, uint64_t offset = 0) {
  return reinterpret_cast<T*>(bindings.arena + region.offset + offset);
}

class StepBuilder {
 public:
  StepBuilder(LayerLibrary& library, const NetworkSpec& spec, const std::vector<Shape>& shapes,
              uint32_t examples, bool training)
      : library_(library),
        storage_(library.storage()),
        spec_(spec),
        shapes_(shapes),
        examples_(examples),
        training_(training),
        wiring_(spec.layers) {}

  LayerLibrary& library() const { return library_; }
  Storage storage() const { return storage_; }
  const NetworkSpec& spec() const { return spec_; }
  uint32_t examples() const { return examples_; }
  bool training() const { return training_; }
  const Shape& InputShape(size_t i) const { return i == 0 ? spec_.input : shapes_[i - 1]; }
  const Shape& OutputShape(size_t i) const { return shapes_[i]; }
  const StepPlan& plan() const { return plan_; }

  void Add(StepPlan::Operation operation) { operations_->push_back(std::move(operation)); }
  Held TakeBytes(uint64_t bytes) {
    return {new Region(arena_.Take(bytes)), [arena = &arena_](const Region* last) {
              arena->Give(*last);
              delete last;
            }};
  }
  // Elements of the storage's type.
  Held Take(uint64_t elements) { return TakeBytes(elements * BytesOf(storage_)); }
  // The step asks for a tensor here, where nothing before it has.
  void AwaitTensor(uint64_t begin, uint64_t elements) {
    if (begin == kNoTensor) return;
    for (const StepPlan::Wait& wait : awaited_) {
      if (begin >= wait.begin && begin + elements <= wait.begin + wait.elements) return;
    }
    awaited_.push_back({begin, elements});
    plan_.forward.back().waits.push_back({begin, elements});
    piece_elements_ += elements;
  }

 protected:
  LayerLibrary& library_;
  const Storage storage_;
  const NetworkSpec& spec_;
  const std::vector<Shape>& shapes_;
  const uint32_t examples_;
  const bool training_;
  const Wiring wiring_;
  ArenaPlan arena_;  // before what gives back to it
  StepPlan plan_;
  std::vector<StepPlan::Operation>* operations_ = nullptr;
  std::vector<StepPlan::Wait> awaited_;
  uint64_t piece_elements_ = 0;
};

}  // namespace FORESHARD_CUDA_NAMESPACE
