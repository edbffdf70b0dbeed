// Layer normalisation by oneDNN; weight and bias are read from the vector where they lie.
#include "kernels/cpu/layers.h"

namespace foreshard::kernels::cpu {
namespace {

using dnnl::memory;
using Flags = dnnl::normalization_flags;

class LayerNormLayer : public CpuLayer {
 public:
  LayerNormLayer(const LayerNorm& layer, const Shape& in) : layer_(layer), in_(in) {}

  memory Forward(Plan& plan, const memory& src, bool training) override {
    canonical_ = CanonicalDesc(src.get_desc().dims()[0], in_);
    const int64_t rows = src.get_desc().dims()[0] * in_.height * in_.width;
    rows_ = {{rows, in_.channels}, memory::data_type::f32, memory::format_tag::ab};
    src_ = plan.Alias(plan.Converted(src, canonical_), rows_);
    const auto kind =
        training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    forward_ = {{kind, rows_, layer_.epsilon, flags_}, plan.Attributes(), plan.engine()};

    plan.AddWait(layer_.weight, in_.channels);
    plan.AddWait(layer_.bias, in_.channels);
    const memory::desc run = RunDesc(in_.channels);
    weight_ = plan.Bind(Plan::Base::kVector, layer_.weight, run);
    bias_ = plan.Bind(Plan::Base::kVector, layer_.bias, run);
    const memory dst = plan.Allocate(canonical_);
    std::unordered_map<int, memory> args = {{DNNL_ARG_SRC, src_},
                                            {DNNL_ARG_DST, plan.Alias(dst, rows_)},
                                            {DNNL_ARG_SCALE, weight_},
                                            {DNNL_ARG_SHIFT, bias_}};
    if (training) {
      mean_ = plan.Allocate(forward_.mean_desc());
      variance_ = plan.Allocate(forward_.variance_desc());
      args[DNNL_ARG_MEAN] = mean_;
      args[DNNL_ARG_VARIANCE] = variance_;
    }
    plan.Add(forward_, args);
    return dst;
  }

  memory Backward(Plan& plan, const memory& diff_dst, bool input_gradient) override {
    const dnnl::layer_normalization_backward::primitive_desc pd(
        {dnnl::prop_kind::backward, rows_, rows_, layer_.epsilon, flags_}, plan.Attributes(),
        plan.engine(), forward_);
    const memory in = plan.Alias(plan.Converted(diff_dst, canonical_), rows_);
    const memory diff_src = plan.Allocate(canonical_);
    const memory::desc run = RunDesc(in_.channels);
    const memory diff_weight = plan.Allocate(run);
    const memory diff_bias = plan.Allocate(run);
    plan.Add(pd, {{DNNL_ARG_SRC, src_},
                  {DNNL_ARG_MEAN, mean_},
                  {DNNL_ARG_VARIANCE, variance_},
                  {DNNL_ARG_SCALE, weight_},
                  {DNNL_ARG_SHIFT, bias_},
                  {DNNL_ARG_DIFF_DST, in},
                  {DNNL_ARG_DIFF_SRC, plan.Alias(diff_src, rows_)},
                  {DNNL_ARG_DIFF_SCALE, diff_weight},
                  {DNNL_ARG_DIFF_SHIFT, diff_bias}});
    plan.AddGradient(diff_weight, layer_.weight, run);
    plan.AddGradient(diff_bias, layer_.bias, run);
    plan.Release(diff_weight);
    plan.Release(diff_bias);
    plan.Release(mean_);
    plan.Release(variance_);
    if (input_gradient) return diff_src;
    plan.Release(diff_src);
    return {};
  }

 private:
  const Flags flags_ = Flags::use_scale | Flags::use_shift;

  LayerNorm layer_;
  Shape in_;
  memory::desc canonical_, rows_;
  dnnl::layer_normalization_forward::primitive_desc forward_;
  memory src_, weight_, bias_, mean_, variance_;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeLayerNorm(const LayerNorm& layer, const Shape& in) {
  return std::make_unique<LayerNormLayer>(layer, in);
}

}  // namespace foreshard::kernels::cpu
