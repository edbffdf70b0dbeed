// Buffers for encoded pushes, reused: gRPC holds a slice of one until its bytes
// are sent and the call is over, and the last reference brings it back.
//
//   BufferPool pool;
//   BufferPool::Buffer buffer = pool.Take(bytes);
//   EncodeSegment(codec, blocks, values, error, buffer.data);
//   grpc::Slice slice = pool.Share(buffer);
#pragma once

#include <cstdint>
#include <memory>

#include "grpcpp/support/slice.h"

namespace foreshard {

// Thread-safe. May be destroyed before the slices it gave out.
class BufferPool {
 public:
  struct Buffer {
    uint8_t* data = nullptr;  // aligned to 64
    uint64_t bytes = 0;
    void* block = nullptr;  // the pool's own
  };

  BufferPool();
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A buffer of at least `bytes`; contents undefined. Must be given to Share.
  Buffer Take(uint64_t bytes);
  // Hands the buffer over to a slice of `buffer.bytes`.
  grpc::Slice Share(const Buffer& buffer);

  // Buffers made so far, and of those the ones not in the pool now.
  uint64_t made() const;
  uint64_t outstanding() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Counts the slices that alias memory of the caller's, so that it knows when
// gRPC has let go of all of them. Thread-safe.
class AliasGuard {
 public:
  AliasGuard();
  ~AliasGuard();  // waits
  AliasGuard(const AliasGuard&) = delete;
  AliasGuard& operator=(const AliasGuard&) = delete;

  // A slice of memory that stays readable until Wait has returned.
  grpc::Slice Alias(const void* data, uint64_t bytes);
  // Returns when no slice is left. Their calls must be over or cancelled.
  void Wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foreshard
