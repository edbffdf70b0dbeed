#include "tools/gpu_check/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace foreshard::gpu_check {
namespace {

constexpr int kRounds = 7;
constexpr double kRoundSeconds = 0.02;
constexpr int kWarmUp = 3;
constexpr double kWarmUpSeconds = 0.3;
// Steps: the first runs as it is, the second is captured, libraries settle meanwhile.
constexpr int kStepWarmUp = 12;
constexpr double kStepSeconds = 1.0;
constexpr size_t kFewestSteps = 10;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

Line::Line(std::string_view part, std::string_view name)
    : text_(absl::StrCat("{\"part\": \"", View(part), "\", \"name\": \"", View(name), "\"")) {}

Line& Line::Text(std::string_view field, std::string_view text) {
  absl::StrAppend(&text_, ", \"", View(field), "\": \"", View(text), "\"");
  return *this;
}

Line& Line::Number(std::string_view field, double number) {
  absl::StrAppendFormat(&text_, ", \"%s\": %.9g", View(field), number);
  return *this;
}

Line& Line::Json(std::string_view field, std::string_view json) {
  absl::StrAppend(&text_, ", \"", View(field), "\": ", View(json));
  return *this;
}

void Print(const Line& line) {
  std::printf("%s\n", line.text().c_str());
  std::fflush(stdout);
}

absl::Status WarmUp(kernels::cuda::NativeStream stream, absl::FunctionRef<absl::Status()> give) {
  for (const double begin = Now(); Now() - begin < kWarmUpSeconds;) {
    for (int i = 0; i < kWarmUp; ++i) {
      if (const absl::Status given = give(); !given.ok()) return given;
    }
    if (const absl::Status waited = kernels::cuda::WaitFor(stream); !waited.ok()) return waited;
  }
  return absl::OkStatus();
}

absl::StatusOr<double> SecondsOf(kernels::cuda::NativeStream stream,
                                 absl::FunctionRef<absl::Status()> give) {
  const auto round = [&](int calls) -> absl::StatusOr<double> {
    const double begin = Now();
    for (int i = 0; i < calls; ++i) {
      if (const absl::Status given = give(); !given.ok()) return given;
    }
    if (const absl::Status waited = kernels::cuda::WaitFor(stream); !waited.ok()) return waited;
    return (Now() - begin) / calls;
  };
  const absl::StatusOr<double> warm = round(kWarmUp);
  if (!warm.ok()) return warm;
  const absl::StatusOr<double> once = round(kWarmUp);
  if (!once.ok()) return once;
  const int calls = static_cast<int>(std::clamp(kRoundSeconds / std::max(*once, 1e-7), 1.0, 1000.0));
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) {
    const absl::StatusOr<double> measured = round(calls);
    if (!measured.ok()) return measured;
    seconds.push_back(*measured);
  }
  return Median(seconds);
}

absl::StatusOr<double> SecondsOfStep(absl::FunctionRef<absl::Status()> step) {
  for (int i = 0; i < kStepWarmUp; ++i) {
    if (const absl::Status done = step(); !done.ok()) return done;
  }
  std::vector<double> seconds;
  for (const double begin = Now(); seconds.size() < kFewestSteps || Now() - begin < kStepSeconds;) {
    const double start = Now();
    if (const absl::Status done = step(); !done.ok()) return done;
    seconds.push_back(Now() - start);
  }
  return Median(seconds);
}

}  // namespace foreshard::gpu_check
