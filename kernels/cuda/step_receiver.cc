#include "kernels/cuda/step_receiver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/updates.h"

namespace FORESHARD_CUDA_NAMESPACE {
namespace {

// Of a segment's bytes, for the widest copies.
constexpr uint64_t kAlignedBytes = 256;

uint64_t Aligned(uint64_t bytes) {
  return (bytes + kAlignedBytes - 1) / kAlignedBytes * kAlignedBytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStepReceiver>> CudaStepReceiver::Make(
    int device, NativeStream computing, float* vector, uint64_t elements,
    const StepReceiverOptions& options) {
  // The memory's own: both are made by the same StepMemory.
  auto* const encoder = static_cast<CudaStepEncoder*>(options.encoder);
  std::unique_ptr<CudaStepReceiver> made(new CudaStepReceiver(device, computing, vector, encoder));
  uint64_t landing = 0, encoded = 0;
  for (const EncodedSegment& segment : options.segments) {
    if (segment.begin > elements || segment.elements > elements - segment.begin) {
      return absl::InvalidArgumentError(
          absl::StrCat("a segment of elements ", segment.begin, " to ",
                       segment.begin + segment.elements, " of a vector of ", elements));
    }
    Segment& here = made->segments_.emplace_back();
    here.begin = segment.begin;
    here.elements = segment.elements;
    here.landing = landing;
    here.place = encoded;
    auto codec = SegmentCodec::Make(*options.codec, segment.blocks, computing);
    if (!codec.ok()) return codec.status();
    here.codec = *std::move(codec);
    if (encoder != nullptr) {
      auto plain = SegmentCodec::Make(*FindCodec(CodecId::kNone), segment.blocks, computing);
      if (!plain.ok()) return plain.status();
      here.plain = *std::move(plain);
    }
    auto event = Event::Make();
    if (!event.ok()) return event.status();
    here.taken = *std::move(event);
    landing += Aligned(segment.elements * sizeof(float));
    encoded += Aligned(here.codec.encoded_bytes());
  }
  auto pinned = PinnedArray<uint8_t>::Allocate(landing);
  if (!pinned.ok()) return pinned.status();
  made->landing_ = *std::move(pinned);
  if (options.codec->id() != CodecId::kNone || encoder != nullptr) {
    auto bytes = DeviceArray<uint8_t>::Allocate(encoded);
    if (!bytes.ok()) return bytes.status();
    made->encoded_ = *std::move(bytes);
  }
  auto stream = Stream::Make();
  if (!stream.ok()) return stream.status();
  made->receiving_ = *std::move(stream);
  return made;
}

absl::StatusOr<uint8_t*> CudaStepReceiver::Landing(size_t segment) {
  const Segment& here = segments_[segment];
  if (const absl::Status left = here.taken.Synchronize(); !left.ok()) return left;
  return landing_.data() + here.landing;
}

absl::Status CudaStepReceiver::TakePlain(size_t segment, float* all) {
  // Perhaps a thread that is not the one that computes.
  if (const absl::Status used = UseDevice(device_); !used.ok()) return used;
  Segment& here = segments_[segment];
  const absl::Status given =
      CopyToDevice(all + here.begin, landing_.data() + here.landing, here.elements * sizeof(float),
                   receiving_.native());
  return given.ok() ? here.taken.Record(receiving_.native()) : given;
}

absl::Status CudaStepReceiver::Take(size_t segment, bool plain, const CodecKey& key) {
  if (plain) return TakePlain(segment, vector_);
  if (const absl::Status used = UseDevice(device_); !used.ok()) return used;
  Segment& here = segments_[segment];
  const NativeStream stream = receiving_.native();
  uint8_t* const encoded = encoded_.data() + here.place;
  absl::Status status = CopyToDevice(encoded, landing_.data() + here.landing,
                                     here.codec.encoded_bytes(), stream);
  if (status.ok()) status = here.codec.DecodeReply(encoded, key, vector_ + here.begin, stream);
  return status.ok() ? here.taken.Record(stream) : status;
}

absl::Status CudaStepReceiver::TakeResult(size_t segment, const CodecKey& key,
                                          const FrozenAdamStep& step) {
  if (const absl::Status used = UseDevice(device_); !used.ok()) return used;
  Segment& here = segments_[segment];
  const NativeStream stream = receiving_.native();
  uint8_t* const encoded = encoded_.data() + here.place;
  absl::Status status = CopyToDevice(encoded, landing_.data() + here.landing,
                                     here.codec.encoded_bytes(), stream);
  if (status.ok()) {
    status = here.codec.DecodeFrozenAdam(encoded, key, step, encoder_->momentum() + here.begin,
                                         encoder_->denominator() + here.begin,
                                         vector_ + here.begin, stream);
  }
  return status.ok() ? here.taken.Record(stream) : status;
}

absl::Status CudaStepReceiver::TakeMomentum(size_t segment) {
  return TakePlain(segment, encoder_->momentum());
}

absl::Status CudaStepReceiver::TakeDenominator(size_t segment) {
  return TakePlain(segment, encoder_->denominator());
}

absl::Status CudaStepReceiver::KeepBack(size_t segment, bool plain, const CodecKey& key,
                                        float beta1) {
  if (const absl::Status used = UseDevice(device_); !used.ok()) return used;
  Segment& here = segments_[segment];
  const NativeStream stream = receiving_.native();
  float* const error = encoder_->error() + here.begin;
  const SegmentCodec& codec = plain ? here.plain : here.codec;
  absl::Status status = codec.DecodeAdd(encoder_->encoded(segment), key, error, stream);
  if (status.ok() && beta1 != 0) {
    status = AddScaled(here.elements, -beta1, encoder_->momentum() + here.begin, error, stream);
  }
  return status.ok() ? here.taken.Record(stream) : status;
}

absl::Status CudaStepReceiver::ScaleError(size_t segment, float factor) {
  if (const absl::Status used = UseDevice(device_); !used.ok()) return used;
  Segment& here = segments_[segment];
  const NativeStream stream = receiving_.native();
  float* const error = encoder_->error() + here.begin;
  const absl::Status status = factor == 0
                                  ? FillZero(error, here.elements * sizeof(float), stream)
                                  : Scale(here.elements, factor, error, stream);
  return status.ok() ? here.taken.Record(stream) : status;
}

absl::Status CudaStepReceiver::Await(size_t segment) {
  return segments_[segment].taken.MakeWait(computing_);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
