// graph.h: the list of what the stream was given, given again at each launch.
#include "kernels/cuda/graph.h"

#include <functional>
#include <vector>

#include "kernels/cuda/emulation/streams.h"

struct CUgraphExec_st {
  std::vector<std::function<absl::Status()>> works;
};

namespace FORESHARD_CUDA_NAMESPACE {

absl::StatusOr<Graph> Graph::Capture(NativeStream stream,
                                     absl::FunctionRef<absl::Status(NativeStream)> give) {
  if (stream == nullptr) return absl::InvalidArgumentError("the default stream is not captured");
  emulation::BeginCapture(stream);
  const absl::Status given = give(stream);
  std::vector<std::function<absl::Status()>> works = emulation::EndCapture(stream);
  if (!given.ok()) return given;
  Graph graph;
  graph.executable_ = new CUgraphExec_st{std::move(works)};
  return graph;
}

Graph::~Graph() { delete executable_; }

absl::Status Graph::Launch(NativeStream stream) const {
  for (const auto& work : executable_->works) {
    if (const absl::Status given = emulation::Give(stream, work); !given.ok()) return given;
  }
  return absl::OkStatus();
}

}  // namespace FORESHARD_CUDA_NAMESPACE
