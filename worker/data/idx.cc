// IDX files, as http://yann.lecun.com/exdb/mnist describes them: a big-endian
// magic (two zero bytes, type 8 = unsigned byte, number of dimensions), the
// dimensions as big-endian u32, then the bytes. zlib reads plain and gzipped
// files alike.
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/core/random.h"
#include "worker/data/dataset.h"

namespace foreshard {
namespace {

constexpr uint32_t kImagesMagic = 0x00000803;
constexpr uint32_t kLabelsMagic = 0x00000801;
// Bounds on what a header may claim, so that a damaged one allocates nothing.
constexpr uint64_t kMaxBytes = uint64_t{1} << 36;
constexpr uint64_t kFlipStream = 0x666C6970;  // "flip"
// Memory grows with what was read, not with what the header claims.
constexpr uint64_t kReadBytes = 1 << 24;

struct IdxFile {
  std::vector<uint32_t> dimensions;
  std::vector<uint8_t> bytes;
};

class GzReader {
 public:
  explicit GzReader(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (file_ != nullptr) gzbuffer(file_, 1 << 18);
  }
  ~GzReader() {
    if (file_ != nullptr) gzclose_r(file_);
  }
  GzReader(const GzReader&) = delete;
  GzReader& operator=(const GzReader&) = delete;

  bool open() const { return file_ != nullptr; }

  // Bytes read: fewer than asked only at the end. DATA_LOSS from zlib.
  absl::StatusOr<uint64_t> Read(void* to, uint64_t bytes) {
    uint64_t done = 0;
    while (done < bytes) {
      const auto piece = static_cast<unsigned>(std::min(bytes - done, kReadBytes));
      const int got = gzread(file_, static_cast<char*>(to) + done, piece);
      if (got < 0) return Problem();
      if (got == 0) break;
      done += static_cast<uint64_t>(got);
    }
    // A gzip file cut off in the middle ends early with Z_BUF_ERROR only.
    int code = Z_OK;
    gzerror(file_, &code);
    if (code != Z_OK && code != Z_STREAM_END) return Problem();
    return done;
  }

 private:
  absl::Status Problem() const {
    int code = Z_OK;
    const char* text = gzerror(file_, &code);
    if (code == Z_ERRNO) text = std::strerror(errno);
    return absl::DataLossError(absl::StrCat(path_, ": cannot be decompressed or read after byte ",
                                            static_cast<int64_t>(gztell(file_)), " (", text,
                                            "); fetch the file again"));
  }

  std::string path_;
  gzFile file_;
};

uint32_t BigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

absl::StatusOr<IdxFile> ReadIdx(const std::string& path, uint32_t magic, const char* what) {
  errno = 0;
  GzReader reader(path);
  if (!reader.open()) {
    const int error = errno;
    const std::string text =
        absl::StrCat(path, ": cannot be opened for ", what, " (", std::strerror(error),
                     "); check data.directory and the file names");
    return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(text)
                                               : absl::InvalidArgumentError(text);
  }
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
  while (file.bytes.size() < expected) {
    const uint64_t before = file.bytes.size();
    const uint64_t piece = std::min(expected - before, kReadBytes);
    file.bytes.resize(before + piece);
    got = reader.Read(file.bytes.data() + before, piece);
    if (!got.ok()) return got.status();
    if (*got < piece) {
      return absl::DataLossError(absl::StrCat(path, ": holds ", before + *got, " bytes of ", what,
                                              ", its header says ", expected, "; it is cut off"));
    }
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

class IdxDataset : public Dataset {
 public:
  IdxDataset(IdxFile images, std::vector<uint8_t> labels, const IdxOptions& options)
      : labels_(std::move(labels)),
        shape_{images.dimensions[1], images.dimensions[2], 1},
        classes_(options.classes),
        flip_(options.flip) {
    pixels_ = std::move(images.bytes);
    for (int value = 0; value < 256; ++value) {
      normalised_[value] =
          static_cast<float>((value / 255.0 - options.mean) / options.deviation);
    }
  }

  uint64_t examples() const override { return labels_.size(); }
  InputShape shape() const override { return shape_; }
  uint32_t classes() const override { return classes_; }

  void Gather(absl::Span<const uint32_t> indices, uint64_t augment_key,
              Batch* batch) const override {
    const uint64_t size = shape_.elements();
    batch->examples = indices.size();
    batch->inputs.resize(indices.size() * size);
    batch->labels.resize(indices.size());
    uint64_t mirrored = 0;  // of 64 examples
    for (uint64_t k = 0; k < indices.size(); ++k) {
      if (flip_ && augment_key != 0 && k % 64 == 0) {
        mirrored = RandomBits(augment_key, kFlipStream, k / 64);
      }
      const uint8_t* from = pixels_.data() + indices[k] * size;
      float* to = batch->inputs.data() + k * size;
      if (mirrored >> (k % 64) & 1) {
        for (uint32_t y = 0; y < shape_.height; ++y) {
          const uint8_t* row = from + uint64_t{y} * shape_.width;
          for (uint32_t x = 0; x < shape_.width; ++x) {
            *to++ = normalised_[row[shape_.width - 1 - x]];
          }
        }
      } else {
        for (uint64_t i = 0; i < size; ++i) to[i] = normalised_[from[i]];
      }
      batch->labels[k] = labels_[indices[k]];
    }
  }

 private:
  std::vector<uint8_t> pixels_;
  std::vector<uint8_t> labels_;
  InputShape shape_;
  uint32_t classes_;
  bool flip_;
  float normalised_[256];
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> LoadIdx(const std::string& images_path,
                                                 const std::string& labels_path,
                                                 const IdxOptions& options) {
  if (!(options.deviation > 0) || !(std::abs(options.mean) < 1e6f)) {
    return absl::InvalidArgumentError(absl::StrCat("data.mean is ", options.mean,
                                                   " and data.deviation ", options.deviation,
                                                   "; the deviation must be above 0"));
  }
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
  return std::make_unique<IdxDataset>(*std::move(images), std::move(labels->bytes), options);
}

}  // namespace foreshard
