// The memory of requests and replies: a budget in bytes, and buffers for replies
// that are reused, so that a steady state allocates nothing of payload size.
//
//   ReplyBuffers buffers(job.servers().inflight_bytes());
//   if (!buffers.Reserve(request_bytes)) return RESOURCE_EXHAUSTED;
//   absl::optional<ReplyBuffers::Buffer> buffer = buffers.Take(capacity);
//   grpc::Slice slice = buffers.Share(buffer, written);   // gRPC gives it back
//   buffers.Release(request_bytes);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "grpcpp/support/slice.h"

namespace foreshard {

// Thread-safe. May be destroyed before the slices it gave out.
class ReplyBuffers {
 public:
  struct Buffer {
    uint8_t* data = nullptr;  // aligned to 64
    void* block = nullptr;    // internal
  };

  explicit ReplyBuffers(uint64_t budget_bytes);
  ~ReplyBuffers();
  ReplyBuffers(const ReplyBuffers&) = delete;
  ReplyBuffers& operator=(const ReplyBuffers&) = delete;

  // Counts `bytes` of a request against the budget; false where it is used up.
  bool Reserve(uint64_t bytes);
  void Release(uint64_t bytes);

  // A buffer of at least `capacity` bytes, counted too; nothing where the budget is
  // used up, or would be but for `keep_free` bytes. Goes back through Share or Return.
  std::optional<Buffer> Take(uint64_t capacity, uint64_t keep_free = 0);
  void Return(const Buffer& buffer);
  // A slice of the first `bytes`, which brings the buffer back when gRPC is done.
  grpc::Slice Share(const Buffer& buffer, uint64_t bytes);

  // Bytes of requests and replies at this moment.
  uint64_t used_bytes() const;
  uint64_t budget_bytes() const;
  // Buffers ever allocated; does not grow in a steady state.
  uint64_t allocations() const;

 private:
  struct Block;
  struct State;
  static void Recycle(void* block);
  std::shared_ptr<State> state_;
};

}  // namespace foreshard
