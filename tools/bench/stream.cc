// STREAM triad (McCalpin 1995): the memory bandwidth that other figures are held
// against. As STREAM counts: two reads and a write, no write-allocate.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/cpu/isa.h"
#include "tools/bench/bench.h"

namespace foreshard::bench {
namespace {

FORESHARD_ISA_INLINE void TriadBody(double* __restrict a, const double* __restrict b,
                                    const double* __restrict c, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) a[i] = b[i] + 3.0 * c[i];
}
FORESHARD_ISA_VARIANTS(void, Triad,
                       (double* a, const double* b, const double* c, uint64_t n), (a, b, c, n))

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

double StreamTriad(int threads, const BenchOptions& options) {
  const uint64_t bytes = (options.quick ? 64ull : 256ull) << 20;
  const uint64_t n = bytes / sizeof(double);
  // Not initialised here: each thread touches its own part first.
  const std::unique_ptr<double[]> a(new double[n]);
  const std::unique_ptr<double[]> b(new double[n]);
  const std::unique_ptr<double[]> c(new double[n]);
  const auto parts = static_cast<uint64_t>(std::max(threads, 1));
  const auto on_each_part = [&](auto work) {
    std::vector<std::thread> others;
    for (uint64_t part = 1; part < parts; ++part) {
      others.emplace_back(work, n * part / parts, n * (part + 1) / parts);
    }
    work(0, n / parts);
    for (std::thread& other : others) other.join();
  };
  on_each_part([&](uint64_t begin, uint64_t end) {
    std::fill(a.get() + begin, a.get() + end, 1.0);
    std::fill(b.get() + begin, b.get() + end, 2.0);
    std::fill(c.get() + begin, c.get() + end, 0.5);
  });
  double best = 0;
  const double stop = Now() + options.seconds;
  do {
    const double start = Now();
    on_each_part([&](uint64_t begin, uint64_t end) {
      Triad(a.get() + begin, b.get() + begin, c.get() + begin, end - begin);
    });
    best = std::max(best, 3.0 * static_cast<double>(bytes) / (Now() - start) / 1e9);
  } while (Now() < stop);
  // Read one result, so that the work cannot be dropped.
  return a[n / 2] == 3.5 ? best : 0;
}

}  // namespace foreshard::bench
