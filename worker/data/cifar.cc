// CIFAR-10 and CIFAR-100, the binary version (https://www.cs.toronto.edu/~kriz/cifar.html): a
// file is a row of records, each its label (CIFAR-100: the label of 20 superclasses, then that
// of 100 classes) and 32 x 32 pixels in three planes, red, green and blue.
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/data/dataset.h"
#include "worker/data/gz_reader.h"
#include "worker/data/images.h"

namespace foreshard {
namespace {

constexpr InputShape kShape{32, 32, 3};
constexpr uint64_t kPlane = 32 * 32;
constexpr uint32_t kSuperclasses = 20;
// Bounds what a gzipped file may unpack to; the published ones have 50,000 records at most.
constexpr uint64_t kMaxRecords = 1 << 20;

struct Kind {
  const char* name;
  uint32_t classes;
  uint64_t label_bytes;
  uint64_t record() const { return label_bytes + kShape.elements(); }
};

constexpr Kind kCifar10{"CIFAR-10", 10, 1}, kCifar100{"CIFAR-100", 100, 2};

absl::Status BadLabel(const std::string& path, const Kind& kind, uint64_t record,
                      const char* which, int label, uint32_t classes) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": record ", record, " has the ", which, " ", label, ", but ", kind.name, " has 0 to ",
      classes - 1, "; the file is damaged, or another one"));
}

absl::Status AppendFile(const std::string& path, const Kind& kind, std::vector<uint8_t>* pixels,
                        std::vector<uint8_t>* labels) {
  auto reader = GzReader::Open(path, kind.name);
  if (!reader.ok()) return reader.status();
  std::vector<uint8_t> bytes;
  const uint64_t most = kMaxRecords * kind.record();
  auto got = (*reader)->Append(most + 1, &bytes);
  if (!got.ok()) return got.status();
  if (*got == 0 || *got > most || *got % kind.record() != 0) {
    return absl::DataLossError(absl::StrCat(
        path, ": has ", *got > most ? "more than " : "", *got > most ? most : *got,
        " bytes, but a ", kind.name, " file has ", kind.record(), " for each of its 1 to ",
        kMaxRecords, " images and none besides; is it the right one, and whole?"));
  }
  const uint64_t records = *got / kind.record();
  pixels->reserve(pixels->size() + records * kShape.elements());
  for (uint64_t i = 0; i < records; ++i) {
    const uint8_t* record = bytes.data() + i * kind.record();
    const uint8_t label = record[kind.label_bytes - 1];
    if (kind.label_bytes == 2 && record[0] >= kSuperclasses) {
      return BadLabel(path, kind, i, "superclass", record[0], kSuperclasses);
    }
    if (label >= kind.classes) return BadLabel(path, kind, i, "label", label, kind.classes);
    labels->push_back(label);
    const uint8_t* planes = record + kind.label_bytes;
    for (uint64_t pixel = 0; pixel < kPlane; ++pixel) {
      for (uint64_t c = 0; c < kShape.channels; ++c) {
        pixels->push_back(planes[c * kPlane + pixel]);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> LoadCifar(const std::vector<std::string>& paths,
                                                   uint32_t classes, const ImageOptions& options) {
  if (classes != kCifar10.classes && classes != kCifar100.classes) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.classes is ", classes, "; CIFAR has 10 or 100"));
  }
  if (paths.empty()) return absl::InvalidArgumentError("no CIFAR files are named");
  if (auto s = CheckImageOptions(options, kShape); !s.ok()) return s;
  std::vector<uint8_t> pixels, labels;
  for (const std::string& path : paths) {
    const Kind& kind = classes == kCifar10.classes ? kCifar10 : kCifar100;
    if (auto s = AppendFile(path, kind, &pixels, &labels); !s.ok()) return s;
  }
  return std::make_unique<ImageDataset>(std::move(pixels), std::move(labels), kShape, classes,
                                        options);
}

}  // namespace foreshard
