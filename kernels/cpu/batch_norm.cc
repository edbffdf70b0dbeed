// Batch normalisation by oneDNN; weight and bias are read from the vector where
// they lie.
#include "kernels/cpu/layers.h"

namespace foreshard::kernels::cpu {
namespace {

using dnnl::memory;
using Flags = dnnl::normalization_flags;

class BatchNormLayer : public CpuLayer {
 public:
  BatchNormLayer(const BatchNorm& layer, const Shape& in, bool relu)
      : layer_(layer), in_(in), relu_(relu) {}

  memory Forward(Plan& plan, const memory& src, bool training) override {
    src_ = src;
    const memory::desc desc = src.get_desc();
    Flags flags = Flags::use_scale | Flags::use_shift;
    if (relu_) flags = flags | Flags::fuse_norm_relu;
    flags_ = flags;
    if (!training) flags = flags | Flags::use_global_stats;
    const auto kind =
        training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    forward_ = {{kind, desc, layer_.epsilon, flags}, plan.Attributes(), plan.engine()};

    plan.AddWait(layer_.weight, in_.channels);
    plan.AddWait(layer_.bias, in_.channels);
    const memory::desc run = RunDesc(in_.channels);
    weight_ = plan.Bind(Plan::Base::kVector, layer_.weight, run);
    bias_ = plan.Bind(Plan::Base::kVector, layer_.bias, run);
    const memory dst = plan.Allocate(desc);
    std::unordered_map<int, memory> args = {{DNNL_ARG_SRC, src},
                                            {DNNL_ARG_DST, dst},
                                            {DNNL_ARG_SCALE, weight_},
                                            {DNNL_ARG_SHIFT, bias_}};
    if (training) {
      mean_ = plan.Allocate(run);
      variance_ = plan.Allocate(run);
      if (relu_) {
        workspace_ = plan.Allocate(forward_.workspace_desc());
        args[DNNL_ARG_WORKSPACE] = workspace_;
      }
    } else {
      plan.AddWait(layer_.mean, in_.channels);
      plan.AddWait(layer_.variance, in_.channels);
      mean_ = plan.Bind(Plan::Base::kVector, layer_.mean, run);
      variance_ = plan.Bind(Plan::Base::kVector, layer_.variance, run);
    }
    args[DNNL_ARG_MEAN] = mean_;
    args[DNNL_ARG_VARIANCE] = variance_;
    plan.Add(forward_, args);
    if (training) {
      const uint64_t values = uint64_t(desc.dims()[0]) * in_.height * in_.width;
      plan.AddStatistics(
          {mean_, variance_, layer_.mean, layer_.variance, in_.channels, values});
    }
    return dst;
  }

  memory Backward(Plan& plan, const memory& diff_dst, bool input_gradient) override {
    const memory::desc desc = src_.get_desc();
    const dnnl::batch_normalization_backward::primitive_desc pd(
        {dnnl::prop_kind::backward, desc, desc, layer_.epsilon, flags_}, plan.Attributes(),
        plan.engine(), forward_);
    const memory in = plan.Converted(diff_dst, pd.diff_dst_desc());
    const memory diff_src = plan.Allocate(pd.diff_src_desc());
    const memory::desc run = RunDesc(in_.channels);
    const memory diff_weight = plan.Allocate(run);
    const memory diff_bias = plan.Allocate(run);
    std::unordered_map<int, memory> args = {
        {DNNL_ARG_SRC, src_},           {DNNL_ARG_MEAN, mean_},
        {DNNL_ARG_VARIANCE, variance_}, {DNNL_ARG_SCALE, weight_},
        {DNNL_ARG_SHIFT, bias_},  // not needed, but oneDNN 2.6 insists
        {DNNL_ARG_DIFF_DST, in},        {DNNL_ARG_DIFF_SRC, diff_src},
        {DNNL_ARG_DIFF_SCALE, diff_weight}, {DNNL_ARG_DIFF_SHIFT, diff_bias}};
    if (relu_) args[DNNL_ARG_WORKSPACE] = workspace_;
    plan.Add(pd, args);
    plan.AddGradient(diff_weight, layer_.weight, run);
    plan.AddGradient(diff_bias, layer_.bias, run);
    plan.Release(diff_weight);
    plan.Release(diff_bias);
    if (input_gradient) return diff_src;
    plan.Release(diff_src);
    return {};
  }

 private:
  BatchNorm layer_;
  Shape in_;
  bool relu_;
  Flags flags_ = Flags::none;
  dnnl::batch_normalization_forward::primitive_desc forward_;
  memory src_, weight_, bias_, mean_, variance_, workspace_;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeBatchNorm(const BatchNorm& layer, const Shape& in, bool relu) {
  return std::make_unique<BatchNormLayer>(layer, in, relu);
}

}  // namespace foreshard::kernels::cpu
