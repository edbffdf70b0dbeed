// Attention, one head of one example at a time, a block of rows at a time: products by oneDNN,
// the softmax ours. Of the matrix of positions x positions only a block a thread is ever there;
// backward computes it again from each row's logarithm of its sum, the one thing that is kept
// (Dao et al., arXiv 2205.14135). So memory is examples * heads * positions numbers, and what is
// padding costs nothing.
//
// With S = Q K' / sqrt(d), P = softmax(S), M dropout and O = M(P) V:
//   dV = M(P)' dO;  dP = M(dO V');  dS = P (dP - rowsum(P dP));  dQ = dS K / sqrt(d);  dK = dS' Q / sqrt(d)
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/cpu/drop.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/layers.h"
#include "kernels/cpu/softmax.h"
#include "kernels/cpu/vector_math.h"

namespace foreshard::kernels::cpu {
namespace {

using dnnl::memory;

constexpr int64_t kRows = 128;  // of a block

// p[i] * (g[i] - sum) * scale, to g.
FORESHARD_ISA_INLINE void SoftmaxBackwardBody(const float* p, float* g, float sum, float scale,
                                              uint64_t n) {
#pragma GCC ivdep
  for (uint64_t i = 0; i < n; ++i) g[i] = p[i] * (g[i] - sum) * scale;
}
FORESHARD_ISA_VARIANTS(void, SoftmaxBackward,
                       (const float* p, float* g, float sum, float scale, uint64_t n),
                       (p, g, sum, scale, n))

// In sixteen lanes, as softmax.h sums.
FORESHARD_ISA_INLINE float DotBody(const float* a, const float* b, uint64_t n) {
  constexpr uint64_t kLanes = 16;
  float lanes[kLanes] = {};
  uint64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (uint64_t l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  for (; i < n; ++i) lanes[i % kLanes] += a[i] * b[i];
  double sum = 0;
  for (float lane : lanes) sum += lane;
  return static_cast<float>(sum);
}
FORESHARD_ISA_VARIANTS(float, Dot, (const float* a, const float* b, uint64_t n), (a, b, n))

// A matrix inside another: its rows are `stride` floats apart.
struct Rows {
  const float* data;
  int64_t stride;
};

class Products {
 public:
  // c (+)= factor a b, a [m, k], b [k, n] or as they are named transposed.
  void Add(char a_form, char b_form, int64_t m, int64_t n, int64_t k, float factor, const Rows& a,
           const Rows& b, float* c, int64_t c_stride, bool add) {
    const dnnl_status_t status = dnnl_sgemm(a_form, b_form, m, n, k, factor, a.data, a.stride, b.data,
                                            b.stride, add ? 1.0f : 0.0f, c, c_stride);
    if (status != dnnl_success) failed_ = true;
  }
  bool failed() const { return failed_; }

 private:
  std::atomic<bool> failed_ = false;
};

// One step, forward or backward, as it runs: pointers to what the plan has placed.
struct Step {
  uint64_t heads = 1, head_channels = 0, positions = 0;
  uint32_t number = 0;
  float dropout = 0;
  const float* qkv = nullptr;      // [examples, positions, 3 channels]
  float* logarithms = nullptr;     // [examples, heads, positions]; null in inference
  float* scratch = nullptr;        // [threads, 2, kRows, positions]

  uint64_t channels() const { return heads * head_channels; }
  int64_t stride() const { return static_cast<int64_t>(3 * channels()); }
  float factor() const { return 1.0f / std::sqrt(static_cast<float>(head_channels)); }
  // Where Q (0), K (1) or V (2) of a head begins.
  uint64_t Begin(uint64_t example, uint64_t head, uint64_t which) const {
    return example * positions * 3 * channels() + which * channels() + head * head_channels;
  }
  float* Block(uint64_t which) const {
    return scratch + (static_cast<uint64_t>(omp_get_thread_num()) * 2 + which) * kRows * positions;
  }
  void DropRow(const uint64_t* keys, uint64_t example, uint64_t head, uint64_t row, uint64_t n,
               float* values) const {
    if (dropout == 0 || keys == nullptr) return;
    Drop({keys[example], number, dropout}, (head * positions + row) * positions, n, values);
  }
};

void ForwardHead(const Step& step, const TextView& text, uint64_t example, uint64_t head, bool drop,
                 float* out, Products& products) {
  const int64_t length = text.lengths[example], d = static_cast<int64_t>(step.head_channels);
  const auto channels = static_cast<int64_t>(step.channels());
  const Rows q{step.qkv + step.Begin(example, head, 0), step.stride()};
  const Rows k{step.qkv + step.Begin(example, head, 1), step.stride()};
  const Rows v{step.qkv + step.Begin(example, head, 2), step.stride()};
  float* const to = out + example * step.positions * step.channels() + head * step.head_channels;
  float* const scores = step.Block(0);
  for (int64_t first = 0; first < length; first += kRows) {
    const int64_t rows = std::min(kRows, length - first);
    products.Add('N', 'T', rows, length, d, step.factor(), {q.data + first * q.stride, q.stride}, k, scores,
                 length, false);
    for (int64_t r = 0; r < rows; ++r) {
      float* const row = scores + r * length;
      const auto n = static_cast<uint64_t>(length);
      const float largest = Largest(row, n);
      const double sum = ExpAndSum(row, n, largest, row);
      Scale(row, static_cast<float>(1.0 / sum), n);
      const auto at = static_cast<uint64_t>(first + r);
      if (step.logarithms != nullptr) {
        step.logarithms[(example * step.heads + head) * step.positions + at] =
            largest + static_cast<float>(std::log(sum));
      }
      if (drop) step.DropRow(text.keys, example, head, at, n, row);
    }
    products.Add('N', 'N', rows, d, length, 1.0f, {scores, length}, v, to + first * channels, channels, false);
  }
  for (int64_t p = length; p < static_cast<int64_t>(step.positions); ++p) {
    std::fill_n(to + p * channels, step.head_channels, 0.0f);
  }
}

void BackwardHead(const Step& step, const TextView& text, uint64_t example, uint64_t head,
                  const float* diff_out, float* diff, Products& products) {
  const int64_t length = text.lengths[example], d = static_cast<int64_t>(step.head_channels);
  const auto channels = static_cast<int64_t>(step.channels());
  const int64_t stride = step.stride();
  const Rows q{step.qkv + step.Begin(example, head, 0), stride};
  const Rows k{step.qkv + step.Begin(example, head, 1), stride};
  const Rows v{step.qkv + step.Begin(example, head, 2), stride};
  float* const dq = diff + step.Begin(example, head, 0);
  float* const dk = diff + step.Begin(example, head, 1);
  float* const dv = diff + step.Begin(example, head, 2);
  const float* const from =
      diff_out + example * step.positions * step.channels() + head * step.head_channels;
  float *const p = step.Block(0), *const g = step.Block(1);
  for (int64_t first = 0; first < length; first += kRows) {
    const int64_t rows = std::min(kRows, length - first);
    const Rows q_rows{q.data + first * stride, stride};
    const Rows out_rows{from + first * channels, channels};
    products.Add('N', 'T', rows, length, d, step.factor(), q_rows, k, p, length, false);
    products.Add('N', 'T', rows, length, d, 1.0f, out_rows, v, g, length, false);
    for (int64_t r = 0; r < rows; ++r) {
      float *const p_row = p + r * length, *const g_row = g + r * length;
      const auto n = static_cast<uint64_t>(length), at = static_cast<uint64_t>(first + r);
      ExpAndSum(p_row, n, step.logarithms[(example * step.heads + head) * step.positions + at], p_row);
      step.DropRow(text.keys, example, head, at, n, g_row);
      SoftmaxBackward(p_row, g_row, Dot(p_row, g_row, n), step.factor(), n);
      step.DropRow(text.keys, example, head, at, n, p_row);
    }
    products.Add('T', 'N', length, d, rows, 1.0f, {p, length}, out_rows, dv, stride, first > 0);
    products.Add('N', 'N', rows, d, length, 1.0f, {g, length}, k, dq + first * stride, stride, false);
    products.Add('T', 'N', length, d, rows, 1.0f, {g, length}, q_rows, dk, stride, first > 0);
  }
  for (float* part : {dq, dk, dv}) {
    for (int64_t at = length; at < static_cast<int64_t>(step.positions); ++at) {
      std::fill_n(part + at * stride, step.head_channels, 0.0f);
    }
  }
}

class AttentionLayer : public CpuLayer {
 public:
  AttentionLayer(const Attention& layer, uint32_t number, const Shape& in, const Shape& out)
      : layer_(layer), number_(number), in_(in), out_(out) {}

  memory Forward(Plan& plan, const memory& src, bool training) override {
    examples_ = src.get_desc().dims()[0];
    src_ = plan.Converted(src, CanonicalDesc(examples_, in_));
    const memory dst = plan.Allocate(CanonicalDesc(examples_, out_));
    if (training) logarithms_ = plan.Allocate(RunDesc(examples_ * layer_.heads * in_.height));
    const memory scratch = Scratch(plan);
    plan.AddCall([&plan, dst, scratch, training, this_copy = *this] {
      const Step step = this_copy.AtRun(scratch);
      auto* out = static_cast<float*>(dst.get_data_handle());
      Products products;
      const int64_t tasks = this_copy.examples_ * this_copy.layer_.heads;
#pragma omp parallel for
      for (int64_t task = 0; task < tasks; ++task) {
        const auto t = static_cast<uint64_t>(task);
        ForwardHead(step, plan.text(), t / step.heads, t % step.heads, training, out, products);
      }
      if (products.failed()) plan.NoteFailure("a product of attention");
    });
    plan.Release(scratch);
    return dst;
  }

  memory Backward(Plan& plan, const memory& diff_dst, bool input_gradient) override {
    if (!input_gradient) return {};
    const memory from = plan.Converted(diff_dst, CanonicalDesc(examples_, out_));
    const memory diff_src = plan.Allocate(CanonicalDesc(examples_, in_));
    const memory scratch = Scratch(plan);
    plan.AddCall([&plan, from, diff_src, scratch, this_copy = *this] {
      const Step step = this_copy.AtRun(scratch);
      const auto* diff_out = static_cast<const float*>(from.get_data_handle());
      auto* diff = static_cast<float*>(diff_src.get_data_handle());
      Products products;
      const int64_t tasks = this_copy.examples_ * this_copy.layer_.heads;
#pragma omp parallel for
      for (int64_t task = 0; task < tasks; ++task) {
        const auto t = static_cast<uint64_t>(task);
        BackwardHead(step, plan.text(), t / step.heads, t % step.heads, diff_out, diff, products);
      }
      if (products.failed()) plan.NoteFailure("a product of attention's gradient");
    });
    plan.Release(scratch);
    plan.Release(logarithms_);
    return diff_src;
  }

 private:
  memory Scratch(Plan& plan) const {
    return plan.Allocate(RunDesc(int64_t{omp_get_max_threads()} * 2 * kRows * in_.height));
  }

  Step AtRun(const memory& scratch) const {
    Step step{.heads = layer_.heads,
              .head_channels = out_.channels / layer_.heads,
              .positions = in_.height,
              .number = number_,
              .dropout = layer_.dropout};
    step.qkv = static_cast<const float*>(src_.get_data_handle());
    if (logarithms_) step.logarithms = static_cast<float*>(logarithms_.get_data_handle());
    step.scratch = static_cast<float*>(scratch.get_data_handle());
    return step;
  }

  Attention layer_;
  uint32_t number_;
  Shape in_, out_;
  int64_t examples_ = 0;
  memory src_, logarithms_;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeAttention(const Attention& layer, uint32_t number, const Shape& in,
                                        const Shape& out) {
  return std::make_unique<AttentionLayer>(layer, number, in, out);
}

}  // namespace foreshard::kernels::cpu
