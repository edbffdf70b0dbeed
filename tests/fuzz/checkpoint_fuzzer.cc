// A checkpoint's folder: manifest, states and parameters, with checksums that are right.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/checkpoint_files.h"
#include "server/checkpoint_format.h"
#include "tests/fuzz/fuzz.h"
#include "tests/golden/samples.h"
#include "tests/server/durable_run.h"

namespace foreshard::fuzz {
namespace {

const std::string& ParametersName() {
  static const auto& name = *new std::string(ParametersFileName(0, 1));
  return name;
}

void Run(ByteSpan bytes) {
  const auto files = UnpackFiles(AsText(bytes), 3);
  const std::string folder = internal::CheckpointName(1) + "/";
  const ReadOnlyStorage storage({{folder + internal::kManifestName, files[0]},
                                 {folder + internal::kStateName, files[1]},
                                 {folder + ParametersName(), files[2]}});
  const auto checkpoint = Checkpoint::OpenNewest(storage, kDurableIdentity);
  if (!checkpoint.ok()) return;
  const auto text = EncodeManifest((*checkpoint)->manifest());
  FUZZ_CHECK(text.ok());
  const auto again = ParseManifest(*text);
  FUZZ_CHECK(again.ok() && *again == (*checkpoint)->manifest());
  for (const CheckpointManifest::State& state : again->states) {
    (*checkpoint)->ReadState(state.segment).IgnoreError();
  }
  const auto parameters = (*checkpoint)->OpenParameters();
  if (!parameters.ok()) return;
  for (const SafetensorsTensor& tensor : parameters->tensors()) {
    std::vector<float> values(tensor.elements);
    FUZZ_CHECK(parameters->ReadFloats(tensor, 0, absl::MakeSpan(values)).ok());
  }
}

// States get their checksums, the manifest those of its files and its own.
void Repair(std::string* input) {
  std::vector<std::string> files = UnpackFiles(*input, 3);
  std::string& states = files[1];
  for (size_t at = internal::kStateHeaderBytes; at + internal::kStateHeadBytes < states.size();) {
    const uint64_t length = ReadAt<uint64_t>(states, at);
    if (length < internal::kStateTailBytes || length > states.size() - at - 8) break;
    MendChecksum(&states, at + 8, at + length);
    at += 8 + length;
  }
  constexpr size_t kDigits = 16, kEnd = 4, kKey = 13;
  if (std::string& text = files[0]; text.size() > kDigits + kEnd + kKey) {
    const size_t digits = text.size() - kEnd - kDigits;
    const uint64_t checksum = Checksum(AsBytes(std::string_view(text).substr(0, digits - kKey)));
    text.replace(digits, kDigits, absl::StrCat(absl::Hex(checksum, absl::kZeroPad16)));
    if (auto manifest = ParseManifest(text); manifest.ok()) {
      for (CheckpointManifest::File& file : manifest->files) {
        const std::string& content = file.name == internal::kStateName ? files[1] : files[2];
        file.bytes = content.size();
        file.checksum = Checksum(AsBytes(content));
      }
      text = EncodeManifest(*manifest).value_or(text);
    }
  }
  *input = PackFiles(files);
}

Seeds MakeSeeds() {
  const golden::Files files = golden::CheckpointFiles();
  const auto content = [&](const std::string& name) {
    for (const auto& [path, bytes] : files) {
      if (absl::EndsWith(path, "/" + name)) return bytes;
    }
    return std::string();
  };
  return {{"whole", PackFiles({content(internal::kManifestName), content(internal::kStateName),
                               content(ParametersName())})}};
}

const Registration registration(
    {.name = "checkpoint", .run = Run, .repair = Repair, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
