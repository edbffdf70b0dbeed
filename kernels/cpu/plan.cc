#include "kernels/cpu/plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "oneapi/dnnl/dnnl_debug.h"

namespace foreshard::kernels::cpu {
namespace {

constexpr uint64_t kAlignment = 64;

// Whether both describe the same bytes: strides of dimensions of length 1 say
// nothing.
bool SameBytes(const dnnl::memory::desc& a, const dnnl::memory::desc& b) {
  const auto& x = a.data;
  const auto& y = b.data;
  if (x.format_kind != dnnl_blocked || y.format_kind != dnnl_blocked) return a == b;
  if (x.ndims != y.ndims || x.data_type != y.data_type || x.offset0 != y.offset0) return false;
  const auto& blocks = x.format_desc.blocking;
  const auto& others = y.format_desc.blocking;
  if (blocks.inner_nblks != 0 || others.inner_nblks != 0) return a == b;
  for (int d = 0; d < x.ndims; ++d) {
    if (x.dims[d] != y.dims[d] || x.padded_dims[d] != y.padded_dims[d]) return false;
    if (x.dims[d] > 1 && blocks.strides[d] != others.strides[d]) return false;
  }
  return true;
}

}  // namespace

dnnl::primitive_attr Plan::Attributes() const {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// First fit; the regions of one step list are few.
Plan::Region Plan::Take(uint64_t bytes) {
  bytes = std::max<uint64_t>((bytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->bytes < bytes) continue;
    const Region region{it->offset, bytes};
    it->offset += bytes;
    it->bytes -= bytes;
    if (it->bytes == 0) free_.erase(it);
    return region;
  }
  // Nothing fits: grow, taking over a free region at the very end.
  Region region{arena_bytes_, bytes};
  if (!free_.empty() && free_.back().offset + free_.back().bytes == arena_bytes_) {
    region.offset = free_.back().offset;
    free_.pop_back();
  }
  arena_bytes_ = region.offset + bytes;
  return region;
}

void Plan::Give(Region region) {
  auto next = std::lower_bound(
      free_.begin(), free_.end(), region,
      [](const Region& a, const Region& b) { return a.offset < b.offset; });
  next = free_.insert(next, region);
  if (auto after = next + 1; after != free_.end() && next->offset + next->bytes == after->offset) {
    next->bytes += after->bytes;
    free_.erase(after);
  }
  if (next != free_.begin()) {
    auto before = next - 1;
    if (before->offset + before->bytes == next->offset) {
      before->bytes += next->bytes;
      free_.erase(next);
    }
  }
}

dnnl::memory Plan::Allocate(const dnnl::memory::desc& desc) {
  dnnl::memory memory(desc, engine_, DNNL_MEMORY_NONE);
  placed_.push_back({memory, Take(desc.get_size())});
  return memory;
}

void Plan::Release(const dnnl::memory& memory) {
  for (const Placed& placed : placed_) {
    if (placed.memory == memory) return Give(placed.region);
  }
}

dnnl::memory Plan::Bind(Base base, uint64_t offset, const dnnl::memory::desc& desc) {
  dnnl::memory memory(desc, engine_, DNNL_MEMORY_NONE);
  bound_.push_back({memory, base, offset});
  return memory;
}

dnnl::memory Plan::Alias(const dnnl::memory& memory, const dnnl::memory::desc& desc) {
  dnnl::memory alias(desc, engine_, DNNL_MEMORY_NONE);
  for (const Placed& placed : placed_) {
    if (placed.memory != memory) continue;
    placed_.push_back({alias, placed.region});
    return alias;
  }
  for (const Bound& bound : bound_) {
    if (bound.memory != memory) continue;
    bound_.push_back({alias, bound.base, bound.offset});
    return alias;
  }
  throw dnnl::error(dnnl_invalid_arguments, "alias of memory that the plan does not know");
}

bool Plan::SameMemory(const dnnl::memory& a, const dnnl::memory& b) const {
  if (a == b) return true;
  const auto find = [this](const dnnl::memory& memory) {
    return std::find_if(placed_.begin(), placed_.end(),
                        [&](const Placed& placed) { return placed.memory == memory; });
  };
  const auto first = find(a), second = find(b);
  return first != placed_.end() && second != placed_.end() &&
         first->region.offset == second->region.offset;
}

dnnl::memory Plan::Converted(const dnnl::memory& from, const dnnl::memory::desc& wanted) {
  const dnnl::memory::desc have = from.get_desc();
  if (have == wanted) return from;
  if (SameBytes(have, wanted)) return Alias(from, wanted);
  dnnl::memory to = Allocate(wanted);
  Add(dnnl::reorder::primitive_desc(engine_, have, engine_, wanted, Attributes()),
      {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  return to;
}

void Plan::Add(const dnnl::primitive_desc_base& pd,
               const std::unordered_map<int, dnnl::memory>& args, When when) {
  Step step;
  step.primitive = dnnl::primitive(pd.get());
  step.when = when;
  for (const auto& [argument, memory] : args) step.args.push_back({argument, memory.get()});
  if (const dnnl::memory::desc scratch = pd.scratchpad_desc(); scratch.get_size() > 0) {
    const dnnl::memory memory = Allocate(scratch);
    step.args.push_back({DNNL_ARG_SCRATCHPAD, memory.get()});
    Release(memory);
  }
  steps_.push_back(std::move(step));
}

void Plan::AddCall(std::function<void()> call) {
  Step step;
  step.call = std::move(call);
  steps_.push_back(std::move(step));
}

void Plan::AddWait(uint64_t begin, uint64_t elements) {
  Step step;
  step.wait_begin = begin;
  step.wait_elements = elements;
  steps_.push_back(std::move(step));
}

void Plan::AddGradient(const dnnl::memory& diff, uint64_t offset, const dnnl::memory::desc& desc) {
  const dnnl::memory to = Bind(Base::kGradient, offset, desc);
  const std::unordered_map<int, dnnl::memory> args = {{DNNL_ARG_FROM, diff}, {DNNL_ARG_TO, to}};
  Add(dnnl::reorder::primitive_desc(engine_, diff.get_desc(), engine_, desc, Attributes()), args,
      When::kReplacing);
  dnnl::primitive_attr adding = Attributes();
  dnnl::post_ops sum;
  sum.append_sum(1.0f);
  adding.set_post_ops(sum);
  Add(dnnl::reorder::primitive_desc(engine_, diff.get_desc(), engine_, desc, adding), args,
      When::kAccumulating);
}

void Plan::AddStatistics(const StatisticsOutput& output) {
  statistics_.push_back(output);
  statistics_end_ = steps_.size();
}

void Plan::Place(void* arena) {
  for (Placed& placed : placed_) {
    placed.memory.set_data_handle(static_cast<char*>(arena) + placed.region.offset);
  }
}

void Plan::SetBase(Base base, const float* data) {
  for (Bound& bound : bound_) {
    // oneDNN's memory has no constant form; inputs and parameters are only read.
    if (bound.base == base) bound.memory.set_data_handle(const_cast<float*>(data) + bound.offset);
  }
}

absl::Status Plan::Run(size_t begin, size_t end, dnnl::stream& stream, bool accumulate, Gate gate) {
  const When skipped = accumulate ? When::kReplacing : When::kAccumulating;
  accumulating_ = accumulate;
  failure_ = nullptr;
  for (size_t i = begin; i < end; ++i) {
    const Step& step = steps_[i];
    if (step.call) {
      step.call();
      if (failure_ != nullptr) {
        return absl::ResourceExhaustedError(
            absl::StrCat("oneDNN: ", failure_, " failed at step ", i, ": out of memory"));
      }
      continue;
    }
    if (!step.primitive) {
      if (auto s = gate(step.wait_begin, step.wait_elements); !s.ok()) return s;
      continue;
    }
    if (step.when == skipped) continue;
    const dnnl_status_t status =
        dnnl_primitive_execute(step.primitive.get(), stream.get(),
                               static_cast<int>(step.args.size()), step.args.data());
    if (status != dnnl_success) {
      return absl::InternalError(
          absl::StrCat("oneDNN: step ", i, " of the network failed: ", dnnl_status2str(status)));
    }
  }
  return absl::OkStatus();
}

}  // namespace foreshard::kernels::cpu
