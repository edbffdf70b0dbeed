// The sum of three tables' rows, and the sums of gradients that fall on each row. The latter are
// taken in the order of the batch, so threads divide the channels and not the positions.
#include <algorithm>

#include "kernels/cpu/layers.h"

namespace foreshard::kernels::cpu {
namespace {

using dnnl::memory;

constexpr uint64_t kChannelsAtOnce = 64;

class EmbeddingLayer : public CpuLayer {
 public:
  EmbeddingLayer(const Embedding& layer, const Shape& out, bool tied)
      : layer_(layer), out_(out), tied_(tied) {}

  memory Forward(Plan& plan, const memory& src, bool training) override {
    examples_ = static_cast<uint64_t>(src.get_desc().dims()[0]);
    const memory dst = plan.Allocate(CanonicalDesc(src.get_desc().dims()[0], out_));
    const auto table = [&](uint64_t offset, uint64_t rows) {
      plan.AddWait(offset, rows * layer_.channels);
      return plan.Bind(Plan::Base::kVector, offset, RunDesc(Elements(rows)));
    };
    const memory tokens = table(layer_.token, layer_.tokens);
    const memory positions = table(layer_.position, layer_.positions);
    const memory segments = table(layer_.segment, layer_.segments);
    plan.AddCall([&plan, dst, tokens, positions, segments, length = uint64_t{out_.height},
                  rows = examples_ * out_.height, channels = uint64_t{layer_.channels}] {
      const TextView& text = plan.text();
      auto* to = static_cast<float*>(dst.get_data_handle());
      const auto* token = static_cast<const float*>(tokens.get_data_handle());
      const auto* position = static_cast<const float*>(positions.get_data_handle());
      const auto* segment = static_cast<const float*>(segments.get_data_handle());
#pragma omp parallel for
      for (uint64_t row = 0; row < rows; ++row) {
        const float* a = token + static_cast<uint64_t>(text.tokens[row]) * channels;
        const float* b = position + row % length * channels;
        const float* c = segment + static_cast<uint64_t>(text.segments[row]) * channels;
        float* out = to + row * channels;
#pragma GCC ivdep
        for (uint64_t i = 0; i < channels; ++i) out[i] = a[i] + c[i] + b[i];
      }
    });
    return dst;
  }

  memory Backward(Plan& plan, const memory& diff_dst, bool input_gradient) override {
    const memory diff = plan.Converted(diff_dst, CanonicalDesc(static_cast<int64_t>(examples_), out_));
    const auto table = [&](uint64_t offset, uint64_t rows) {
      return plan.Bind(Plan::Base::kGradient, offset, RunDesc(Elements(rows)));
    };
    const memory tokens = table(layer_.token, layer_.tokens);
    const memory positions = table(layer_.position, layer_.positions);
    const memory segments = table(layer_.segment, layer_.segments);
    plan.AddCall([&plan, diff, tokens, positions, segments, layer = layer_, tied = tied_,
                  length = uint64_t{out_.height}, rows = examples_ * out_.height] {
      const TextView& text = plan.text();
      const auto* from = static_cast<const float*>(diff.get_data_handle());
      auto* token = static_cast<float*>(tokens.get_data_handle());
      auto* position = static_cast<float*>(positions.get_data_handle());
      auto* segment = static_cast<float*>(segments.get_data_handle());
      const uint64_t channels = layer.channels;
      if (!plan.accumulating()) {
        if (!tied) std::fill_n(token, layer.tokens * channels, 0.0f);
        std::fill_n(position, layer.positions * channels, 0.0f);
        std::fill_n(segment, layer.segments * channels, 0.0f);
      }
#pragma omp parallel for
      for (uint64_t begin = 0; begin < channels; begin += kChannelsAtOnce) {
        const uint64_t end = std::min(channels, begin + kChannelsAtOnce);
        for (uint64_t row = 0; row < rows; ++row) {
          const float* g = from + row * channels;
          float* a = token + static_cast<uint64_t>(text.tokens[row]) * channels;
          float* b = position + row % length * channels;
          float* c = segment + static_cast<uint64_t>(text.segments[row]) * channels;
#pragma GCC ivdep
          for (uint64_t i = begin; i < end; ++i) {
            a[i] += g[i];
            b[i] += g[i];
            c[i] += g[i];
          }
        }
      }
    });
    return {};
  }

 private:
  int64_t Elements(uint64_t rows) const { return static_cast<int64_t>(rows * layer_.channels); }

  Embedding layer_;
  Shape out_;
  bool tied_;
  uint64_t examples_ = 0;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeEmbedding(const Embedding& layer, const Shape& out, bool tied) {
  return std::make_unique<EmbeddingLayer>(layer, out, tied);
}

}  // namespace foreshard::kernels::cpu
