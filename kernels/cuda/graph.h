// Work that a stream is given again and again, given once: a captured CUDA graph. Launching it
// costs the host one call however many kernels it has.
//
//   ASSIGN(Graph graph, Graph::Capture(stream, [&](NativeStream s) { return GiveAll(s); }));
//   graph.Launch(stream);        // every step
//
// All addresses and numbers are those of the capture: what changes from step to step lies in
// device memory. Nothing that is captured may wait, allocate, or copy from memory that is not
// pinned; libraries must have run once before, since they allocate when they first do.
// Thread-compatible. Errors as memory.h.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/memory.h"

struct CUgraphExec_st;

namespace FORESHARD_CUDA_NAMESPACE {

class Graph {
 public:
  // Calls `give` once; what it gives the stream becomes the graph and is not run. Not on the
  // default stream.
  static absl::StatusOr<Graph> Capture(NativeStream stream,
                                       absl::FunctionRef<absl::Status(NativeStream)> give);

  Graph() = default;
  Graph(Graph&& other) noexcept { *this = std::move(other); }
  Graph& operator=(Graph&& other) noexcept {
    std::swap(executable_, other.executable_);
    return *this;
  }
  ~Graph();

  absl::Status Launch(NativeStream stream) const;

 private:
  CUgraphExec_st* executable_ = nullptr;
};

}  // namespace FORESHARD_CUDA_NAMESPACE
