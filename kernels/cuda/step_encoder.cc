#include "kernels/cuda/step_encoder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/updates.h"
#include "kernels/worker_half_reference.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

// Of a segment's bytes, for the widest copies.
constexpr uint64_t kAlignedBytes = 256;

// The one rule with a half so far (worker_half.h).
constexpr char kDanaSlim[] = "dana_slim";

template <typename T>
absl::Status Take(absl::StatusOr<T> made, T* to) {
  if (made.ok()) *to = *std::move(made);
  return made.status();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStepEncoder>> CudaStepEncoder::Make(
    NativeStream computing, const StepVectors& vectors, const StepEncoderOptions& options) {
  std::unique_ptr<CudaStepEncoder> made(new CudaStepEncoder(computing, vectors));
  made->half_ = options.half;
  made->has_momentum_ = options.rule == kDanaSlim;
  made->has_error_ = options.codec->id() != CodecId::kNone;
  made->rounds_ = options.rounds;
  made->beta1_ = options.beta1;
  const uint64_t elements = vectors.trainable_elements;
  uint64_t bytes = 0;
  absl::Status status;
  for (const EncodedSegment& segment : options.segments) {
    if (segment.begin > elements || segment.elements > elements - segment.begin) {
      return absl::InvalidArgumentError(
          absl::StrCat("a segment of elements ", segment.begin, " to ",
                       segment.begin + segment.elements, " of a gradient of ", elements));
    }
    Segment& here = made->segments_.emplace_back();
    here.begin = segment.begin;
    here.elements = segment.elements;
    here.place = bytes;
    status = Take(SegmentCodec::Make(*options.codec, segment.blocks, computing), &here.codec);
    if (status.ok() && made->rounds_) {
      status = Take(SegmentCodec::Make(*FindCodec(CodecId::kNone), segment.blocks, computing), &here.plain);
    }
    if (status.ok()) status = Take(Event::Make(), &here.encoded);
    if (status.ok()) status = Take(Event::Make(), &here.copied);
    if (!status.ok()) return status;
    const uint64_t most = made->rounds_ ? here.plain.encoded_bytes() : here.codec.encoded_bytes();
    bytes += (most + kAlignedBytes - 1) / kAlignedBytes * kAlignedBytes;
  }
  if (made->has_momentum_ || made->rounds_) {
    status = Take(DeviceArray<float>::Allocate(elements), &made->momentum_);
  }
  if (status.ok() && made->rounds_) {
    status = Take(DeviceArray<float>::Allocate(elements), &made->denominator_);
  }
  if (status.ok() && made->has_error_) {
    status = Take(DeviceArray<float>::Allocate(elements), &made->error_);
    if (status.ok()) status = Take(DeviceArray<uint8_t>::Allocate(bytes), &made->encoded_);
  }
  if (status.ok()) status = Take(PinnedArray<uint8_t>::Allocate(bytes), &made->bytes_);
  if (status.ok()) {
    status = Take(DeviceArray<double>::Allocate(GradientNormPartials(elements)), &made->partial_);
  }
  if (status.ok()) {
    status = Take(DeviceArray<double>::Allocate(GradientNormPartials(elements)), &made->ratio_partial_);
  }
  if (status.ok()) status = Take(DeviceArray<GradientNorm>::Allocate(2), &made->norm_);
  if (status.ok()) status = Take(PinnedArray<GradientNorm>::Allocate(2), &made->norm_read_);
  if (status.ok()) status = Take(Event::Make(), &made->norm_copied_);
  if (status.ok()) status = Take(Event::Make(), &made->given_);
  if (status.ok()) status = Take(Stream::Make(), &made->copying_);
  if (!status.ok()) return status;
  return made;
}

absl::Status CudaStepEncoder::Give(std::optional<double> clip_norm,
                                   absl::Span<const SegmentPush> segments) {
  if (segments.size() != segments_.size()) {
    return absl::InternalError(absl::StrCat("a push of ", segments.size(), " segments of ",
                                            segments_.size()));
  }
  absl::Status status = GiveNorm(clip_norm);
  for (size_t i = 0; status.ok() && i < segments_.size(); ++i) {
    status = GiveSegment(segments_[i], segments[i]);
  }
  return status.ok() ? given_.Record(computing_) : status;
}

absl::Status CudaStepEncoder::GiveNorm(std::optional<double> clip_norm) {
  const GradientNormArguments arguments = {.gradient = vectors_.gradient,
                                           .elements = vectors_.trainable_elements,
                                           .statistics = vectors_.statistics,
                                           .statistic_elements = vectors_.statistic_elements,
                                           .clip_norm = clip_norm.value_or(0)};
  absl::Status status =
      GradientNormOnDevice(arguments, partial_.data(), norm_.data(), computing_);
  if (status.ok()) {
    status = CopyToHost(norm_read_.data(), norm_.data(), sizeof(GradientNorm), computing_);
  }
  return status.ok() ? norm_copied_.Record(computing_) : status;
}

absl::Status CudaStepEncoder::GiveHalf(const Segment& segment, const SegmentPush& push) {
  float* const gradient = vectors_.gradient + segment.begin;
  float* const momentum = momentum_.data() + segment.begin;
  const uint32_t* const stop = &norm_.data()->not_finite;
  if (push.mixed) {
    return MixMomentum(beta1_, segment.elements, momentum, gradient, stop, computing_);
  }
  if (!has_momentum_) return absl::OkStatus();
  return DanaSlimHalf(segment.codec.table(),
                      {.momentum = half_.momentum,
                       .weight_decay = half_.weight_decay,
                       .repair = DanaSlimRepair(half_.momentum, push.eta, push.previous_eta)},
                      vectors_.vector + segment.begin, momentum, gradient, stop, computing_);
}

absl::Status CudaStepEncoder::GiveSegment(Segment& segment, const SegmentPush& push) {
  float* const gradient = vectors_.gradient + segment.begin;
  const uint32_t* const stop = &norm_.data()->not_finite;
  // The bytes of a step that was skipped may still be under way.
  absl::Status status = segment.copied.MakeWait(computing_);
  if (status.ok()) status = GiveHalf(segment, push);
  const void* from = gradient;
  segment.bytes = segment.elements * sizeof(float);
  // As fp32 nothing is lost: error feedback leaves zeros, and sends what was kept back.
  const bool plain = push.plain && !(push.folded && has_error_);
  if (status.ok() && has_error_ && !plain) {
    const SegmentCodec& codec = push.plain ? segment.plain : segment.codec;
    uint8_t* const bytes = encoded_.data() + segment.place;
    status = codec.Encode(gradient, error_.data() + segment.begin, push.key, bytes, stop,
                          computing_);
    from = bytes;
    segment.bytes = codec.encoded_bytes();
  }
  if (status.ok()) status = segment.encoded.Record(computing_);
  if (status.ok()) status = segment.encoded.MakeWait(copying_.native());
  if (status.ok()) {
    status = CopyToHost(bytes_.data() + segment.place, from, segment.bytes, copying_.native());
  }
  return status.ok() ? segment.copied.Record(copying_.native()) : status;
}

absl::StatusOr<StepNorm> CudaStepEncoder::Norm() {
  if (const absl::Status status = norm_copied_.Synchronize(); !status.ok()) return status;
  return StepNorm{.norm = norm_read_.data()->norm, .finite = norm_read_.data()->not_finite == 0};
}

absl::StatusOr<absl::Span<const uint8_t>> CudaStepEncoder::Bytes(size_t segment) {
  const Segment& here = segments_[segment];
  if (const absl::Status status = here.copied.Synchronize(); !status.ok()) return status;
  return absl::Span<const uint8_t>(bytes_.data() + here.place, here.bytes);
}

absl::Status CudaStepEncoder::ReadMomentum(size_t segment, float* momentum) {
  if (const absl::Status used = UseDevice(vectors_.device); !used.ok()) return used;
  const Segment& here = segments_[segment];
  const absl::Status status = CopyToHost(momentum, momentum_.data() + here.begin,
                                         here.elements * sizeof(float), computing_);
  return status.ok() ? WaitFor(computing_) : status;
}

absl::StatusOr<double> CudaStepEncoder::NormOf(float* values) {
  // Perhaps on another thread than the one that computes, and not on its stream, which may be being
  // captured.
  if (const absl::Status used = UseDevice(vectors_.device); !used.ok()) return used;
  const NativeStream stream = copying_.native();
  absl::Status status = given_.MakeWait(stream);
  if (status.ok()) {
    status = GradientNormOnDevice({.gradient = values, .elements = vectors_.trainable_elements},
                                  ratio_partial_.data(), norm_.data() + 1, stream);
  }
  GradientNorm* const read = norm_read_.data() + 1;
  if (status.ok()) status = CopyToHost(read, norm_.data() + 1, sizeof *read, stream);
  if (status.ok()) status = WaitFor(stream);
  if (!status.ok()) return status;
  return read->norm;
}

absl::StatusOr<double> CudaStepEncoder::ErrorRatio() {
  if (!has_error_) return 0.0;
  const absl::StatusOr<double> error = NormOf(error_.data());
  if (!error.ok()) return error.status();
  const absl::StatusOr<double> size = NormOf(momentum_.size() > 0 ? momentum_.data() : vectors_.gradient);
  if (!size.ok()) return size.status();
  return *size > 0 ? *error / *size : 0.0;
}

absl::Status CudaStepEncoder::ClearGradient() {
  const absl::Status status =
      FillZero(vectors_.gradient, vectors_.trainable_elements * sizeof(float), computing_);
  if (!status.ok()) return status;
  return FillZero(const_cast<float*>(vectors_.statistics),
                  vectors_.statistic_elements * sizeof(float), computing_);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
