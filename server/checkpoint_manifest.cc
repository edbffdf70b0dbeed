#include "server/checkpoint_manifest.h"

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/core/bytes.h"
#include "common/core/json_text.h"
#include "nlohmann/json.hpp"
#include "server/event.h"

namespace foreshard {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormatName[] = "foreshard checkpoint";
constexpr char kDealer[] = "dealer";
constexpr char kChecksumKey[] = ",\n  \"xxh3\": \"";
constexpr char kEnd[] = "\"\n}\n";
constexpr size_t kHexDigits = 16;
// So many states and files no shard has.
constexpr size_t kMostEntries = 1 << 20;

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

bool ParseHex(absl::string_view text, uint64_t* value) {
  return text.size() == kHexDigits && absl::SimpleHexAtoi(text, value) && Hex(*value) == text;
}

// Reads fields; the first that is missing or of another kind is remembered.
class Fields {
 public:
  explicit Fields(const Json& object, std::string* fault) : object_(object), fault_(fault) {
    if (!object.is_object()) Fail("an object");
  }

  uint64_t Number(const std::string& key, uint64_t most = std::numeric_limits<uint64_t>::max()) {
    const Json* const value = Find(key);
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned() || value->get<uint64_t>() > most) {
      Fail(key);
      return 0;
    }
    return value->get<uint64_t>();
  }
  std::string Text(const std::string& key) {
    const Json* const value = Find(key);
    if (value == nullptr) return "";
    if (!value->is_string()) {
      Fail(key);
      return "";
    }
    return value->get<std::string>();
  }
  uint64_t Checksum(const std::string& key) {
    uint64_t value = 0;
    if (!ParseHex(Text(key), &value)) Fail(key);
    return value;
  }
  // Null where it is none.
  const Json* List(const std::string& key) {
    const Json* const value = Find(key);
    if (value == nullptr) return nullptr;
    if (value->is_array() && value->size() <= kMostEntries) return value;
    Fail(key);
    return nullptr;
  }
  const Json* Find(const std::string& key) {
    if (!object_.is_object() || !object_.contains(key)) {
      Fail(key);
      return nullptr;
    }
    return &object_[key];
  }

 private:
  void Fail(const std::string& what) {
    if (fault_->empty()) *fault_ = what;
  }

  const Json& object_;
  std::string* const fault_;
};

}  // namespace

uint64_t CheckpointManifest::first_number() const {
  if (about.journal_file == 0) return next_number();
  uint64_t first = next_number();
  for (const State& state : states) first = std::min(first, state.number + 1);
  return first;
}

uint64_t CheckpointManifest::next_number() const {
  uint64_t next = 1;
  for (const State& state : states) next = std::max(next, state.number + 1);
  return next;
}

absl::StatusOr<std::string> EncodeManifest(const CheckpointManifest& manifest) {
  const auto too_long = [](uint64_t bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's manifest would have ", bytes,
                                                   " bytes or more; no more than ", kMaxManifestBytes,
                                                   " are read again"));
  };
  if (std::max(manifest.states.size(), manifest.files.size()) > kMostEntries) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's manifest would have ", manifest.states.size(),
                                                   " states and ", manifest.files.size(), " files; no more than ",
                                                   kMostEntries, " of each are read again"));
  }
  uint64_t extra_bytes = 0;
  for (const auto& [key, value] : manifest.about.extra) extra_bytes += key.size() + value.size();
  if (extra_bytes > kMaxManifestBytes) return too_long(extra_bytes);
  for (const auto& [key, value] : manifest.about.extra) {
    for (const std::string* text : {&key, &value}) {
      if (const auto valid = JsonText(*text); !valid.ok()) return valid.status();
    }
  }
  const CheckpointAbout& about = manifest.about;
  Json states = Json::array(), files = Json::array(), extra = Json::object();
  for (const CheckpointManifest::State& state : manifest.states) {
    states.push_back({{"segment", state.segment == kDealerSegment ? Json(kDealer) : Json(state.segment)},
                      {"number", state.number}});
  }
  for (const CheckpointManifest::File& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", Hex(file.checksum)}});
  }
  for (const auto& [key, value] : about.extra) extra[key] = value;
  Json json = {{"format", kFormatName},
               {"format_version", kCheckpointFormat},
               {"checkpoint", manifest.index},
               {"protocol", about.identity.protocol},
               {"job", Hex(about.identity.job)},
               {"schema", Hex(about.identity.schema)},
               {"plan", Hex(about.identity.plan)},
               {"shard", about.identity.shard},
               {"shards", about.identity.shards},
               {"incarnation", about.incarnation},
               {"step", about.step},
               {"epoch", about.epoch},
               {"journal_file", about.journal_file},
               {"states", std::move(states)},
               {"files", std::move(files)},
               {"extra", std::move(extra)}};
  if (about.identity.run != 0) json["run"] = Hex(about.identity.run);
  std::string text = json.dump(2);
  // Without the brace that ends it.
  text.resize(text.size() - 2);
  const uint64_t checksum = Checksum(AsBytes(text));
  absl::StrAppend(&text, kChecksumKey, Hex(checksum), kEnd);
  if (text.size() > kMaxManifestBytes) return too_long(text.size());
  const absl::StatusOr<CheckpointManifest> read = ParseManifest(text);
  if (!read.ok() || !(*read == manifest)) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's manifest could not be read again: ",
                                                   read.ok() ? "it would say something else" : read.status().message()));
  }
  return text;
}

absl::StatusOr<CheckpointManifest> ParseManifest(const std::string& text) {
  constexpr size_t kTail = sizeof kChecksumKey - 1 + kHexDigits + sizeof kEnd - 1;
  if (text.size() < kTail || text.size() > kMaxManifestBytes) {
    return absl::DataLossError(
        absl::StrCat("the manifest has ", text.size(), " bytes and is cut, or none"));
  }
  const absl::string_view body = absl::string_view(text).substr(0, text.size() - kTail);
  const absl::string_view tail = absl::string_view(text).substr(body.size());
  uint64_t checksum = 0;
  if (!absl::StartsWith(tail, kChecksumKey) || !absl::EndsWith(tail, kEnd) ||
      !ParseHex(tail.substr(sizeof kChecksumKey - 1, kHexDigits), &checksum)) {
    return absl::DataLossError("the manifest does not end with its checksum: it is cut or changed");
  }
  if (checksum != Checksum(AsBytes(std::string_view(body.data(), body.size())))) {
    return absl::DataLossError("the manifest's checksum differs: it was changed");
  }
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return absl::DataLossError("the manifest is no JSON");
  std::string fault;
  Fields fields(json, &fault);
  if (fields.Text("format") != kFormatName) {
    return absl::DataLossError("the manifest is not of a checkpoint");
  }
  if (absl::Status known = CheckFormat("the checkpoint", fields.Number("format_version"), kCheckpointFormats);
      !known.ok()) {
    return known;
  }
  constexpr uint64_t k32Bits = std::numeric_limits<uint32_t>::max();
  CheckpointManifest manifest;
  CheckpointAbout& about = manifest.about;
  manifest.index = fields.Number("checkpoint");
  about.identity.protocol = static_cast<uint32_t>(fields.Number("protocol", k32Bits));
  about.identity.job = fields.Checksum("job");
  about.identity.schema = fields.Checksum("schema");
  about.identity.plan = fields.Checksum("plan");
  if (json.is_object() && json.contains("run")) about.identity.run = fields.Checksum("run");
  about.identity.shard = static_cast<uint32_t>(fields.Number("shard", k32Bits));
  about.identity.shards = static_cast<uint32_t>(fields.Number("shards", k32Bits));
  about.incarnation = fields.Number("incarnation");
  about.step = fields.Number("step");
  about.epoch = static_cast<uint32_t>(fields.Number("epoch", k32Bits));
  about.journal_file = fields.Number("journal_file");
  if (const Json* const states = fields.List("states"); states != nullptr) {
    for (const Json& each : *states) {
      Fields state(each, &fault);
      const Json* const segment = state.Find("segment");
      const bool dealer = segment != nullptr && *segment == kDealer;
      manifest.states.push_back(
          {.segment = dealer ? kDealerSegment : static_cast<uint32_t>(state.Number("segment", k32Bits - 1)),
           .number = state.Number("number", std::numeric_limits<uint64_t>::max() - 1)});
    }
  }
  if (const Json* const files = fields.List("files"); files != nullptr) {
    for (const Json& each : *files) {
      Fields file(each, &fault);
      manifest.files.push_back(
          {.name = file.Text("name"), .bytes = file.Number("bytes"), .checksum = file.Checksum("xxh3")});
    }
  }
  if (const Json* const extra = fields.Find("extra"); extra != nullptr) {
    Fields texts(*extra, &fault);
    for (const auto& [key, value] : extra->items()) about.extra[key] = texts.Text(key);
  }
  if (!fault.empty()) {
    return absl::DataLossError(
        absl::StrCat("the manifest's '", fault, "' is missing, or not what belongs there"));
  }
  return manifest;
}

}  // namespace foreshard
