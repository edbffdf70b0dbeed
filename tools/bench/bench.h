// Benchmarks: each figure beside the limit measured in the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/net/credentials.h"

namespace foreshard::bench {

// One line of the table and of the JSON file.
struct BenchResult {
  std::string name;   // "codec/one_bit/encode"
  double value = 0;
  std::string unit;   // "GB/s", "us", "examples/s"
  double limit = 0;   // same unit
  double ratio = 0;   // how good value is against limit; above 1 is better than it
};

struct BenchOptions {
  double seconds = 0.5;  // of measuring, for each figure
  bool quick = false;    // smallest sizes only, for the suite
  // With TLS (a certificate for 127.0.0.1 that is both a server's and a client's): exchanges are
  // also measured over it, as name + "/tls" beside the rate without it.
  CredentialFiles credentials;
};

// STREAM triad a[i] = b[i] + s * c[i], best of several runs, in GB/s where every
// byte read or written counts once; arrays of 256 MiB (quick: 64 MiB).
double StreamTriad(int threads, const BenchOptions& options);

std::vector<BenchResult> BenchCodec(const BenchOptions& options);
std::vector<BenchResult> BenchApply(const BenchOptions& options);
std::vector<BenchResult> BenchExchange(const BenchOptions& options);
std::vector<BenchResult> BenchJournal(const BenchOptions& options);
// Starts foreshard-server from the folder of this program; on the main thread.
std::vector<BenchResult> BenchRestart(const BenchOptions& options);
std::vector<BenchResult> BenchMetrics(const BenchOptions& options);
std::vector<BenchResult> BenchTrain(const BenchOptions& options);

}  // namespace foreshard::bench
