// What both halves of gpu_bench share: how long work on a stream takes, and lines of JSON.
//
//   const auto seconds = SecondsOf(stream, [&] { return codec.Encode(...); });
//   Print(Line("kernels", "encode/one_bit").Number("seconds", *seconds));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/memory.h"

namespace foreshard::gpu_check {

// One JSON object, a field after another. Names and texts are ours: plain letters and digits.
class Line {
 public:
  Line(std::string_view part, std::string_view name);
  Line& Text(std::string_view field, std::string_view text);
  Line& Number(std::string_view field, double number);
  // `json` as it is.
  Line& Json(std::string_view field, std::string_view json);
  std::string text() const { return text_ + "}"; }

 private:
  std::string text_;
};

// To stdout, at once.
void Print(const Line& line);

// Has the GPU busy with calls of `give` until it has left its idle clocks.
absl::Status WarmUp(kernels::cuda::NativeStream stream, absl::FunctionRef<absl::Status()> give);

// Seconds of one call of `give` by the clock of the host: the median of rounds, each of as many
// calls given one after another as take a while, then waited for.
absl::StatusOr<double> SecondsOf(kernels::cuda::NativeStream stream,
                                 absl::FunctionRef<absl::Status()> give);

// The median of the seconds between calls of `step`, which waits by itself.
absl::StatusOr<double> SecondsOfStep(absl::FunctionRef<absl::Status()> step);

// Parts of the program; each prints its lines.
absl::Status BenchKernels();
absl::Status BenchLayers(std::string_view precision, uint32_t batch);
absl::Status BenchModel(std::string_view model, std::string_view precision, uint32_t batch);

}  // namespace foreshard::gpu_check
