// The blocks of a segment as kernels see them, and the launches' common arguments.
#pragma once

#include <cstdint>

#include "kernels/codecs/codec_key.h"
#include "kernels/cuda/namespace.h"

namespace FORESHARD_CUDA_NAMESPACE {

struct DeviceBlock {
  uint64_t offset = 0;    // first element, counted from the segment's start
  uint64_t position = 0;  // first byte of its encoding, counted from the payload's start
  uint32_t elements = 0;  // 1..kMaxBlockElements
  uint16_t selected = 0;  // top_k, random_k: how many of them are sent
  bool decayed = false;   // weight decay applies
  bool plain = false;     // goes as fp32, whatever the codec
};

// A table in device memory: one thread block of a launch for each of its blocks.
struct BlockTable {
  const DeviceBlock* blocks = nullptr;
  uint32_t count = 0;
};

// What an encode reads and writes; all in device memory. As Codec::EncodeBlock for each block of
// the table: c = values + error (values alone where error is null), error = c - decoded(c), bytes
// to out. Arrays need the alignment of their type, no more; where they are aligned to 16 bytes
// they move in 16-byte words.
struct EncodeArguments {
  BlockTable table;
  const float* values = nullptr;
  float* error = nullptr;
  CodecKey key;  // the message's
  uint8_t* out = nullptr;
  // Where this is not null and not 0 when the kernel runs, nothing is done: a gradient that is
  // not finite leaves no trace (GradientNorm::not_finite).
  const uint32_t* stop = nullptr;
};

// What becomes of a decoded element d.
enum class DecodeInto : uint8_t {
  kValues,      // values = d
  kDifference,  // values += d; in plain blocks values = d: a reply in a codec of differences
  kSum,         // values += d
  // The shared result of a compressed round, in one pass (kernels/frozen_adam.h, TakeResult):
  // values is theta.
  kFrozenAdam,
};

struct DecodeArguments {
  BlockTable table;
  const uint8_t* in = nullptr;  // free of faults (Codec::Fault)
  CodecKey key;
  DecodeInto into = DecodeInto::kValues;
  float* values = nullptr;
  // kFrozenAdam alone.
  float* momentum = nullptr;
  const float* denominator = nullptr;
  float eta = 0;
  float beta1 = 0;
  float weight_decay = 0;  // of decayed blocks
  bool of_gradients = false;
};

}  // namespace FORESHARD_CUDA_NAMESPACE
