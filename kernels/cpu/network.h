// A network on the CPU: plans by number of examples, kept and reused, and the
// arena that they share.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/network_builder.h"
#include "kernels/cpu/plan.h"
#include "kernels/device.h"

namespace foreshard::kernels::cpu {

// OpenMP's number of threads for the calling thread, while in scope; oneDNN asks
// for it both when it plans and when it runs.
class ThreadScope {
 public:
  explicit ThreadScope(uint32_t threads);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

class CpuNetwork : public Network {
 public:
  // Builds the training plan of a full batch, so that what oneDNN cannot do is
  // said here.
  static absl::StatusOr<std::unique_ptr<Network>> Create(Device& device, uint32_t threads,
                                                         const NetworkSpec& spec);

  absl::StatusOr<LossSum> Train(const BatchView& batch, const float* vector, Gate gate,
                                const StepOutput& output) override;
  absl::Status Statistics(const BatchView& batch, const float* vector,
                          float* statistics) override;
  absl::StatusOr<LossSum> Evaluate(const BatchView& batch, const float* vector) override;
  uint64_t step_bytes() const override { return step_bytes_; }

 private:
  // A plan is bound to one number of examples and one mode.
  struct Mode {
    uint64_t examples = 0;
    bool training = false;
    std::unique_ptr<Plan> plan;
    BuiltNetwork network;
    uint64_t last_used = 0;
    uint64_t arena_generation = 0;  // placed in the arena of this generation
  };

  CpuNetwork(Device& device, uint32_t threads, const NetworkSpec& spec, std::vector<Shape> shapes);

  absl::Status CheckBatch(const BatchView& batch, bool labels) const;
  absl::StatusOr<Mode*> FindMode(uint64_t examples, bool training);
  std::unique_ptr<Mode> Build(uint64_t examples, bool training);
  // Puts the mode's memory into the arena, which grows where it must, and binds what
  // the caller brings; `gradient` null: this run writes none.
  absl::Status Place(Mode& mode, const BatchView& batch, const float* vector,
                     const float* gradient);
  // The losses of a forward pass; training: their gradients, times `weight`.
  LossSum Loss(const Mode& mode, const BatchView& batch, float weight) const;
  void WriteStatistics(const Mode& mode, float weight, bool accumulate, float* statistics) const;

  Device& device_;
  uint32_t threads_;
  NetworkSpec spec_;
  std::vector<Shape> shapes_;  // after each layer
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<std::unique_ptr<Mode>> modes_;
  std::unique_ptr<Buffer> arena_;
  uint64_t arena_generation_ = 0;
  uint64_t uses_ = 0;
  uint64_t step_bytes_ = 0;
};

}  // namespace foreshard::kernels::cpu
