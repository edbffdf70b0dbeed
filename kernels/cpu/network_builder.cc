#include "kernels/cpu/network_builder.h"

#include <memory>
#include <utility>

#include "kernels/cpu/layers.h"
#include "kernels/text_layers.h"
#include "kernels/wiring.h"

namespace foreshard::kernels::cpu {
namespace {

using dnnl::memory;

// Memory that several may hold: given back to the plan when the last one lets go.
using Held = std::shared_ptr<const memory>;

class Builder {
 public:
  Builder(Plan& plan, const NetworkSpec& spec, const std::vector<Shape>& shapes, bool training)
      : plan_(plan),
        spec_(spec),
        shapes_(shapes),
        training_(training),
        wiring_(spec.layers),
        layers_(spec.layers.size()),
        values_(wiring_.values()),
        reads_left_(wiring_.values()),
        stays_(wiring_.values()),
        gradients_(wiring_.values()) {
    for (uint32_t value = 0; value < wiring_.values(); ++value) {
      reads_left_[value] = wiring_.uses(value);
    }
  }

  BuiltNetwork Build(int64_t examples) {
    BuiltNetwork built;
    values_[0] = Hold(plan_.Bind(Plan::Base::kInput, 0, CanonicalDesc(examples, spec_.input)));
    stays_[0] = true;  // the caller's
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (wiring_.output(i) == i + 1) i = Forward(i);
    }
    const uint32_t last = wiring_.output(layers_.size() - 1);
    built.logits = *values_[last];
    built.forward_end = plan_.steps();
    const size_t side = SideLossAt(spec_);
    if (side < layers_.size()) built.side_logits = *values_[wiring_.output(side)];
    if (!training_) return built;

    // A vocabulary's logits are many, and read only once.
    gradients_[last] =
        ReadsText(spec_) ? values_[last] : Hold(plan_.Allocate(built.logits.get_desc()));
    built.logits_gradient = *gradients_[last];
    if (side < layers_.size()) {
      Held& gradient = gradients_[wiring_.output(side)];
      gradient = Hold(plan_.Allocate(built.side_logits.get_desc()));
      built.side_gradient = *gradient;
    }
    for (size_t i = layers_.size(); i-- > 0;) Backward(i);
    return built;
  }

 private:
  Held Hold(const memory& held) {
    return {new memory(held), [&plan = plan_](const memory* last) {
              plan.Release(*last);
              delete last;
            }};
  }

  // What a step made of `from`, which may be the same memory, described otherwise or not.
  Held MadeFrom(const Held& from, const memory& made) {
    if (made == *from) return from;
    if (!plan_.SameMemory(made, *from)) return Hold(made);
    return {new memory(made), [from](const memory* last) { delete last; }};
  }

  Held Converted(const Held& from, const memory::desc& wanted) {
    return MadeFrom(from, plan_.Converted(*from, wanted));
  }

  // `gradient`, or a copy of it where others hold it too.
  Held Own(Held gradient) {
    return gradient.use_count() == 1 ? std::move(gradient) : Copied(gradient);
  }

  Held Copied(const Held& from) {
    const memory::desc desc = from->get_desc();
    Held copy = Hold(plan_.Allocate(desc));
    plan_.Add(dnnl::reorder::primitive_desc(plan_.engine(), desc, plan_.engine(), desc,
                                            plan_.Attributes()),
              {{DNNL_ARG_FROM, *from}, {DNNL_ARG_TO, *copy}});
    return copy;
  }

  // A value that has been read as often as it is, is needed by backward only.
  void Read(uint32_t value) {
    if (--reads_left_[value] == 0 && !training_) values_[value].reset();
  }

  // Adds layer i, with the Relu that follows where both are one pass. Returns the number
  // of the last layer that was added.
  size_t Forward(size_t i) {
    const Layer& layer = spec_.layers[i];
    const uint32_t input = wiring_.input(i);
    const bool relu = TakesRelu(layer) && wiring_.relu_follows(i);
    const size_t end = relu ? i + 1 : i;
    const uint32_t output = wiring_.output(end);
    if (std::holds_alternative<AddFrom>(layer)) {
      values_[output] = ForwardSum(input, wiring_.other(i), relu);
      stays_[output] = relu;
      Read(wiring_.other(i));
    } else {
      const Shape& in = InputShape(i);
      layers_[i] = MakeCpuLayer(spec_, i, in, shapes_[i], relu);
      Held from = values_[input];
      if (layers_[i]->overwrites_input() && !IsFree(input)) from = Copied(from);
      values_[output] = MadeFrom(from, layers_[i]->Forward(plan_, *from, training_));
      stays_[output] = layers_[i]->reads_output();
    }
    Read(input);
    return end;
  }

  // Whether nobody else reads a value, now or in backward.
  bool IsFree(uint32_t value) const {
    return wiring_.uses(value) == 1 && (training_ ? !stays_[value] : value != 0);
  }

  Held ForwardSum(uint32_t input, uint32_t other, bool relu) {
    const Held a = values_[input];
    const Held b = Converted(values_[other], a->get_desc());
    const Held sum = IsFree(input) ? a : Hold(plan_.Allocate(a->get_desc()));
    AddSum(plan_, *a, *b, *sum, relu);
    return sum;
  }

  const Shape& InputShape(size_t i) const { return i == 0 ? spec_.input : shapes_[i - 1]; }

  void Backward(size_t i) {
    if (wiring_.output(i) != i + 1) return;                       // From, SideLoss
    const bool sum = std::holds_alternative<AddFrom>(spec_.layers[i]);
    if (!sum && layers_[i] == nullptr) return;                    // a Relu that the one before took
    const bool relu = TakesRelu(spec_.layers[i]) && wiring_.relu_follows(i);
    const uint32_t output = wiring_.output(relu ? i + 1 : i);
    const uint32_t input = wiring_.input(i);
    Held gradient = std::exchange(gradients_[output], nullptr);
    if (gradient == nullptr) return;                              // nothing before it is trained
    if (sum) {
      if (relu) {
        gradient = Own(std::move(gradient));
        gradient = MadeFrom(gradient, AddReluBackward(plan_, *values_[output], *gradient));
      }
      AddGradient(wiring_.other(i), gradient);
      AddGradient(input, std::move(gradient));
    } else {
      if (layers_[i]->overwrites_gradient()) gradient = Own(std::move(gradient));
      const bool wanted = wiring_.needs_gradient(input);
      const memory next = layers_[i]->Backward(plan_, *gradient, wanted);
      Held made = wanted ? MadeFrom(gradient, next) : nullptr;
      gradient.reset();
      if (wanted) AddGradient(input, std::move(made));
    }
    // All that read it come after it in the list, so their backward is done.
    values_[output].reset();
  }

  // The gradient of a value is the sum of those of all that read it.
  void AddGradient(uint32_t value, Held gradient) {
    if (!wiring_.needs_gradient(value)) return;
    Held& total = gradients_[value];
    if (total == nullptr) {
      total = std::move(gradient);
      return;
    }
    if (total.use_count() > 1) std::swap(total, gradient);
    const memory::desc desc = total->get_desc();
    const Held other = Converted(gradient, desc);
    const Held sum = total.use_count() == 1 ? total : Hold(plan_.Allocate(desc));
    AddSum(plan_, *total, *other, *sum, /*relu=*/false);
    total = sum;
  }

  Plan& plan_;
  const NetworkSpec& spec_;
  const std::vector<Shape>& shapes_;
  const bool training_;
  const Wiring wiring_;
  std::vector<std::unique_ptr<CpuLayer>> layers_;
  // By value. Those that a Relu after them took over, and From's, stay empty.
  std::vector<Held> values_;
  std::vector<uint32_t> reads_left_;
  std::vector<bool> stays_;  // backward of what made it reads it
  std::vector<Held> gradients_;
};

}  // namespace

BuiltNetwork BuildNetwork(Plan& plan, const NetworkSpec& spec, const std::vector<Shape>& shapes,
                          int64_t examples, bool training) {
  return Builder(plan, spec, shapes, training).Build(examples);
}

}  // namespace foreshard::kernels::cpu
