// Copies of some positions: those of the targets, or the first.
#include <algorithm>

#include "kernels/cpu/layers.h"

namespace foreshard::kernels::cpu {
namespace {

using dnnl::memory;

class SelectLayer : public CpuLayer {
 public:
  SelectLayer(bool first, const Shape& in, const Shape& out) : first_(first), in_(in), out_(out) {}

  memory Forward(Plan& plan, const memory& src, bool training) override {
    examples_ = src.get_desc().dims()[0];
    const memory from = plan.Converted(src, CanonicalDesc(examples_, in_));
    const memory to = plan.Allocate(CanonicalDesc(examples_, out_));
    plan.AddCall([&plan, from, to, this_copy = *this] {
      const auto* source = static_cast<const float*>(from.get_data_handle());
      auto* destination = static_cast<float*>(to.get_data_handle());
      const uint64_t channels = this_copy.in_.channels;
      for (uint64_t row = 0; row < this_copy.rows(); ++row) {
        std::copy_n(source + this_copy.SourceRow(plan.text(), row) * channels, channels,
                    destination + row * channels);
      }
    });
    return to;
  }

  memory Backward(Plan& plan, const memory& diff_dst, bool input_gradient) override {
    if (!input_gradient) return {};
    const memory from = plan.Converted(diff_dst, CanonicalDesc(examples_, out_));
    const memory to = plan.Allocate(CanonicalDesc(examples_, in_));
    plan.AddCall([&plan, from, to, this_copy = *this] {
      const auto* source = static_cast<const float*>(from.get_data_handle());
      auto* destination = static_cast<float*>(to.get_data_handle());
      const uint64_t channels = this_copy.in_.channels;
      std::fill_n(destination, static_cast<uint64_t>(this_copy.examples_) * this_copy.in_.elements(), 0.0f);
      for (uint64_t row = 0; row < this_copy.rows(); ++row) {
        const float* g = source + row * channels;
        float* sum = destination + this_copy.SourceRow(plan.text(), row) * channels;
        for (uint64_t i = 0; i < channels; ++i) sum[i] += g[i];
      }
    });
    return to;
  }

 private:
  uint64_t rows() const { return static_cast<uint64_t>(examples_) * out_.height; }
  uint64_t SourceRow(const TextView& text, uint64_t row) const {
    const uint64_t example = row / out_.height;
    return example * in_.height + (first_ ? 0 : static_cast<uint64_t>(text.target_positions[row]));
  }

  bool first_;
  Shape in_, out_;
  int64_t examples_ = 0;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeSelect(bool first, const Shape& in, const Shape& out) {
  return std::make_unique<SelectLayer>(first, in, out);
}

}  // namespace foreshard::kernels::cpu
