// Pooling by oneDNN: largest of windows, and the mean over all positions.
#include "kernels/cpu/layers.h"

namespace foreshard::kernels::cpu {
namespace {

using dnnl::memory;

class PoolLayer : public CpuLayer {
 public:
  PoolLayer(dnnl::algorithm algorithm, memory::dims stride, memory::dims size, int64_t padding,
            const Shape& out)
      : algorithm_(algorithm),
        stride_(std::move(stride)),
        size_(std::move(size)),
        padding_{padding, padding},
        out_(out) {}

  memory Forward(Plan& plan, const memory& src, bool training) override {
    src_desc_ = src.get_desc();
    const auto kind =
        training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const memory::desc dst_desc = AnyLayout(CanonicalDesc(src_desc_.dims()[0], out_));
    forward_ = dnnl::pooling_forward::primitive_desc(
        {kind, algorithm_, src_desc_, dst_desc, stride_, size_, padding_, padding_},
        plan.Attributes(), plan.engine());
    const memory dst = plan.Allocate(forward_.dst_desc());
    std::unordered_map<int, memory> args = {{DNNL_ARG_SRC, src}, {DNNL_ARG_DST, dst}};
    if (training && has_workspace()) {
      workspace_ = plan.Allocate(forward_.workspace_desc());
      args[DNNL_ARG_WORKSPACE] = workspace_;
    }
    plan.Add(forward_, args);
    return dst;
  }

  memory Backward(Plan& plan, const memory& diff_dst, bool input_gradient) override {
    if (!input_gradient) return {};
    const dnnl::pooling_backward::primitive_desc pd(
        {algorithm_, src_desc_, forward_.dst_desc(), stride_, size_, padding_, padding_},
        plan.Attributes(), plan.engine(), forward_);
    const memory in = plan.Converted(diff_dst, pd.diff_dst_desc());
    const memory diff_src = plan.Allocate(pd.diff_src_desc());
    std::unordered_map<int, memory> args = {{DNNL_ARG_DIFF_DST, in}, {DNNL_ARG_DIFF_SRC, diff_src}};
    if (has_workspace()) args[DNNL_ARG_WORKSPACE] = workspace_;
    plan.Add(pd, args);
    return diff_src;
  }

 private:
  // Where the largest of each window was.
  bool has_workspace() const { return algorithm_ == dnnl::algorithm::pooling_max; }

  dnnl::algorithm algorithm_;
  memory::dims stride_, size_, padding_;
  Shape out_;
  dnnl::pooling_forward::primitive_desc forward_;
  memory::desc src_desc_;
  memory workspace_;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeMaxPool(const MaxPool& layer, const Shape& out) {
  return std::make_unique<PoolLayer>(
      dnnl::algorithm::pooling_max, memory::dims{layer.stride, layer.stride},
      memory::dims{layer.size, layer.size}, layer.padding, out);
}

std::unique_ptr<CpuLayer> MakeGlobalAveragePool(const Shape& in, const Shape& out) {
  return std::make_unique<PoolLayer>(dnnl::algorithm::pooling_avg_exclude_padding,
                                     memory::dims{1, 1}, memory::dims{in.height, in.width},
                                     /*padding=*/0, out);
}

}  // namespace foreshard::kernels::cpu
