// IDX files, as http://yann.lecun.com/exdb/mnist describes them: a big-endian
// magic (two zero bytes, type 8 = unsigned byte, number of dimensions), the
// dimensions as big-endian u32, then the bytes.
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/data/dataset.h"
#include "worker/data/gz_reader.h"
#include "worker/data/images.h"

namespace foreshard {
namespace {

constexpr uint32_t kImagesMagic = 0x00000803;
constexpr uint32_t kLabelsMagic = 0x00000801;
// Bounds on what a header may claim, so that a damaged one allocates nothing.
constexpr uint64_t kMaxBytes = uint64_t{1} << 36;

struct IdxFile {
  std::vector<uint32_t> dimensions;
  std::vector<uint8_t> bytes;
};

uint32_t BigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

absl::StatusOr<IdxFile> ReadIdx(const std::string& path, uint32_t magic, const char* what) {
  auto opened = GzReader::Open(path, what);
  if (!opened.ok()) return opened.status();
  GzReader& reader = **opened;
  const size_t dimensions = magic & 0xFF;
  std::array<uint8_t, 4 + 4 * 3> header;
  const uint64_t header_bytes = 4 + 4 * dimensions;
  auto got = reader.Read(header.data(), header_bytes);
  if (!got.ok()) return got.status();
  if (*got >= 4 && BigEndian(header.data()) != magic) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: starts with 0x%08x, but an IDX file of %s starts with 0x%08x; is it "
                        "the right file?",
                        path, BigEndian(header.data()), what, magic));
  }
  if (*got < header_bytes) {
    return absl::DataLossError(absl::StrCat(path, ": has ", *got, " bytes, its header alone needs ",
                                            header_bytes, "; it is cut off"));
  }
  IdxFile file;
  uint64_t expected = 1;
  for (size_t d = 0; d < dimensions; ++d) {
    file.dimensions.push_back(BigEndian(header.data() + 4 + 4 * d));
    if (file.dimensions[d] == 0 || expected > kMaxBytes / file.dimensions[d]) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": dimension ", d, " of the header is ", file.dimensions[d],
                       "; every one must be at least 1 and all together at most ", kMaxBytes,
                       " bytes"));
    }
    expected *= file.dimensions[d];
  }
  got = reader.Append(expected, &file.bytes);
  if (!got.ok()) return got.status();
  if (*got < expected) {
    return absl::DataLossError(absl::StrCat(path, ": holds ", *got, " bytes of ", what,
                                            ", its header says ", expected, "; it is cut off"));
  }
  uint8_t extra;
  got = reader.Read(&extra, 1);
  if (!got.ok()) return got.status();
  if (*got != 0) {
    return absl::DataLossError(absl::StrCat(path, ": goes on after the ", expected, " bytes of ",
                                            what, " that its header says"));
  }
  return file;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> LoadIdx(const std::string& images_path,
                                                 const std::string& labels_path,
                                                 const IdxOptions& options) {
  auto images = ReadIdx(images_path, kImagesMagic, "images");
  if (!images.ok()) return images.status();
  auto labels = ReadIdx(labels_path, kLabelsMagic, "labels");
  if (!labels.ok()) return labels.status();
  if (images->dimensions[0] != labels->dimensions[0]) {
    return absl::InvalidArgumentError(absl::StrCat(
        images_path, " has ", images->dimensions[0], " images, but ", labels_path, " has ",
        labels->dimensions[0], " labels; they do not belong together"));
  }
  for (size_t i = 0; i < labels->bytes.size(); ++i) {
    if (labels->bytes[i] >= options.classes) {
      return absl::InvalidArgumentError(absl::StrCat(labels_path, ": label ", i, " is ",
                                                     static_cast<int>(labels->bytes[i]),
                                                     ", but data.classes is ", options.classes));
    }
  }
  const InputShape shape{images->dimensions[1], images->dimensions[2], 1};
  const ImageOptions image_options{.means = {options.mean},
                                   .deviations = {options.deviation},
                                   .flip = options.flip,
                                   .crop_padding = options.crop_padding};
  if (auto s = CheckImageOptions(image_options, shape); !s.ok()) return s;
  return std::make_unique<ImageDataset>(std::move(images->bytes), std::move(labels->bytes), shape,
                                        options.classes, image_options);
}

}  // namespace foreshard
