// Convolution by oneDNN's direct kernels: layouts of activations and filters are
// its choice, filters are reordered from OHWI each step (they are small).
#include "kernels/cpu/layers.h"

namespace foreshard::kernels::cpu {
namespace {

using dnnl::memory;

class ConvolutionLayer : public CpuLayer {
 public:
  ConvolutionLayer(const Convolution& layer, const Shape& in, const Shape& out, bool relu)
      : layer_(layer), in_(in), out_(out), relu_(relu) {
    // Logical dimensions are O, I, H, W; the tag gives the order in memory.
    const int64_t kernel = layer.kernel;
    weight_desc_ = {{layer.filters, in.channels, kernel, kernel},
                    memory::data_type::f32,
                    memory::format_tag::ohwi};
  }

  memory Forward(Plan& plan, const memory& src, bool training) override {
    const int64_t examples = src.get_desc().dims()[0];
    src_any_ = AnyLayout(CanonicalDesc(examples, in_));
    dst_any_ = AnyLayout(CanonicalDesc(examples, out_));
    const auto kind =
        training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const dnnl::primitive_attr attributes = relu_ ? ReluAttributes(plan) : plan.Attributes();
    forward_ = {has_bias() ? dnnl::convolution_forward::desc(
                                 kind, kDirect, src_any_, AnyLayout(weight_desc_),
                                 RunDesc(layer_.filters), dst_any_, Stride(), Padding(), Padding())
                           : dnnl::convolution_forward::desc(kind, kDirect, src_any_,
                                                             AnyLayout(weight_desc_), dst_any_,
                                                             Stride(), Padding(), Padding()),
                attributes, plan.engine()};
    src_ = plan.Converted(src, forward_.src_desc());

    plan.AddWait(layer_.weight, weight_elements());
    weight_ = plan.Bind(Plan::Base::kVector, layer_.weight, weight_desc_);
    forward_weight_ = plan.Converted(weight_, forward_.weights_desc());
    dst_ = plan.Allocate(forward_.dst_desc());
    std::unordered_map<int, memory> args = {
        {DNNL_ARG_SRC, src_}, {DNNL_ARG_WEIGHTS, forward_weight_}, {DNNL_ARG_DST, dst_}};
    if (has_bias()) {
      plan.AddWait(layer_.bias, layer_.filters);
      args[DNNL_ARG_BIAS] = plan.Bind(Plan::Base::kVector, layer_.bias, RunDesc(layer_.filters));
    }
    plan.Add(forward_, args);
    return dst_;
  }

  memory Backward(Plan& plan, const memory& diff_dst, bool input_gradient) override {
    const memory diff = relu_ ? AddReluBackward(plan, dst_, diff_dst) : diff_dst;
    BackwardWeights(plan, diff);
    return input_gradient ? BackwardData(plan, diff) : memory();
  }

  bool reads_output() const override { return relu_; }
  bool overwrites_gradient() const override { return relu_; }

 private:
  static constexpr auto kDirect = dnnl::algorithm::convolution_direct;

  void BackwardWeights(Plan& plan, const memory& diff) {
    const dnnl::convolution_backward_weights::primitive_desc pd(
        has_bias() ? dnnl::convolution_backward_weights::desc(
                         kDirect, src_any_, AnyLayout(weight_desc_), RunDesc(layer_.filters),
                         dst_any_, Stride(), Padding(), Padding())
                   : dnnl::convolution_backward_weights::desc(kDirect, src_any_,
                                                              AnyLayout(weight_desc_), dst_any_,
                                                              Stride(), Padding(), Padding()),
        plan.Attributes(), plan.engine(), forward_);
    const memory src = plan.Converted(src_, pd.src_desc());
    const memory in = plan.Converted(diff, pd.diff_dst_desc());
    AddWeightGradient(plan, pd, pd.diff_weights_desc(), pd.diff_bias_desc(), src, in,
                      {layer_.weight, weight_desc_, layer_.bias, RunDesc(layer_.filters)});
  }

  memory BackwardData(Plan& plan, const memory& diff) {
    const dnnl::convolution_backward_data::primitive_desc pd(
        {kDirect, src_any_, AnyLayout(weight_desc_), dst_any_, Stride(), Padding(), Padding()},
        plan.Attributes(), plan.engine(), forward_);
    const memory weight = pd.weights_desc() == forward_.weights_desc()
                              ? forward_weight_
                              : plan.Converted(weight_, pd.weights_desc());
    const memory in = plan.Converted(diff, pd.diff_dst_desc());
    const memory diff_src = plan.Allocate(pd.diff_src_desc());
    plan.Add(pd, {{DNNL_ARG_WEIGHTS, weight},
                  {DNNL_ARG_DIFF_DST, in},
                  {DNNL_ARG_DIFF_SRC, diff_src}});
    return diff_src;
  }

  bool has_bias() const { return layer_.bias != kNoTensor; }
  uint64_t weight_elements() const {
    return uint64_t{layer_.filters} * layer_.kernel * layer_.kernel * in_.channels;
  }
  memory::dims Stride() const { return {layer_.stride, layer_.stride}; }
  memory::dims Padding() const { return {layer_.padding, layer_.padding}; }

  Convolution layer_;
  Shape in_, out_;
  bool relu_;
  memory::desc weight_desc_, src_any_, dst_any_;
  dnnl::convolution_forward::primitive_desc forward_;
  memory src_, dst_, weight_, forward_weight_;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeConvolution(const Convolution& layer, const Shape& in,
                                          const Shape& out, bool relu) {
  return std::make_unique<ConvolutionLayer>(layer, in, out, relu);
}

}  // namespace foreshard::kernels::cpu
