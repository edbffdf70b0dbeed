// Dense layers by oneDNN's inner product. The input is flattened in canonical
// order, the one edge inside a network where a blocked layout ends; or each of its
// positions is a row.
#include "kernels/cpu/layers.h"

namespace foreshard::kernels::cpu {
namespace {

using dnnl::memory;

class DenseLayer : public CpuLayer {
 public:
  DenseLayer(const Dense& layer, const Shape& in, bool relu)
      : layer_(layer),
        in_(in),
        out_(layer.each_position ? Shape{in.height, in.width, layer.units} : Shape{1, 1, layer.units}),
        relu_(relu) {
    weight_desc_ = {{layer.units, Inputs()}, memory::data_type::f32, memory::format_tag::ab};
  }

  memory Forward(Plan& plan, const memory& src, bool training) override {
    examples_ = src.get_desc().dims()[0];
    src_ = plan.Alias(plan.Converted(src, CanonicalDesc(examples_, in_)), Rows(Inputs()));
    const auto kind =
        training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const dnnl::primitive_attr attributes = relu_ ? ReluAttributes(plan) : plan.Attributes();
    const memory::desc weight_any = AnyLayout(weight_desc_);
    forward_ = {has_bias() ? dnnl::inner_product_forward::desc(kind, Rows(Inputs()), weight_any,
                                                               RunDesc(layer_.units),
                                                               Rows(layer_.units))
                           : dnnl::inner_product_forward::desc(kind, Rows(Inputs()), weight_any,
                                                               Rows(layer_.units)),
                attributes, plan.engine()};

    plan.AddWait(layer_.weight, layer_.units * static_cast<uint64_t>(Inputs()));
    weight_ = plan.Bind(Plan::Base::kVector, layer_.weight, weight_desc_);
    forward_weight_ = plan.Converted(weight_, forward_.weights_desc());
    dst_ = plan.Allocate(CanonicalDesc(examples_, out_));
    std::unordered_map<int, memory> args = {{DNNL_ARG_SRC, src_},
                                            {DNNL_ARG_WEIGHTS, forward_weight_},
                                            {DNNL_ARG_DST, plan.Alias(dst_, Rows(layer_.units))}};
    if (has_bias()) {
      plan.AddWait(layer_.bias, layer_.units);
      args[DNNL_ARG_BIAS] = plan.Bind(Plan::Base::kVector, layer_.bias, RunDesc(layer_.units));
    }
    plan.Add(forward_, args);
    return dst_;
  }

  memory Backward(Plan& plan, const memory& diff_dst, bool input_gradient) override {
    const memory diff = relu_ ? AddReluBackward(plan, dst_, diff_dst) : diff_dst;
    const memory rows = plan.Alias(plan.Converted(diff, dst_.get_desc()), Rows(layer_.units));
    BackwardWeights(plan, rows);
    return input_gradient ? BackwardData(plan, rows) : memory();
  }

  bool reads_output() const override { return relu_; }
  bool overwrites_gradient() const override { return relu_; }

 private:
  void BackwardWeights(Plan& plan, const memory& rows) {
    const memory::desc weight_any = AnyLayout(weight_desc_);
    const dnnl::inner_product_backward_weights::primitive_desc pd(
        has_bias()
            ? dnnl::inner_product_backward_weights::desc(Rows(Inputs()), weight_any,
                                                         RunDesc(layer_.units), Rows(layer_.units))
            : dnnl::inner_product_backward_weights::desc(Rows(Inputs()), weight_any,
                                                         Rows(layer_.units)),
        plan.Attributes(), plan.engine(), forward_);
    AddWeightGradient(plan, pd, pd.diff_weights_desc(), pd.diff_bias_desc(), src_, rows,
                      {layer_.weight, weight_desc_, layer_.bias, RunDesc(layer_.units)});
  }

  memory BackwardData(Plan& plan, const memory& rows) {
    const dnnl::inner_product_backward_data::primitive_desc pd(
        {Rows(Inputs()), AnyLayout(weight_desc_), Rows(layer_.units)}, plan.Attributes(),
        plan.engine(), forward_);
    const memory weight = pd.weights_desc() == forward_.weights_desc()
                              ? forward_weight_
                              : plan.Converted(weight_, pd.weights_desc());
    const memory diff_src = plan.Allocate(CanonicalDesc(examples_, in_));
    plan.Add(pd, {{DNNL_ARG_WEIGHTS, weight},
                  {DNNL_ARG_DIFF_DST, rows},
                  {DNNL_ARG_DIFF_SRC, plan.Alias(diff_src, Rows(Inputs()))}});
    return diff_src;
  }

  bool has_bias() const { return layer_.bias != kNoTensor; }
  int64_t Inputs() const {
    return static_cast<int64_t>(layer_.each_position ? in_.channels : in_.elements());
  }
  memory::desc Rows(int64_t columns) const {
    const int64_t rows = examples_ * out_.height * out_.width;
    return {{rows, columns}, memory::data_type::f32, memory::format_tag::ab};
  }

  Dense layer_;
  Shape in_, out_;
  bool relu_;
  int64_t examples_ = 0;
  memory::desc weight_desc_;
  dnnl::inner_product_forward::primitive_desc forward_;
  memory src_, dst_, weight_, forward_weight_;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeDense(const Dense& layer, const Shape& in, bool relu) {
  return std::make_unique<DenseLayer>(layer, in, relu);
}

}  // namespace foreshard::kernels::cpu
