#include "worker/buffer_pool.h"

#include <map>
#include <new>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace foreshard {
namespace {

constexpr std::align_val_t kAlignment{64};
// Sizes are rounded up, so that segments of nearly the same length share buffers.
constexpr uint64_t kGranuleBytes = 4096;

}  // namespace

struct BufferPool::State {
  struct Block {
    std::shared_ptr<State> owner;  // set while out of the pool
    uint8_t* data;
    uint64_t capacity;
  };

  ~State() {
    for (auto& [capacity, blocks] : free) {
      for (Block* block : blocks) {
        ::operator delete(block->data, kAlignment);
        delete block;
      }
    }
  }

  static void Return(void* opaque) {
    auto* block = static_cast<Block*>(opaque);
    const std::shared_ptr<State> owner = std::move(block->owner);
    absl::MutexLock lock(&owner->mutex);
    owner->free[block->capacity].push_back(block);
    --owner->outstanding;
  }

  absl::Mutex mutex;
  std::map<uint64_t, std::vector<Block*>> free ABSL_GUARDED_BY(mutex);
  uint64_t made ABSL_GUARDED_BY(mutex) = 0;
  uint64_t outstanding ABSL_GUARDED_BY(mutex) = 0;
};

BufferPool::BufferPool() : state_(std::make_shared<State>()) {}
BufferPool::~BufferPool() = default;

BufferPool::Buffer BufferPool::Take(uint64_t bytes) {
  const uint64_t capacity = (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
  State::Block* block = nullptr;
  {
    absl::MutexLock lock(&state_->mutex);
    std::vector<State::Block*>& free = state_->free[capacity];
    if (!free.empty()) {
      block = free.back();
      free.pop_back();
    } else {
      ++state_->made;
    }
    ++state_->outstanding;
  }
  if (block == nullptr) {
    block = new State::Block{nullptr, static_cast<uint8_t*>(::operator new(capacity, kAlignment)),
                             capacity};
  }
  block->owner = state_;
  return {block->data, bytes, block};
}

grpc::Slice BufferPool::Share(const Buffer& buffer) {
  return grpc::Slice(buffer.data, buffer.bytes, &State::Return, buffer.block);
}

uint64_t BufferPool::made() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->made;
}

uint64_t BufferPool::outstanding() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->outstanding;
}

struct AliasGuard::State {
  absl::Mutex mutex;
  uint64_t slices ABSL_GUARDED_BY(mutex) = 0;
};

AliasGuard::AliasGuard() : state_(std::make_unique<State>()) {}
AliasGuard::~AliasGuard() { Wait(); }

grpc::Slice AliasGuard::Alias(const void* data, uint64_t bytes) {
  {
    absl::MutexLock lock(&state_->mutex);
    ++state_->slices;
  }
  return grpc::Slice(
      const_cast<void*>(data), bytes,
      [](void* opaque) {
        auto* state = static_cast<State*>(opaque);
        absl::MutexLock lock(&state->mutex);
        --state->slices;
      },
      state_.get());
}

void AliasGuard::Wait() {
  absl::MutexLock lock(&state_->mutex);
  state_->mutex.Await(absl::Condition(
      +[](State* state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state->mutex) { return state->slices == 0; },
      state_.get()));
}

}  // namespace foreshard
