// Layers as steps of a plan. A layer object lives while one plan is built: it
// adds its forward steps, then its backward steps, which may use what forward
// left in the arena. Activations are 4-D, oneDNN's dimensions {n, c, h, w} in
// whatever layout the producer chose.
//
//   auto layer = MakeCpuLayer(spec, i, in, out, /*relu=*/false);
//   dnnl::memory dst = layer->Forward(plan, src, /*training=*/true);
//   dnnl::memory diff_src = layer->Backward(plan, diff_dst, /*input_gradient=*/true);
#pragma once

#include <memory>

#include "kernels/cpu/plan.h"

namespace foreshard::kernels::cpu {

class CpuLayer {
 public:
  virtual ~CpuLayer() = default;

  // Adds the steps that make the output from `src`, and waits for the layer's
  // tensors before the first of them that reads one.
  virtual dnnl::memory Forward(Plan& plan, const dnnl::memory& src, bool training) = 0;

  // Adds the steps that make the gradient of the layer's tensors and, where
  // wanted, of `src`, in memory of its own; the caller releases `diff_dst`. After
  // Forward in training mode only. The result is empty where it is not wanted.
  virtual dnnl::memory Backward(Plan& plan, const dnnl::memory& diff_dst, bool input_gradient) = 0;

  // Whether Backward reads what Forward returned, which then must stay as it is.
  virtual bool reads_output() const { return false; }
  // Whether Backward may overwrite `diff_dst`, which then must be nobody else's, and return it.
  virtual bool overwrites_gradient() const { return false; }
  // Whether Forward overwrites `src`, which then must be nobody else's, and returns it.
  virtual bool overwrites_input() const { return false; }
};

// One file each. `relu`: max(0, .) follows and is computed in the same pass.
std::unique_ptr<CpuLayer> MakeConvolution(const Convolution& layer, const Shape& in,
                                          const Shape& out, bool relu);
std::unique_ptr<CpuLayer> MakeBatchNorm(const BatchNorm& layer, const Shape& in, bool relu);
std::unique_ptr<CpuLayer> MakeDense(const Dense& layer, const Shape& in, bool relu);
std::unique_ptr<CpuLayer> MakeRelu();
std::unique_ptr<CpuLayer> MakeMaxPool(const MaxPool& layer, const Shape& out);
std::unique_ptr<CpuLayer> MakeGlobalAveragePool(const Shape& in, const Shape& out);
std::unique_ptr<CpuLayer> MakeSubsample(const Subsample& layer, const Shape& in, const Shape& out);
// `tied`: another layer writes the gradient of the table of tokens first.
std::unique_ptr<CpuLayer> MakeEmbedding(const Embedding& layer, const Shape& out, bool tied);
std::unique_ptr<CpuLayer> MakeLayerNorm(const LayerNorm& layer, const Shape& in);
// `number`: the layer's in the network's list, which its draws depend on.
std::unique_ptr<CpuLayer> MakeAttention(const Attention& layer, uint32_t number, const Shape& in,
                                        const Shape& out);
std::unique_ptr<CpuLayer> MakeDropout(const Dropout& layer, uint32_t number, const Shape& in);
std::unique_ptr<CpuLayer> MakeGelu();
std::unique_ptr<CpuLayer> MakeTanh();
// TargetPositions, or FirstPosition.
std::unique_ptr<CpuLayer> MakeSelect(bool first, const Shape& in, const Shape& out);

// Whether a Relu after this layer is computed in the same pass.
bool TakesRelu(const Layer& layer);
// Layer i of a network, of every kind but From, AddFrom and SideLoss, which are wiring:
// network_builder.h.
std::unique_ptr<CpuLayer> MakeCpuLayer(const NetworkSpec& spec, size_t i, const Shape& in,
                                       const Shape& out, bool relu);

// Descriptions of fp32 memory in canonical layout: activations of n examples,
// and a run of floats.
dnnl::memory::desc CanonicalDesc(int64_t examples, const Shape& shape);
dnnl::memory::desc RunDesc(int64_t elements);
// The same dimensions, layout left to oneDNN.
dnnl::memory::desc AnyLayout(const dnnl::memory::desc& desc);
// Attributes of a forward step that ends with max(0, .).
dnnl::primitive_attr ReluAttributes(const Plan& plan);
// A layer's weight, and its bias or kNoTensor: where they are in the flat vector, and
// their canonical layout.
struct WeightAndBias {
  uint64_t weight = 0;
  dnnl::memory::desc weight_desc;
  uint64_t bias = kNoTensor;
  dnnl::memory::desc bias_desc;
};
// Adds the step `pd`, a backward-weights primitive with results of these layouts, and
// those that bring its results into the gradient.
void AddWeightGradient(Plan& plan, const dnnl::primitive_desc_base& pd,
                       const dnnl::memory::desc& diff_weight, const dnnl::memory::desc& diff_bias,
                       const dnnl::memory& src, const dnnl::memory& diff_dst,
                       const WeightAndBias& tensors);
// Adds the step that writes a + b to `to`, all in the layout of a, which may be `to`;
// `relu`: max(0, .) of it.
void AddSum(Plan& plan, const dnnl::memory& a, const dnnl::memory& b, const dnnl::memory& to,
            bool relu);
// Adds the step that zeroes `diff` where `dst` = max(0, .) is 0, in place where
// the layouts agree; returns where the result is.
dnnl::memory AddReluBackward(Plan& plan, const dnnl::memory& dst, const dnnl::memory& diff);

}  // namespace foreshard::kernels::cpu
