// A network's step for one number of examples, as a list of oneDNN primitives in
// the order in which they run, with their memory laid out beforehand in one
// arena: memory is given out while the list is built, and what is no longer
// needed is given out again. Building costs milliseconds, running allocates
// nothing of ours.
//
//   Plan plan(engine);
//   dnnl::memory in = plan.Bind(Plan::Base::kInput, 0, desc);
//   dnnl::memory out = plan.Allocate(pd.dst_desc());
//   plan.Add(pd, {{DNNL_ARG_SRC, in}, {DNNL_ARG_DST, out}});
//   plan.Place(arena);                       // plan.arena_bytes() long
//   plan.SetBase(Plan::Base::kInput, inputs);
//   plan.Run(0, plan.steps(), stream, false, gate);
//
// Thread-compatible. oneDNN's failures come as dnnl::error exceptions, which
// network.cc turns into statuses.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "kernels/device.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace foreshard::kernels::cpu {

class Plan {
 public:
  // What the caller brings to each step: memory bound to it moves with it.
  enum class Base : uint8_t { kInput = 0, kVector = 1, kGradient = 2 };
  // Steps that run always, or only where the gradient replaces or adds.
  enum class When : uint8_t { kAlways, kReplacing, kAccumulating };

  // Mean and biased variance of a batch norm, as its forward step leaves them.
  struct StatisticsOutput {
    dnnl::memory mean, variance;
    uint64_t mean_offset = 0, variance_offset = 0;  // in the flat vector
    uint32_t channels = 0;
    uint64_t values = 0;  // a channel
  };

  explicit Plan(const dnnl::engine& engine) : engine_(engine) {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const dnnl::engine& engine() const { return engine_; }
  // Every primitive is made with this: scratch memory comes from the arena.
  dnnl::primitive_attr Attributes() const;

  // Memory in the arena, live until released.
  dnnl::memory Allocate(const dnnl::memory::desc& desc);
  // What is allocated from here on may take its place.
  void Release(const dnnl::memory& memory);
  // Memory at float `offset` of what the caller brings.
  dnnl::memory Bind(Base base, uint64_t offset, const dnnl::memory::desc& desc);
  // The same bytes described otherwise. Release the original only.
  dnnl::memory Alias(const dnnl::memory& memory, const dnnl::memory::desc& desc);
  // Whether one of the two is the other or an alias of it; both not released.
  bool SameMemory(const dnnl::memory& a, const dnnl::memory& b) const;

  // `from` in the wanted layout: itself, an alias, or a copy made by a reorder.
  dnnl::memory Converted(const dnnl::memory& from, const dnnl::memory::desc& wanted);

  // Adds a step; `pd` is any primitive descriptor made with Attributes().
  void Add(const dnnl::primitive_desc_base& pd, const std::unordered_map<int, dnnl::memory>& args,
           When when = When::kAlways);
  // Adds a step that is no primitive of oneDNN's. What it reads and writes it finds by
  // the data handles of memory of this plan, when it runs, as it finds text() and whether
  // the gradient is accumulating().
  void AddCall(std::function<void()> call);
  // By a call that failed: Run ends with it.
  void NoteFailure(const char* what) { failure_ = what; }
  const TextView& text() const { return text_; }
  bool accumulating() const { return accumulating_; }
  // Adds a step that asks the gate for a tensor.
  void AddWait(uint64_t begin, uint64_t elements);
  // Adds the steps that write or add `diff` to the gradient's tensor at `offset`,
  // whose canonical layout is `desc`.
  void AddGradient(const dnnl::memory& diff, uint64_t offset, const dnnl::memory::desc& desc);
  void AddStatistics(const StatisticsOutput& output);

  size_t steps() const { return steps_.size(); }
  // Steps up to here make all statistics.
  size_t statistics_end() const { return statistics_end_; }
  const std::vector<StatisticsOutput>& statistics() const { return statistics_; }

  uint64_t arena_bytes() const { return arena_bytes_; }
  void Place(void* arena);
  void SetBase(Base base, const float* data);
  void SetText(const TextView& text) { text_ = text; }
  // Runs steps [begin, end). Errors: the gate's, and INTERNAL from oneDNN.
  absl::Status Run(size_t begin, size_t end, dnnl::stream& stream, bool accumulate, Gate gate);

 private:
  struct Step {
    dnnl::primitive primitive;  // empty: a call or a wait
    std::vector<dnnl_exec_arg_t> args;
    std::function<void()> call;
    When when = When::kAlways;
    uint64_t wait_begin = 0, wait_elements = 0;
  };
  struct Region {
    uint64_t offset = 0, bytes = 0;
  };
  struct Placed {
    dnnl::memory memory;
    Region region;
  };
  struct Bound {
    dnnl::memory memory;
    Base base;
    uint64_t offset = 0;
  };

  Region Take(uint64_t bytes);
  void Give(Region region);

  dnnl::engine engine_;
  std::vector<Step> steps_;
  std::vector<Placed> placed_;
  std::vector<Bound> bound_;
  std::vector<Region> free_;  // sorted by offset, none touching another
  std::vector<StatisticsOutput> statistics_;
  size_t statistics_end_ = 0;
  uint64_t arena_bytes_ = 0;
  TextView text_;
  bool accumulating_ = false;
  const char* failure_ = nullptr;
};

}  // namespace foreshard::kernels::cpu
