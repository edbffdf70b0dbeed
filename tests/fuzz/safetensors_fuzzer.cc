// A safetensors file: header, tensors, values.
#include "common/core/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace foreshard::fuzz {
namespace {

void Run(ByteSpan bytes) {
  const std::string file = AsText(bytes);
  const auto read = [&](uint64_t offset, uint64_t count) -> absl::StatusOr<std::string> {
    if (offset > file.size()) return std::string();
    return file.substr(offset, count);
  };
  const auto reader = SafetensorsReader::Open(read, file.size(), "fuzz");
  if (!reader.ok()) return;
  for (const SafetensorsTensor& tensor : reader->tensors()) {
    FUZZ_CHECK(reader->Find(tensor.name) == &tensor);
    FUZZ_CHECK(tensor.offset + tensor.elements * BytesOf(tensor.type) <= file.size());
    std::vector<float> values(tensor.elements);
    FUZZ_CHECK(reader->ReadFloats(tensor, 0, absl::MakeSpan(values)).ok());
  }
}

// A length of the header that leads to its last brace.
void Repair(std::string* input) {
  const size_t brace = input->rfind('}');
  if (brace != std::string::npos && brace >= 8) Overwrite(input, 0, uint64_t{brace - 7});
}

Seeds MakeSeeds() {
  std::string file;
  auto writer = SafetensorsWriter::Create(
      {{.name = "w", .shape = {2, 3}},
       {.name = "half", .type = SafetensorsType::kF16, .shape = {2}},
       {.name = "brain", .type = SafetensorsType::kBF16, .shape = {}}},
      {{"format", "pt"}}, [&](ByteSpan bytes) {
        file += AsText(bytes);
        return absl::OkStatus();
      });
  FUZZ_CHECK(writer.ok());
  const std::string values(6 * 4 + 2 * 2 + 2, '\x3c');
  FUZZ_CHECK(writer->Append(AsBytes(values)).ok() && writer->Finish().ok());
  return {{"three", file}};
}

const Registration registration(
    {.name = "safetensors", .run = Run, .repair = Repair, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
