#include "kernels/cuda/step_receiver.h"

#include <utility>

#include "absl/strings/str_cat.h"

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
  std::unique_ptr<CudaStepReceiver> made(new CudaStepReceiver(device, computing, vector));
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
    auto event = Event::Make();
    if (!event.ok()) return event.status();
    here.taken = *std::move(event);
    landing += Aligned(segment.elements * sizeof(float));
    encoded += Aligned(here.codec.encoded_bytes());
  }
  auto pinned = PinnedArray<uint8_t>::Allocate(landing);
  if (!pinned.ok()) return pinned.status();
  made->landing_ = *std::move(pinned);
  if (options.codec->id() != CodecId::kNone) {
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

absl::Status CudaStepReceiver::Take(size_t segment, bool plain, const CodecKey& key) {
  // A thread that is not the one that computes.
  if (const absl::Status used = UseDevice(device_); !used.ok()) return used;
  Segment& here = segments_[segment];
  const NativeStream stream = receiving_.native();
  const uint8_t* const bytes = landing_.data() + here.landing;
  float* const values = vector_ + here.begin;
  absl::Status status;
  if (plain || encoded_.size() == 0) {
    status = CopyToDevice(values, bytes, here.elements * sizeof(float), stream);
  } else {
    uint8_t* const encoded = encoded_.data() + here.place;
    status = CopyToDevice(encoded, bytes, here.codec.encoded_bytes(), stream);
    if (status.ok()) status = here.codec.DecodeReply(encoded, key, values, stream);
  }
  return status.ok() ? here.taken.Record(stream) : status;
}

absl::Status CudaStepReceiver::Await(size_t segment) {
  return segments_[segment].taken.MakeWait(computing_);
}

}  // namespace FORESHARD_CUDA_NAMESPACE
