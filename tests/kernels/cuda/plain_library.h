// A LayerLibrary of plain loops on the emulated GPU: what cuDNN and cuBLASLt do, so that all that
// is built around them runs without them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/emulation/streams.h"
#include "kernels/cuda/layer_library.h"

namespace foreshard::kernels::cuda {

class PlainLibrary final : public LayerLibrary {
 public:
  explicit PlainLibrary(Storage storage) : storage_(storage) {}

  const std::string& description() const override { return description_; }
  Storage storage() const override { return storage_; }
  bool rounds_products() const override { return false; }
  // The pass that there is no algorithm for.
  void Refuse(ConvolutionPass pass) { refused_ = static_cast<int>(pass); }
  // As a library may that is being captured.
  void RefuseForwardCall(uint64_t number) { refused_call_ = number; }
  // Of every convolution that is asked about from now on.
  void SetWorkspace(uint64_t bytes) { workspace_bytes_ = bytes; }

  absl::StatusOr<uint64_t> ConvolutionWorkspace(ConvolutionPass pass,
                                                const ConvolutionShape& shape) override {
    if (static_cast<int>(pass) == refused_) return absl::InternalError("no algorithm: " + shape.Text());
    return workspace_bytes_;
  }
  absl::Status ConvolutionForward(const ConvolutionShape& s, const void* x, const void* w, void* y,
                                  const Workspace& workspace, NativeStream stream) override {
    if (++forward_calls_ == refused_call_) return absl::InternalError("not while a stream is captured");
    return Later(stream, workspace, [=, this] {
      std::vector<float> sums(uint64_t{s.examples} * s.out_height * s.out_width * s.filters);
      Taps(s, [&](uint64_t in, uint64_t filter, uint64_t out) { sums[out] += Load(x, in) * Load(w, filter); });
      for (uint64_t i = 0; i < sums.size(); ++i) Store(y, i, sums[i]);
    });
  }
  absl::Status ConvolutionBackwardData(const ConvolutionShape& s, const void* w, const void* dy,
                                       void* dx, const Workspace& workspace,
                                       NativeStream stream) override {
    return Later(stream, workspace, [=, this] {
      std::vector<float> sums(uint64_t{s.examples} * s.height * s.width * s.channels);
      Taps(s, [&](uint64_t in, uint64_t filter, uint64_t out) { sums[in] += Load(dy, out) * Load(w, filter); });
      for (uint64_t i = 0; i < sums.size(); ++i) Store(dx, i, sums[i]);
    });
  }
  absl::Status ConvolutionBackwardFilter(const ConvolutionShape& s, const void* x, const void* dy,
                                         bool accumulate, void* dw, const Workspace& workspace,
                                         NativeStream stream) override {
    return Later(stream, workspace, [=, this] {
      std::vector<float> sums(uint64_t{s.filters} * s.kernel * s.kernel * s.channels);
      Taps(s, [&](uint64_t in, uint64_t filter, uint64_t out) { sums[filter] += Load(x, in) * Load(dy, out); });
      for (uint64_t i = 0; i < sums.size(); ++i) {
        Store(dw, i, accumulate ? Load(dw, i) + sums[i] : sums[i]);
      }
    });
  }

  absl::Status PoolForward(const PoolShape& s, const void* x, void* y,
                           NativeStream stream) override {
    return Later(stream, {}, [=, this] {
      Windows(s, [&](uint64_t out, const std::vector<uint64_t>& in) {
        float sum = 0, most = -INFINITY;
        for (const uint64_t at : in) {
          sum += Load(x, at);
          most = std::max(most, Load(x, at));
        }
        Store(y, out, s.average ? sum / float(in.size()) : most);
      });
    });
  }
  absl::Status PoolBackward(const PoolShape& s, const void* x, const void* y, const void* dy,
                            void* dx, NativeStream stream) override {
    return Later(stream, {}, [=, this] {
      std::vector<float> sums(uint64_t{s.examples} * s.height * s.width * s.channels);
      Windows(s, [&](uint64_t out, const std::vector<uint64_t>& in) {
        for (const uint64_t at : in) {
          if (s.average) {
            sums[at] += Load(dy, out) / float(in.size());
          } else if (Load(x, at) == Load(y, out)) {
            sums[at] += Load(dy, out);
            break;
          }
        }
      });
      for (uint64_t i = 0; i < sums.size(); ++i) Store(dx, i, sums[i]);
    });
  }

  uint64_t DenseWorkspace() const override { return 512; }
  absl::Status DenseForward(const DenseShape& s, const void* x, const void* w, const void* bias,
                            bool relu, void* y, bool y_is_fp32, const Workspace& workspace,
                            NativeStream stream) override {
    return Later(stream, workspace, [=, this] {
      for (uint64_t n = 0; n < s.rows; ++n) {
        for (uint64_t o = 0; o < s.units; ++o) {
          float sum = 0;
          for (uint64_t i = 0; i < s.inputs; ++i) sum += Load(x, n * s.inputs + i) * Load(w, o * s.inputs + i);
          if (bias != nullptr) sum += y_is_fp32 ? static_cast<const float*>(bias)[o] : Load(bias, o);
          if (relu) sum = std::max(sum, 0.0f);
          if (y_is_fp32) {
            static_cast<float*>(y)[n * s.units + o] = sum;
          } else {
            Store(y, n * s.units + o, sum);
          }
        }
      }
    });
  }
  absl::Status DenseBackwardData(const DenseShape& s, const void* w, const void* dy, void* dx,
                                 const Workspace& workspace, NativeStream stream) override {
    return Later(stream, workspace, [=, this] {
      for (uint64_t n = 0; n < s.rows; ++n) {
        for (uint64_t i = 0; i < s.inputs; ++i) {
          float sum = 0;
          for (uint64_t o = 0; o < s.units; ++o) sum += Load(dy, n * s.units + o) * Load(w, o * s.inputs + i);
          Store(dx, n * s.inputs + i, sum);
        }
      }
    });
  }
  absl::Status DenseBackwardWeight(const DenseShape& s, const void* x, const void* dy,
                                   bool accumulate, float* dw, const Workspace& workspace,
                                   NativeStream stream) override {
    return Later(stream, workspace, [=, this] {
      for (uint64_t o = 0; o < s.units; ++o) {
        for (uint64_t i = 0; i < s.inputs; ++i) {
          float sum = accumulate ? dw[o * s.inputs + i] : 0;
          for (uint64_t n = 0; n < s.rows; ++n) sum += Load(x, n * s.inputs + i) * Load(dy, n * s.units + o);
          dw[o * s.inputs + i] = sum;
        }
      }
    });
  }

  absl::Status Multiply(uint64_t, uint64_t, uint64_t, const float*, const float*, float*,
                        NativeStream) override {
    return absl::UnimplementedError("no network asks for it");
  }

 private:
  // As a GPU would: not before somebody waits. What lies in the workspace is nobody's.
  static absl::Status Later(NativeStream stream, const Workspace& workspace,
                            std::function<void()> work) {
    return emulation::Give(stream, [workspace, work = std::move(work)] {
      if (workspace.bytes > 0) std::memset(workspace.data, 0x7f, workspace.bytes);
      work();
      return absl::OkStatus();
    });
  }

  float Load(const void* data, uint64_t i) const {
    if (storage_ == Storage::kFp32) return static_cast<const float*>(data)[i];
    const uint32_t bits = uint32_t{static_cast<const uint16_t*>(data)[i]} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  void Store(void* data, uint64_t i, float value) const {
    if (storage_ == Storage::kFp32) {
      static_cast<float*>(data)[i] = value;
      return;
    }
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }

  template <typename Visit>  // (input, filter, output) elements that are multiplied
  static void Taps(const ConvolutionShape& s, Visit visit) {
    for (uint64_t n = 0; n < s.examples; ++n)
      for (uint64_t h = 0; h < s.out_height; ++h)
        for (uint64_t w = 0; w < s.out_width; ++w)
          for (uint64_t kh = 0; kh < s.kernel; ++kh)
            for (uint64_t kw = 0; kw < s.kernel; ++kw) {
              const int64_t ih = int64_t(h * s.stride + kh) - s.padding;
              const int64_t iw = int64_t(w * s.stride + kw) - s.padding;
              if (ih < 0 || iw < 0 || ih >= s.height || iw >= s.width) continue;
              for (uint64_t o = 0; o < s.filters; ++o)
                for (uint64_t c = 0; c < s.channels; ++c)
                  visit(((n * s.height + ih) * s.width + iw) * s.channels + c,
                        ((o * s.kernel + kh) * s.kernel + kw) * s.channels + c,
                        ((n * s.out_height + h) * s.out_width + w) * s.filters + o);
            }
  }
  template <typename Visit>
  static void Windows(const PoolShape& s, Visit visit) {
    std::vector<uint64_t> in;
    for (uint64_t n = 0; n < s.examples; ++n)
      for (uint64_t h = 0; h < s.out_height; ++h)
        for (uint64_t w = 0; w < s.out_width; ++w)
          for (uint64_t c = 0; c < s.channels; ++c) {
            in.clear();
            for (uint64_t kh = 0; kh < s.window_height; ++kh)
              for (uint64_t kw = 0; kw < s.window_width; ++kw) {
                const int64_t ih = int64_t(h * s.stride + kh) - s.padding;
                const int64_t iw = int64_t(w * s.stride + kw) - s.padding;
                if (ih < 0 || iw < 0 || ih >= s.height || iw >= s.width) continue;
                in.push_back(((n * s.height + ih) * s.width + iw) * s.channels + c);
              }
            visit(((n * s.out_height + h) * s.out_width + w) * s.channels + c, in);
          }
  }

  const Storage storage_;
  const std::string description_ = "plain loops";
  int refused_ = -1;
  uint64_t forward_calls_ = 0, refused_call_ = 0;
  uint64_t workspace_bytes_ = 1024;
};

}  // namespace foreshard::kernels::cuda
