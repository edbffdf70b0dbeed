// Each of our kernels, and a copy on the device before and after them: bytes moved, each counted once,
// over time. Which copy they are set beside, parts.py says.
#include <algorithm>
#include <string>
#include <vector>

#include "common/core/catalogue.h"
#include "kernels/cuda/activations.h"
#include "kernels/cuda/gradient_norm.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/segment_codec.h"
#include "kernels/cuda/updates.h"
#include "tools/gpu_check/measure.h"

namespace foreshard::gpu_check {
namespace {

using namespace kernels::cuda;  // every name below is of it

constexpr uint64_t kMostElements = uint64_t{1} << 26;  // beyond any cache
constexpr uint64_t kPatternElements = uint64_t{1} << 20;
// Vectors that are there at one time, of four bytes an element.
constexpr uint64_t kVectors = 6;
constexpr CodecKey kKey = {.shared = 1, .own = 2};

// Vectors of one length in device memory, filled with the same numbers.
struct Vectors {
  uint64_t n = 0;
  DeviceArray<float> a, b, c, d;
  DeviceArray<uint8_t> bytes;
  DeviceArray<double> partial;
  DeviceArray<GradientNorm> norm;
  Stream stream;
};

template <typename T>
absl::Status Take(absl::StatusOr<T> made, T* to) {
  if (made.ok()) *to = *std::move(made);
  return made.status();
}

absl::Status Fill(Vectors& v) {
  std::vector<float> pattern(kPatternElements);
  uint32_t state = 1;
  for (float& x : pattern) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-35f;
  }
  for (const DeviceArray<float>* to : {&v.a, &v.b, &v.c, &v.d}) {
    for (uint64_t at = 0; at < v.n; at += kPatternElements) {
      const absl::Status copied = CopyToDevice(
          to->data() + at, pattern.data(), std::min(kPatternElements, v.n - at) * sizeof(float),
          v.stream.native());
      if (!copied.ok()) return copied;
    }
  }
  return v.stream.Synchronize();
}

absl::StatusOr<Vectors> Make() {
  Vectors v;
  if (const absl::Status used = UseDevice(0); !used.ok()) return used;
  const auto info = DeviceMemoryInfo();
  if (!info.ok()) return info.status();
  v.n = std::min(kMostElements, info->free_bytes / (2 * kVectors * sizeof(float)) / 4096 * 4096);
  absl::Status status = Take(Stream::Make(), &v.stream);
  for (DeviceArray<float>* to : {&v.a, &v.b, &v.c, &v.d}) {
    if (status.ok()) status = Take(DeviceArray<float>::Allocate(v.n), to);
  }
  if (status.ok()) status = Take(DeviceArray<uint8_t>::Allocate(v.n * sizeof(float)), &v.bytes);
  if (status.ok()) {
    status = Take(DeviceArray<double>::Allocate(GradientNormPartials(v.n)), &v.partial);
  }
  if (status.ok()) status = Take(DeviceArray<GradientNorm>::Allocate(1), &v.norm);
  if (status.ok()) status = Fill(v);
  if (!status.ok()) return status;
  return v;
}

class Bench {
 public:
  explicit Bench(Vectors* v) : v_(*v), s_(v->stream.native()) {}

  absl::Status Run() {
    // The first of all would be measured on a GPU that is only leaving its idle clocks.
    absl::Status status = WarmUp(s_, [&] { return GiveCopy(); });
    if (status.ok()) status = RunCopy();
    for (const CodecTraits& traits : Codecs()) {
      if (status.ok()) status = RunCodec(traits);
    }
    if (status.ok()) status = RunOthers();
    return status.ok() ? RunCopy() : status;
  }

 private:
  absl::Status One(const std::string& name, double bytes, absl::FunctionRef<absl::Status()> give) {
    const auto seconds = SecondsOf(s_, give);
    if (!seconds.ok()) return seconds.status();
    Print(Line("kernels", name)
              .Number("elements", static_cast<double>(v_.n))
              .Number("seconds", *seconds)
              .Number("bytes_per_second", bytes / *seconds));
    return absl::OkStatus();
  }

  absl::Status GiveCopy() {
    return CopyOnDevice(v_.b.data(), v_.a.data(), v_.n * sizeof(float), s_);
  }

  absl::Status RunCopy() {
    return One("copy", 2.0 * static_cast<double>(v_.n * sizeof(float)), [&] { return GiveCopy(); });
  }

  absl::Status RunCodec(const CodecTraits& traits) {
    const CodecSet codecs{CodecSettings{}};
    const Codec& codec = *codecs.Find(traits.name);
    std::vector<Block> blocks;
    for (uint64_t at = 0; at < v_.n; at += kMaxBlockElements) {
      blocks.push_back({.offset = at,
                        .elements = static_cast<uint32_t>(
                            std::min<uint64_t>(kMaxBlockElements, v_.n - at)),
                        .decayed = true});
    }
    const auto made = SegmentCodec::Make(codec, blocks, s_);
    if (!made.ok()) return made.status();
    const std::string name(traits.name);
    const auto encoded = static_cast<double>(made->encoded_bytes());
    const double f = static_cast<double>(v_.n) * sizeof(float);
    if (const absl::Status filled = Fill(v_); !filled.ok()) return filled;
    absl::Status status = One("encode/" + name, 3 * f + encoded, [&] {
      return made->Encode(v_.a.data(), v_.b.data(), kKey, v_.bytes.data(), nullptr, s_);
    });
    if (!status.ok()) return status;
    status = One("decode/" + name, f + encoded, [&] {
      return made->Decode(v_.bytes.data(), kKey, v_.c.data(), s_);
    });
    if (!status.ok()) return status;
    const bool values = codec.replies_carry_values();
    status = One("reply/" + name, (values ? f : 2 * f) + encoded, [&] {
      return made->DecodeReply(v_.bytes.data(), kKey, v_.c.data(), s_);
    });
    if (!status.ok()) return status;
    return One("round_result/" + name, 4 * f + encoded, [&] {
      return made->DecodeFrozenAdam(v_.bytes.data(), kKey, {.eta = 1e-9f}, v_.c.data(), v_.a.data(),
                                    v_.d.data(), s_);
    });
  }

  absl::Status RunOthers() {
    if (const absl::Status filled = Fill(v_); !filled.ok()) return filled;
    const double f = static_cast<double>(v_.n) * sizeof(float);
    std::vector<Block> blocks;
    for (uint64_t at = 0; at < v_.n; at += kMaxBlockElements) {
      blocks.push_back({.offset = at,
                        .elements = static_cast<uint32_t>(
                            std::min<uint64_t>(kMaxBlockElements, v_.n - at)),
                        .decayed = true});
    }
    const auto table = SegmentCodec::Make(*FindCodec(CodecId::kNone), blocks, s_);
    if (!table.ok()) return table.status();
    absl::Status status = One("dana_slim_half", 5 * f, [&] {
      return DanaSlimHalf(table->table(), {.momentum = 0.5f, .weight_decay = 1e-9f}, v_.a.data(),
                          v_.b.data(), v_.c.data(), nullptr, s_);
    });
    if (status.ok()) {
      status = One("mix_momentum", 3 * f, [&] {
        return MixMomentum(0.9f, v_.n, v_.a.data(), v_.c.data(), nullptr, s_);
      });
    }
    if (status.ok()) {
      status = One("local_sgd_step", 5 * f, [&] {
        return LocalSgdStep(table->table(), {.momentum = 0.5f, .weight_decay = 1e-9f, .eta = 1e-9f},
                            v_.a.data(), v_.b.data(), v_.c.data(), nullptr, s_);
      });
    }
    if (status.ok()) {
      status = One("elastic_difference", 4 * f, [&] {
        return ElasticDifference(1e-9f, v_.n, v_.a.data(), v_.b.data(), v_.c.data(),
                                 &v_.norm.data()->not_finite, s_);
      });
    }
    if (status.ok()) {
      status = One("gradient_norm", f, [&] {
        return GradientNormOnDevice({.gradient = v_.a.data(), .elements = v_.n}, v_.partial.data(),
                                    v_.norm.data(), s_);
      });
    }
    if (status.ok()) {
      status = One("check_finite", f, [&] {
        return CheckFinite(v_.a.data(), v_.n, &v_.norm.data()->not_finite, s_);
      });
    }
    if (status.ok()) {
      status = One("layer_sum_relu", 3 * f, [&] {
        return Sum(Storage::kFp32, v_.n, v_.a.data(), v_.b.data(), v_.c.data(), true, s_);
      });
    }
    if (status.ok()) {
      status = One("layer_relu_gradient", 3 * f, [&] {
        return ReluGradient(Storage::kFp32, v_.n, v_.a.data(), v_.b.data(), v_.c.data(), s_);
      });
    }
    return status;
  }

  Vectors& v_;
  const NativeStream s_;
};

}  // namespace

absl::Status BenchKernels() {
  auto vectors = Make();
  if (!vectors.ok()) return vectors.status();
  return Bench(&*vectors).Run();
}

}  // namespace foreshard::gpu_check
