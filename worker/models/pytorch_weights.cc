#include "worker/models/pytorch_weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/core/bytes.h"
#include "common/core/running_checksum.h"
#include "common/core/safetensors.h"

namespace foreshard {
namespace {

constexpr char kMeanSuffix[] = ".running_mean";
constexpr char kVarianceSuffix[] = ".running_var";
constexpr char kCountSuffix[] = ".num_batches_tracked";
constexpr uint64_t kReadBytes = 1 << 20;

// An open file that closes itself.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }
  int Close() { return close(std::exchange(descriptor_, -1)); }

 private:
  int descriptor_;
};

absl::Status OpenProblem(int error, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat("can't open ", path));
}

absl::StatusOr<std::string> ReadAt(int file, const std::string& path, uint64_t offset,
                                   uint64_t bytes) {
  std::string out(bytes, '\0');
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        pread(file, out.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("can't read ", path));
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  out.resize(done);
  return out;
}

absl::Status WriteAll(int file, const std::string& path, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, absl::StrCat("can't write ", path));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// Copies [outer, inner, last] to [outer, last, inner]: what both layouts come to, with
// height * width for `inner` and channels for `last`, and the other way.
void SwapInner(const float* from, uint64_t outer, uint64_t inner, uint64_t last, float* to) {
  for (uint64_t o = 0; o < outer; ++o) {
    for (uint64_t i = 0; i < inner; ++i) {
      for (uint64_t l = 0; l < last; ++l) to[(o * last + l) * inner + i] = from[(o * inner + i) * last + l];
    }
  }
}

// How tensor i is reordered between the layouts: [outer, positions, channels] here. One
// position: not at all.
struct Order {
  uint64_t outer = 1, positions = 1, channels = 1;
};

Order OrderOf(const Model& model, size_t tensor) {
  const std::vector<int64_t>& shape = model.schema().tensors()[tensor].shape;
  if (shape.size() == 4) {
    return {static_cast<uint64_t>(shape[0]), static_cast<uint64_t>(shape[1] * shape[2]),
            static_cast<uint64_t>(shape[3])};
  }
  if (const auto image = model.ImageColumns(tensor); image.has_value()) {
    return {static_cast<uint64_t>(shape[0]), uint64_t{image->height} * image->width,
            image->channels};
  }
  return {};
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Names of the counts that torchvision has beside running statistics.
std::set<std::string> CountNames(const Schema& schema) {
  std::set<std::string> names;
  for (const TensorSpec& tensor : schema.tensors()) {
    if (!absl::EndsWith(tensor.name, kMeanSuffix)) continue;
    names.insert(absl::StrCat(absl::StripSuffix(tensor.name, kMeanSuffix), kCountSuffix));
  }
  return names;
}

absl::Status CheckValues(const TensorSpec& tensor, absl::Span<const float> values,
                         const std::string& where) {
  const bool variance = tensor.kind == TensorKind::kStatistic && absl::EndsWith(tensor.name, kVarianceSuffix);
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": tensor '", tensor.name, "': element ", i, " is ", values[i],
          "; every value must be finite: take weights from before training went wrong"));
    }
    if (variance && values[i] < 0) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": tensor '", tensor.name, "': element ",
                                                     i, " is ", values[i],
                                                     "; a variance is never below 0"));
    }
  }
  return absl::OkStatus();
}

// The schema's tensor in a file, by its own name or the other that it may have.
const SafetensorsTensor* FindTensor(const Model& model, const SafetensorsReader& reader,
                                    const std::string& name) {
  const SafetensorsTensor* found = reader.Find(name);
  if (found != nullptr) return found;
  const std::string other = model.OtherName(name);
  return other.empty() ? nullptr : reader.Find(other);
}

// Whether a name is described by one in which a '*' at the end stands for any characters.
bool Describes(const std::string& pattern, const std::string& name) {
  if (!absl::EndsWith(pattern, "*")) return pattern == name;
  return absl::StartsWith(name, absl::StripSuffix(pattern, "*"));
}

// Every tensor of the model is there as it should be, and nothing else but counts and what the
// model says that there may be.
absl::Status CheckTensors(const Model& model, const SafetensorsReader& reader,
                          const std::string& path, WeightLayout layout) {
  const Schema& schema = model.schema();
  const std::set<std::string> counts = CountNames(schema);
  std::set<std::string> ours;
  for (size_t i = 0; i < schema.tensors().size(); ++i) {
    const std::string& name = schema.tensors()[i].name;
    const SafetensorsTensor* found = FindTensor(model, reader, name);
    if (found == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", name, "' of the model is missing; the file has ",
                       reader.tensors().size(), " tensors: is it of this model?"));
    }
    ours.insert(found->name);
    const std::vector<uint64_t> wanted = WeightShape(model, i, layout);
    if (found->shape != wanted) {
      const bool swapped =
          found->shape == WeightShape(model, i,
                                      layout == WeightLayout::kPytorch ? WeightLayout::kPlain
                                                                       : WeightLayout::kPytorch);
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor '", name, "' has the shape ", ShapeText(found->shape),
          ", but the model's is ", ShapeText(wanted),
          swapped ? (layout == WeightLayout::kPytorch
                         ? "; it is in our own layout: foreshard weights --to-pytorch converts it"
                         : "; it is in PyTorch's layout: foreshard weights --from-pytorch converts it")
                  : "; is it of a model of this size, and of as many classes or tokens?"));
    }
    if (found->type == SafetensorsType::kI64) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", name, "' has the type I64, but the model's is F32 "
                                                 "(F16 and BF16 are taken as well)"));
    }
  }
  const std::vector<ExtraWeight> extras = model.ExtraWeights();
  for (const SafetensorsTensor& tensor : reader.tensors()) {
    if (ours.contains(tensor.name)) continue;
    const bool extra = std::any_of(extras.begin(), extras.end(), [&](const ExtraWeight& known) {
      return Describes(known.name, tensor.name);
    });
    if (extra) continue;
    if (!counts.contains(tensor.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", tensor.name, "' with the shape ",
                       ShapeText(tensor.shape), " is none of the model's; is it of this model?"));
    }
    if (tensor.elements != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", tensor.name, "' has the shape ",
                       ShapeText(tensor.shape), ", but a count is one number, shape []"));
    }
  }
  return absl::OkStatus();
}

// Tensors that repeat one of the model's hold the same values. `vector` is the model's.
absl::Status CheckRepeated(const Model& model, const SafetensorsReader& reader,
                           const std::string& path, const std::vector<float>& vector) {
  const Schema& schema = model.schema();
  for (const ExtraWeight& extra : model.ExtraWeights()) {
    const SafetensorsTensor* found = extra.same_as.empty() ? nullptr : reader.Find(extra.name);
    if (found == nullptr) continue;
    for (size_t i = 0; i < schema.tensors().size(); ++i) {
      const TensorSpec& tensor = schema.tensors()[i];
      if (tensor.name != extra.same_as) continue;
      std::vector<float> values(found->elements);
      const bool comparable = found->elements == tensor.elements() && found->type != SafetensorsType::kI64;
      if (comparable) {
        if (auto s = reader.ReadFloats(*found, 0, absl::MakeSpan(values)); !s.ok()) return s;
      }
      if (!comparable ||
          !std::equal(values.begin(), values.end(), vector.begin() + static_cast<int64_t>(schema.offset(i)))) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": tensor '", extra.name, "' with the shape ", ShapeText(found->shape), " is not equal to '",
            extra.same_as, "', which the model has in its place; the file is of a model whose output is not tied"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<uint64_t> WeightShape(const Model& model, size_t tensor, WeightLayout layout) {
  const std::vector<int64_t>& shape = model.schema().tensors()[tensor].shape;
  std::vector<uint64_t> out(shape.begin(), shape.end());
  if (layout == WeightLayout::kPytorch && out.size() == 4) out = {out[0], out[3], out[1], out[2]};
  return out;
}

absl::Status LoadWeights(const Model& model, const std::string& path, WeightLayout layout,
                         float* vector) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return OpenProblem(errno, path);
  struct stat about = {};
  if (fstat(file.get(), &about) != 0) return OpenProblem(errno, path);
  if (!S_ISREG(about.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is no file; name a safetensors file"));
  }
  auto reader = SafetensorsReader::Open(
      [&](uint64_t offset, uint64_t bytes) { return ReadAt(file.get(), path, offset, bytes); },
      static_cast<uint64_t>(about.st_size), path);
  if (!reader.ok()) return reader.status();
  if (absl::Status status = CheckTensors(model, *reader, path, layout); !status.ok()) return status;
  const Schema& schema = model.schema();
  std::vector<float> all(schema.elements()), read;
  for (size_t i = 0; i < schema.tensors().size(); ++i) {
    const TensorSpec& tensor = schema.tensors()[i];
    const uint64_t elements = tensor.elements();
    const Order order = OrderOf(model, i);
    const bool reorder = layout == WeightLayout::kPytorch && order.positions > 1;
    float* const to = all.data() + schema.offset(i);
    read.resize(reorder ? elements : 0);
    const absl::Span<float> into(reorder ? read.data() : to, elements);
    const absl::Status status = reader->ReadFloats(*FindTensor(model, *reader, tensor.name), 0, into);
    if (!status.ok()) return status;
    if (absl::Status status = CheckValues(tensor, into, path); !status.ok()) return status;
    if (reorder) SwapInner(read.data(), order.outer, order.channels, order.positions, to);
  }
  if (absl::Status status = CheckRepeated(model, *reader, path, all); !status.ok()) return status;
  std::copy(all.begin(), all.end(), vector);
  return absl::OkStatus();
}

absl::Status SaveWeights(const Model& model, absl::Span<const float> vector,
                         const std::string& path, WeightLayout layout) {
  const Schema& schema = model.schema();
  if (vector.size() != schema.elements()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", vector.size(), " values for a model of ",
                                                   schema.elements(), "; give the whole vector"));
  }
  const std::set<std::string> counts =
      layout == WeightLayout::kPytorch ? CountNames(schema) : std::set<std::string>();
  std::vector<SafetensorsTensor> tensors;
  // First, so that they are aligned to their size, which PyTorch's loader wants.
  for (const std::string& name : counts) {
    tensors.push_back({.name = name, .type = SafetensorsType::kI64});
  }
  for (size_t i = 0; i < schema.tensors().size(); ++i) {
    const TensorSpec& tensor = schema.tensors()[i];
    const auto values = vector.subspan(schema.offset(i), tensor.elements());
    if (absl::Status status = CheckValues(tensor, values, path); !status.ok()) return status;
    tensors.push_back({.name = tensor.name, .shape = WeightShape(model, i, layout)});
  }

  const std::string beside = absl::StrCat(path, ".part");
  File file(open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("can't create ", beside));
  const auto write_values = [&]() -> absl::Status {
    auto writer = SafetensorsWriter::Create(
        tensors, {{"format", "pt"}},
        [&](ByteSpan bytes) { return WriteAll(file.get(), beside, bytes); });
    if (!writer.ok()) return writer.status();
    const std::string zeros(counts.size() * sizeof(int64_t), '\0');
    if (absl::Status status = writer->Append(AsBytes(zeros)); !status.ok()) return status;
    std::vector<float> reordered;
    for (size_t i = 0; i < schema.tensors().size(); ++i) {
      const Order order = OrderOf(model, i);
      const float* values = vector.data() + schema.offset(i);
      const uint64_t elements = schema.tensors()[i].elements();
      if (layout == WeightLayout::kPytorch && order.positions > 1) {
        reordered.resize(elements);
        SwapInner(values, order.outer, order.positions, order.channels, reordered.data());
        values = reordered.data();
      }
      const ByteSpan bytes(reinterpret_cast<const uint8_t*>(values), elements * sizeof(float));
      if (absl::Status status = writer->Append(bytes); !status.ok()) return status;
    }
    if (absl::Status status = writer->Finish(); !status.ok()) return status;
    if (fsync(file.get()) != 0 && errno != EINVAL) {
      return absl::ErrnoToStatus(errno, absl::StrCat("can't write ", beside));
    }
    if (file.Close() != 0) return absl::ErrnoToStatus(errno, absl::StrCat("can't write ", beside));
    if (rename(beside.c_str(), path.c_str()) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("can't rename ", beside, " to ", path));
    }
    return absl::OkStatus();
  };
  const absl::Status status = write_values();
  if (!status.ok()) unlink(beside.c_str());
  return status;
}

bool DenseReadsImage(std::string_view model) { return model == "cnn" || model == "mlp"; }

absl::StatusOr<std::string> FileChecksum(const std::string& path) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return OpenProblem(errno, path);
  RunningChecksum checksum;
  for (uint64_t at = 0;;) {
    const auto bytes = ReadAt(file.get(), path, at, kReadBytes);
    if (!bytes.ok()) return bytes.status();
    checksum.Add(AsBytes(*bytes));
    at += bytes->size();
    if (bytes->size() < kReadBytes) return absl::StrFormat("%016x", checksum.value());
  }
}

}  // namespace foreshard
