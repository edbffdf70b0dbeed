// Dropout in place: what is dropped is drawn again in backward, so nothing is kept.
#include "kernels/cpu/drop.h"
#include "kernels/cpu/layers.h"

namespace foreshard::kernels::cpu {
namespace {

using dnnl::memory;

class DropoutLayer : public CpuLayer {
 public:
  DropoutLayer(const Dropout& layer, uint32_t number, const Shape& in)
      : rate_(layer.rate), number_(number), in_(in) {}

  memory Forward(Plan& plan, const memory& src, bool training) override {
    examples_ = src.get_desc().dims()[0];
    const memory values = plan.Converted(src, CanonicalDesc(examples_, in_));
    if (training) AddDrop(plan, values);
    return values;
  }

  memory Backward(Plan& plan, const memory& diff_dst, bool input_gradient) override {
    if (!input_gradient) return {};
    const memory values = plan.Converted(diff_dst, CanonicalDesc(examples_, in_));
    AddDrop(plan, values);
    return values;
  }

  bool overwrites_input() const override { return true; }
  bool overwrites_gradient() const override { return true; }

 private:
  void AddDrop(Plan& plan, const memory& values) {
    if (rate_ == 0) return;
    plan.AddCall([&plan, values, rate = rate_, number = number_, examples = examples_,
                  elements = in_.elements()] {
      const uint64_t* keys = plan.text().keys;
      if (keys == nullptr) return;
      auto* data = static_cast<float*>(values.get_data_handle());
#pragma omp parallel for
      for (int64_t e = 0; e < examples; ++e) {
        Drop({keys[e], number, rate}, 0, elements, data + static_cast<uint64_t>(e) * elements);
      }
    });
  }

  float rate_;
  uint32_t number_;
  Shape in_;
  int64_t examples_ = 0;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeDropout(const Dropout& layer, uint32_t number, const Shape& in) {
  return std::make_unique<DropoutLayer>(layer, number, in);
}

}  // namespace foreshard::kernels::cpu
