#include "tools/simulate/run_file.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/core/bytes.h"
#include "common/net/version.h"
#include "kernels/cpu/isa.h"
#include "nlohmann/json.hpp"
#include "tools/files.h"
#include "tools/message_json.h"
#include "tools/json_number.h"

namespace foreshard {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Also counts changes of what the simulator computes: raise it, and older files are
// run again.
constexpr int kFormat = 2;
// The file's first lines; the checksum is of all bytes behind them.
constexpr char kHead[] = "{\n \"format\": %d,\n \"checksum\": \"%016x\",\n";

double ToNumber(const json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

// Calls visit(name, field) for every plain field, so that what is written is read.
template <typename Result, typename Visit>
void VisitNumbers(Result& result, Visit visit) {
  visit("final_accuracy", result.final_accuracy);
  visit("best_accuracy", result.best_accuracy);
  visit("final_loss", result.final_loss);
  visit("diverged_epoch", result.diverged_epoch);
  visit("lag_mean", result.lag_mean);
  visit("gap_mean", result.gap_mean);
  visit("surprise_mean", result.surprise_mean);
  visit("virtual_seconds", result.virtual_seconds);
  visit("synchronous_seconds", result.synchronous_seconds);
  visit("ideal_seconds", result.ideal_seconds);
}

template <typename Result, typename Visit>
void VisitCounts(Result& result, Visit visit) {
  visit("lag_p99", result.lag_p99);
  visit("lag_max", result.lag_max);
  visit("batches", result.batches);
  visit("updates", result.updates);
  visit("discarded", result.discarded);
  visit("skipped", result.skipped);
  visit("push_bytes", result.push_bytes);
  visit("pull_bytes", result.pull_bytes);
}

template <typename Result, typename Visit>
void VisitTimes(Result& result, Visit visit) {
  visit("total_seconds", result.total_seconds);
  visit("gradient_seconds", result.gradient_seconds);
  visit("evaluation_seconds", result.evaluation_seconds);
}

ordered_json ToJson(const SimulationResult& result) {
  ordered_json out;
  out["diverged"] = result.diverged;
  VisitNumbers(result, [&](const char* name, double value) { out[name] = Number(value); });
  VisitCounts(result, [&](const char* name, uint64_t value) { out[name] = value; });
  out["parameters_checksum"] = absl::StrFormat("%016x", result.parameters_checksum);
  out["worker_batches"] = result.worker_batches;
  out["lag_counts"] = result.lag_counts;
  out["gap_counts"] = result.gaps.counts;
  out["segments"] = ordered_json::array();
  for (const auto& segment : result.segments) {
    out["segments"].push_back(
        {Number(segment.lag_mean), Number(segment.gap_mean), Number(segment.surprise_mean)});
  }
  if (!result.phase_changes.empty()) out["phase_changes"] = PhaseChangesJson(result);
  out["curve"] = ordered_json::array();
  for (const CurvePoint& point : result.curve) {
    out["curve"].push_back({Number(point.epoch), Number(point.virtual_seconds),
                            Number(point.training_loss), Number(point.loss),
                            Number(point.accuracy)});
  }
  return out;
}

uint64_t FromHex(const json& text) { return std::stoull(text.get<std::string>(), nullptr, 16); }

// Throws where something is missing or of another type.
SimulationResult FromJson(const json& in) {
  SimulationResult result;
  result.diverged = in.at("diverged").get<bool>();
  VisitNumbers(result, [&](const char* name, double& value) { value = ToNumber(in.at(name)); });
  VisitCounts(result, [&](const char* name, uint64_t& value) { in.at(name).get_to(value); });
  result.parameters_checksum = FromHex(in.at("parameters_checksum"));
  in.at("worker_batches").get_to(result.worker_batches);
  in.at("lag_counts").get_to(result.lag_counts);
  in.at("gap_counts").get_to(result.gaps.counts);
  for (const json& segment : in.at("segments")) {
    result.segments.push_back(
        {ToNumber(segment.at(0)), ToNumber(segment.at(1)), ToNumber(segment.at(2))});
  }
  // Not in older files.
  for (const json& change : in.value("phase_changes", json::array())) {
    result.phase_changes.push_back({change.at("round").get<uint64_t>(), change.at("compressed").get<bool>()});
  }
  for (const json& point : in.at("curve")) {
    result.curve.push_back({ToNumber(point.at(0)), ToNumber(point.at(1)), ToNumber(point.at(2)),
                            ToNumber(point.at(3)), ToNumber(point.at(4))});
  }
  return result;
}

}  // namespace

ordered_json PhaseChangesJson(const SimulationResult& result) {
  ordered_json list = ordered_json::array();
  for (const auto& change : result.phase_changes) {
    list.push_back({{"round", change.round}, {"compressed", change.compressed}});
  }
  return list;
}

std::string RunFilePath(const std::string& folder, const std::string& key) {
  return absl::StrCat(folder, "/", key, ".json");
}

absl::Status WriteRunFile(const std::string& folder, const RunFile& file) {
  ordered_json out;
  out["key"] = file.key;
  out["fingerprint"] = absl::StrFormat("%016x", file.fingerprint);
  out["result"] = ToJson(file.result);
  VisitTimes(file.result,
             [&](const char* name, double value) { out["timing"][name] = Number(value); });
  out["run"] = file.description;
  std::string body = JsonText(out, 1);
  body.erase(0, 2);  // the brace and the end of its line, which the head has
  const std::string head = absl::StrFormat(kHead, kFormat, Checksum(AsBytes(body)));
  return WriteFileAtomically(RunFilePath(folder, file.key), head + body);
}

absl::StatusOr<RunFile> ReadRunFile(const std::string& folder, const std::string& key) {
  const std::string path = RunFilePath(folder, key);
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  RunFile file = {.key = key};
  // The libraries throw at the first thing that is not as it was written.
  try {
    const json in = json::parse(*text);
    if (in.at("format").get<int>() != kFormat) {
      return absl::DataLossError(absl::StrCat(path, " is of another format"));
    }
    const size_t head_bytes = absl::StrFormat(kHead, kFormat, 0).size();
    const std::string_view body =
        std::string_view(*text).substr(std::min(head_bytes, text->size()));
    if (!absl::StartsWith(*text, absl::StrFormat(kHead, kFormat, Checksum(AsBytes(body))))) {
      return absl::DataLossError(absl::StrCat(path, " is not as it was written (its checksum)"));
    }
    file.fingerprint = FromHex(in.at("fingerprint"));
    file.result = FromJson(in.at("result"));
    VisitTimes(file.result, [&](const char* name, double& value) {
      value = ToNumber(in.at("timing").at(name));
    });
  } catch (const std::exception& error) {
    return absl::DataLossError(absl::StrCat(path, " is no file of a run: ", error.what()));
  }
  return file;
}

uint64_t RunFingerprint(const std::string& description, uint64_t data_checksum) {
  const std::string text =
      absl::StrCat(kFormat, " ", kVersion, " ", static_cast<int>(kernels::ActiveIsa()), " ",
                   data_checksum, "\n", description);
  return Checksum(AsBytes(text));
}

}  // namespace foreshard
