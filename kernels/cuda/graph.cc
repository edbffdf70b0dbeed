#include "kernels/cuda/graph.h"

#include <cuda_runtime.h>

#include "kernels/cuda/errors.h"

namespace foreshard::kernels::cuda {

absl::StatusOr<Graph> Graph::Capture(NativeStream stream,
                                     absl::FunctionRef<absl::Status(NativeStream)> give) {
  absl::Status status = CudaStatus(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
  if (!status.ok()) return status;
  const absl::Status given = give(stream);
  cudaGraph_t captured = nullptr;
  // Also after an error: the stream must leave the capture.
  status = CudaStatus(cudaStreamEndCapture(stream, &captured), "ending a capture");
  Graph graph;
  if (given.ok() && status.ok()) {
    status = CudaStatus(cudaGraphInstantiate(&graph.executable_, captured, 0),
                        "making a graph of a step");
  }
  if (captured != nullptr) cudaGraphDestroy(captured);
  if (!given.ok()) return given;
  if (!status.ok()) return status;
  return graph;
}

Graph::~Graph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
}

absl::Status Graph::Launch(NativeStream stream) const {
  return CudaStatus(cudaGraphLaunch(executable_, stream), "launching the graph of a step");
}

}  // namespace foreshard::kernels::cuda
