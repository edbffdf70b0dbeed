#include "kernels/cpu/cpu_device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/network.h"
#include "oneapi/dnnl/dnnl.h"
#include "oneapi/dnnl/dnnl_debug.h"

namespace foreshard::kernels::cpu {
namespace {

constexpr uint64_t kAlignment = 64;

class HostBuffer : public Buffer {
 public:
  HostBuffer(void* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  ~HostBuffer() override { std::free(data_); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  void* data() override { return data_; }
  uint64_t bytes() const override { return bytes_; }

  absl::Status Write(uint64_t offset, const void* host, uint64_t bytes) override {
    if (auto s = CheckRange(offset, bytes); !s.ok()) return s;
    if (bytes > 0) std::memcpy(static_cast<char*>(data_) + offset, host, bytes);
    return absl::OkStatus();
  }
  absl::Status Read(uint64_t offset, void* host, uint64_t bytes) const override {
    if (auto s = CheckRange(offset, bytes); !s.ok()) return s;
    if (bytes > 0) std::memcpy(host, static_cast<const char*>(data_) + offset, bytes);
    return absl::OkStatus();
  }

 private:
  absl::Status CheckRange(uint64_t offset, uint64_t bytes) const {
    if (offset <= bytes_ && bytes <= bytes_ - offset) return absl::OkStatus();
    return absl::OutOfRangeError(
        absl::StrCat("bytes ", offset, " to ", offset + bytes, " of a buffer of ", bytes_));
  }

  void* data_;
  uint64_t bytes_;
};

const char* InstructionSet() {
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41: return "SSE4.1";
    case dnnl_cpu_isa_avx: return "AVX";
    case dnnl_cpu_isa_avx2: return "AVX2";
    case dnnl_cpu_isa_avx2_vnni: return "AVX2 VNNI";
    case dnnl_cpu_isa_avx512_core: return "AVX-512";
    case dnnl_cpu_isa_avx512_core_vnni: return "AVX-512 VNNI";
    case dnnl_cpu_isa_avx512_core_bf16: return "AVX-512 BF16";
    default: return "another instruction set";
  }
}

class CpuDevice : public Device {
 public:
  CpuDevice(const DeviceOptions& options, std::string_view note) : threads_(options.threads) {
    const dnnl_version_t* version = dnnl_version();
    description_ = absl::StrCat("cpu: oneDNN ", version->major, ".", version->minor, ".",
                                version->patch, " with ", InstructionSet(), ", ", threads_,
                                threads_ == 1 ? " thread" : " threads");
    const char* waiting = std::getenv("OMP_WAIT_POLICY");
    if (threads_ > 1 && (waiting == nullptr || absl::string_view(waiting) != "passive")) {
      absl::StrAppend(&description_, " (they spin while they wait: OMP_WAIT_POLICY=passive in the "
                                     "environment stops that)");
    }
    if (!note.empty()) description_.append("; ").append(note);
  }

  const std::string& description() const override { return description_; }
  std::string_view name() const override { return "cpu"; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(uint64_t bytes) override {
    // Linux gives out more than it has and kills whoever writes to it.
    const uint64_t machine = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
    const uint64_t rounded =
        (std::max(bytes, uint64_t{1}) + kAlignment - 1) / kAlignment * kAlignment;
    void* data = bytes > machine ? nullptr : std::aligned_alloc(kAlignment, rounded);
    if (data == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for a buffer of ", bytes, " bytes; the machine has ", machine,
                       " in all; take a smaller batch or more micro-batches"));
    }
    std::memset(data, 0, rounded);
    return std::make_unique<HostBuffer>(data, bytes);
  }

  absl::StatusOr<std::unique_ptr<Network>> MakeNetwork(const NetworkSpec& spec) override {
    return CpuNetwork::Create(*this, threads_, spec);
  }

  absl::Status MatrixMultiply(uint64_t m, uint64_t n, uint64_t k, const float* a, const float* b,
                              float* c) override {
    const ThreadScope threads(threads_);
    const auto rows = static_cast<dnnl_dim_t>(m), columns = static_cast<dnnl_dim_t>(n);
    const auto inner = static_cast<dnnl_dim_t>(k);
    const dnnl_status_t status = dnnl_sgemm('N', 'N', rows, columns, inner, 1.0f, a, inner, b,
                                            columns, 0.0f, c, columns);
    if (status == dnnl_success) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("oneDNN: a product of [", m, ", ", k, "] and [", k,
                                            ", ", n, "] failed: ", dnnl_status2str(status)));
  }

 private:
  uint32_t threads_;
  std::string description_;
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(const DeviceOptions& options, std::string_view note) {
  return std::make_unique<CpuDevice>(options, note);
}

}  // namespace foreshard::kernels::cpu
