// GELU and tanh by oneDNN, which differentiates both from their input.
#include "kernels/cpu/layers.h"

namespace foreshard::kernels::cpu {
namespace {

using dnnl::memory;

class ActivationLayer : public CpuLayer {
 public:
  explicit ActivationLayer(dnnl::algorithm algorithm) : algorithm_(algorithm) {}

  memory Forward(Plan& plan, const memory& src, bool training) override {
    src_ = src;
    const memory::desc desc = src.get_desc();
    const auto kind =
        training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    forward_ = {{kind, algorithm_, desc, 0.0f, 0.0f}, plan.Attributes(), plan.engine()};
    const memory dst = plan.Allocate(desc);
    plan.Add(forward_, {{DNNL_ARG_SRC, src}, {DNNL_ARG_DST, dst}});
    return dst;
  }

  memory Backward(Plan& plan, const memory& diff_dst, bool input_gradient) override {
    if (!input_gradient) return {};
    const memory::desc desc = src_.get_desc();
    const dnnl::eltwise_backward::primitive_desc pd({algorithm_, desc, desc, 0.0f, 0.0f},
                                                    plan.Attributes(), plan.engine(), forward_);
    const memory in = plan.Converted(diff_dst, desc);
    const memory diff_src = plan.Allocate(desc);
    plan.Add(pd, {{DNNL_ARG_SRC, src_}, {DNNL_ARG_DIFF_DST, in}, {DNNL_ARG_DIFF_SRC, diff_src}});
    return diff_src;
  }

 private:
  dnnl::algorithm algorithm_;
  dnnl::eltwise_forward::primitive_desc forward_;
  memory src_;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeGelu() {
  return std::make_unique<ActivationLayer>(dnnl::algorithm::eltwise_gelu_erf);
}

std::unique_ptr<CpuLayer> MakeTanh() {
  return std::make_unique<ActivationLayer>(dnnl::algorithm::eltwise_tanh);
}

}  // namespace foreshard::kernels::cpu
