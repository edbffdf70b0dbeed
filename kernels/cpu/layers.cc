#include "kernels/cpu/layers.h"

#include "kernels/cpu/sum.h"
#include "kernels/text_layers.h"

namespace foreshard::kernels::cpu {

using dnnl::memory;

memory::desc CanonicalDesc(int64_t examples, const Shape& shape) {
  return {{examples, shape.channels, shape.height, shape.width}, memory::data_type::f32,
          memory::format_tag::nhwc};
}

memory::desc RunDesc(int64_t elements) {
  return {{elements}, memory::data_type::f32, memory::format_tag::x};
}

memory::desc AnyLayout(const memory::desc& desc) {
  return {desc.dims(), memory::data_type::f32, memory::format_tag::any};
}

dnnl::primitive_attr ReluAttributes(const Plan& plan) {
  dnnl::primitive_attr attributes = plan.Attributes();
  dnnl::post_ops relu;
  relu.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
  attributes.set_post_ops(relu);
  return attributes;
}

void AddWeightGradient(Plan& plan, const dnnl::primitive_desc_base& pd,
                       const memory::desc& diff_weight, const memory::desc& diff_bias,
                       const memory& src, const memory& diff_dst, const WeightAndBias& tensors) {
  const memory weight = plan.Allocate(diff_weight);
  memory bias;
  std::unordered_map<int, memory> args = {
      {DNNL_ARG_SRC, src}, {DNNL_ARG_DIFF_DST, diff_dst}, {DNNL_ARG_DIFF_WEIGHTS, weight}};
  const bool has_bias = tensors.bias != kNoTensor;
  if (has_bias) {
    bias = plan.Allocate(diff_bias);
    args[DNNL_ARG_DIFF_BIAS] = bias;
  }
  plan.Add(pd, args);
  plan.AddGradient(weight, tensors.weight, tensors.weight_desc);
  plan.Release(weight);
  if (has_bias) {
    plan.AddGradient(bias, tensors.bias, tensors.bias_desc);
    plan.Release(bias);
  }
}

void AddSum(Plan& plan, const memory& a, const memory& b, const memory& to, bool relu) {
  const uint64_t floats = a.get_desc().get_size() / sizeof(float);  // padding, zeros, included
  plan.AddCall([a, b, to, floats, relu] {
    Sum(static_cast<const float*>(a.get_data_handle()),
        static_cast<const float*>(b.get_data_handle()), static_cast<float*>(to.get_data_handle()),
        floats, relu);
  });
}

namespace {

// diff where dst is above 0, else 0, from `in` to `out`, which may be one; all in the
// layout of dst.
void AddReluMask(Plan& plan, const memory& dst, const memory& in, const memory& out) {
  const memory::desc desc = dst.get_desc();
  const dnnl::eltwise_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, dnnl::algorithm::eltwise_relu, desc, 0.0f, 0.0f},
      plan.engine());
  const dnnl::eltwise_backward::primitive_desc pd(
      {dnnl::algorithm::eltwise_relu_use_dst_for_bwd, desc, desc, 0.0f, 0.0f}, plan.Attributes(),
      plan.engine(), forward);
  plan.Add(pd, {{DNNL_ARG_DST, dst}, {DNNL_ARG_DIFF_DST, in}, {DNNL_ARG_DIFF_SRC, out}});
}

}  // namespace

memory AddReluBackward(Plan& plan, const memory& dst, const memory& diff) {
  const memory in = plan.Converted(diff, dst.get_desc());
  AddReluMask(plan, dst, in, in);
  return in;
}

namespace {

// max(0, x) where nothing before it could take it over.
class ReluLayer : public CpuLayer {
 public:
  memory Forward(Plan& plan, const memory& src, bool training) override {
    const memory::desc desc = src.get_desc();
    const auto kind =
        training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const dnnl::eltwise_forward::primitive_desc pd(
        {kind, dnnl::algorithm::eltwise_relu, desc, 0.0f, 0.0f}, plan.Attributes(), plan.engine());
    dst_ = plan.Allocate(desc);
    plan.Add(pd, {{DNNL_ARG_SRC, src}, {DNNL_ARG_DST, dst_}});
    return dst_;
  }

  memory Backward(Plan& plan, const memory& diff_dst, bool input_gradient) override {
    if (!input_gradient) return {};
    // A result of its own, because the caller releases diff_dst.
    const memory in = plan.Converted(diff_dst, dst_.get_desc());
    const memory diff_src = plan.Allocate(dst_.get_desc());
    AddReluMask(plan, dst_, in, diff_src);
    return diff_src;
  }

  bool reads_output() const override { return true; }

 private:
  memory dst_;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeRelu() { return std::make_unique<ReluLayer>(); }

bool TakesRelu(const Layer& layer) {
  return std::holds_alternative<Convolution>(layer) || std::holds_alternative<BatchNorm>(layer) ||
         std::holds_alternative<Dense>(layer) || std::holds_alternative<AddFrom>(layer);
}

std::unique_ptr<CpuLayer> MakeCpuLayer(const NetworkSpec& spec, size_t i, const Shape& in,
                                       const Shape& out, bool relu) {
  const Layer& layer = spec.layers[i];
  const auto number = static_cast<uint32_t>(i);
  if (const auto* conv = std::get_if<Convolution>(&layer)) {
    return MakeConvolution(*conv, in, out, relu);
  }
  if (const auto* norm = std::get_if<BatchNorm>(&layer)) return MakeBatchNorm(*norm, in, relu);
  if (const auto* dense = std::get_if<Dense>(&layer)) return MakeDense(*dense, in, relu);
  if (const auto* pool = std::get_if<MaxPool>(&layer)) return MakeMaxPool(*pool, out);
  if (std::holds_alternative<GlobalAveragePool>(layer)) return MakeGlobalAveragePool(in, out);
  if (const auto* subsample = std::get_if<Subsample>(&layer)) {
    return MakeSubsample(*subsample, in, out);
  }
  if (const auto* embedding = std::get_if<Embedding>(&layer)) {
    return MakeEmbedding(*embedding, out, IsTied(spec, *embedding));
  }
  if (const auto* norm = std::get_if<LayerNorm>(&layer)) return MakeLayerNorm(*norm, in);
  if (const auto* attention = std::get_if<Attention>(&layer)) {
    return MakeAttention(*attention, number, in, out);
  }
  if (const auto* dropout = std::get_if<Dropout>(&layer)) return MakeDropout(*dropout, number, in);
  if (std::holds_alternative<Gelu>(layer)) return MakeGelu();
  if (std::holds_alternative<Tanh>(layer)) return MakeTanh();
  if (std::holds_alternative<TargetPositions>(layer)) return MakeSelect(/*first=*/false, in, out);
  if (std::holds_alternative<FirstPosition>(layer)) return MakeSelect(/*first=*/true, in, out);
  return MakeRelu();
}

}  // namespace foreshard::kernels::cpu
