// PyTorch's training step of one of our models, in a process of its own, on one thread: what
// ours is compared with. It computes only while it is asked to, so both can take turns.
//
//   auto peer = PytorchPeer::Start("resnet20", {32, 32, 3}, 128);
//   double seconds = (*peer)->SecondsPerStep(2).value();
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/models/model.h"

namespace foreshard::bench {

// Thread-compatible. The destructor ends the process.
class PytorchPeer {
 public:
  // UNAVAILABLE, with the reason, where there is no Python or no PyTorch.
  static absl::StatusOr<std::unique_ptr<PytorchPeer>> Start(const std::string& model,
                                                            const InputShape& shape,
                                                            uint32_t batch);
  ~PytorchPeer();
  PytorchPeer(const PytorchPeer&) = delete;
  PytorchPeer& operator=(const PytorchPeer&) = delete;

  // "PyTorch 1.13.1 NCHW".
  const std::string& description() const { return description_; }
  // Runs so many steps. UNAVAILABLE when it ended or does not answer.
  absl::StatusOr<double> SecondsPerStep(uint32_t steps);

 private:
  PytorchPeer(pid_t pid, int connection) : pid_(pid), connection_(connection) {}
  absl::StatusOr<std::string> ReadLine();

  pid_t pid_;
  int connection_;  // to its standard input and output
  std::string description_, unread_;
};

}  // namespace foreshard::bench
