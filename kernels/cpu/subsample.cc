// The shortcut without tensors: a copy of some positions into some channels. oneDNN has
// no such primitive; the copy runs in the layout that its input has, plain or in blocks
// of channels.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/layers.h"

namespace foreshard::kernels::cpu {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

// A layout of activations: positions, each with `block` channels side by side; all
// positions of one block of channels follow one another. Plain NHWC is one block.
struct Layout {
  Tag tag = Tag::nhwc;
  uint64_t block = 0;
};

memory::desc Desc(int64_t examples, const Shape& shape, Tag tag) {
  return {{examples, shape.channels, shape.height, shape.width}, memory::data_type::f32, tag};
}

// That of `desc`, or plain NHWC, which it then is converted to.
Layout LayoutOf(const memory::desc& desc, int64_t examples, const Shape& shape) {
  for (const Layout& layout : {Layout{Tag::nChw16c, 16}, Layout{Tag::nChw8c, 8}}) {
    if (desc == Desc(examples, shape, layout.tag)) return layout;
  }
  return {Tag::nhwc, 0};
}

// Positions of floats in memory of one layout.
struct Positions {
  Positions(const Shape& from, uint64_t channel_block)
      : shape(from), block(channel_block == 0 ? from.channels : channel_block) {
    blocks = (shape.channels + block - 1) / block;
  }
  uint64_t of(uint64_t n, uint64_t h, uint64_t w, uint64_t c) const {
    return (((n * blocks + c / block) * shape.height + h) * shape.width + w) * block + c % block;
  }
  Shape shape;
  uint64_t block, blocks;
};

class SubsampleLayer : public CpuLayer {
 public:
  SubsampleLayer(const Subsample& layer, const Shape& in, const Shape& out)
      : stride_(layer.stride), in_(in), out_(out) {}

  memory Forward(Plan& plan, const memory& src, bool training) override {
    examples_ = src.get_desc().dims()[0];
    layout_ = LayoutOf(src.get_desc(), examples_, in_);
    const memory from = plan.Converted(src, Desc(examples_, in_, layout_.tag));
    const memory to = plan.Allocate(Desc(examples_, out_, layout_.tag));
    plan.AddCall([this_copy = *this, from, to] { this_copy.Copy(from, to, false); });
    return to;
  }

  memory Backward(Plan& plan, const memory& diff_dst, bool input_gradient) override {
    if (!input_gradient) return {};
    const memory from = plan.Converted(diff_dst, Desc(examples_, out_, layout_.tag));
    const memory to = plan.Allocate(Desc(examples_, in_, layout_.tag));
    plan.AddCall([this_copy = *this, from, to] { this_copy.Copy(from, to, true); });
    return to;
  }

 private:
  // Forward from input to output, backward from the output's gradient to the input's: the
  // same pairs of places, and zeros everywhere else.
  void Copy(const memory& from, const memory& to, bool backward) const {
    const auto* source = static_cast<const float*>(from.get_data_handle());
    auto* destination = static_cast<float*>(to.get_data_handle());
    const Positions in(in_, layout_.block), out(out_, layout_.block);
    const uint64_t before = (out_.channels - in_.channels) / 2;
    const Positions& written = backward ? in : out;
    const uint64_t floats = written.blocks * written.block * written.shape.height *
                            written.shape.width;  // of one example, padding included
    const auto examples = static_cast<uint64_t>(examples_);
#pragma omp parallel for
    for (uint64_t n = 0; n < examples; ++n) {
      std::fill_n(destination + n * floats, floats, 0.0f);
      for (uint64_t first = 0; first < in_.channels;) {
        // Channels side by side in both.
        const uint64_t second = first + before;
        const uint64_t run =
            std::min({in_.channels - first, in.block - first % in.block,
                      out.block - second % out.block});
        for (uint64_t h = 0; h < out_.height; ++h) {
          for (uint64_t w = 0; w < out_.width; ++w) {
            const uint64_t a = in.of(n, h * stride_, w * stride_, first);
            const uint64_t b = out.of(n, h, w, second);
            std::copy_n(source + (backward ? b : a), run, destination + (backward ? a : b));
          }
        }
        first += run;
      }
    }
  }

  uint64_t stride_;
  Shape in_, out_;
  int64_t examples_ = 0;
  Layout layout_;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeSubsample(const Subsample& layer, const Shape& in,
                                        const Shape& out) {
  return std::make_unique<SubsampleLayer>(layer, in, out);
}

}  // namespace foreshard::kernels::cpu
