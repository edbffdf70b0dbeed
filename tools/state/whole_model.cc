#include "tools/state/whole_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "tools/files.h"
#include "worker/models/pytorch_weights.h"

namespace foreshard {
namespace {

constexpr uint64_t kPieceElements = 1 << 20;
constexpr char kLayoutKey[] = "foreshard.layout";

constexpr char kMeanSuffix[] = ".running_mean";

// Names of the counts that PyTorch has beside running statistics.
std::vector<std::string> CountNames(const Schema& schema, Layout layout) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : schema.tensors()) {
    if (layout != Layout::kPyTorch || !absl::EndsWith(tensor.name, kMeanSuffix)) continue;
    names.push_back(absl::StrCat(absl::StripSuffix(tensor.name, kMeanSuffix), ".num_batches_tracked"));
  }
  return names;
}

bool IsFilter(const TensorSpec& tensor) { return tensor.shape.size() == 4; }

std::vector<uint64_t> ShapeIn(Layout layout, const TensorSpec& tensor) {
  std::vector<uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
  if (layout == Layout::kPyTorch && IsFilter(tensor)) shape = {shape[0], shape[3], shape[1], shape[2]};
  return shape;
}

// A filter's values from one layout to the other.
std::vector<float> Reordered(const TensorSpec& tensor, const std::vector<float>& values, Layout to) {
  const auto out = static_cast<uint64_t>(tensor.shape[0]), in = static_cast<uint64_t>(tensor.shape[3]);
  const auto pixels = static_cast<uint64_t>(tensor.shape[1] * tensor.shape[2]);
  std::vector<float> reordered(values.size());
  for (uint64_t o = 0; o < out; ++o) {
    for (uint64_t p = 0; p < pixels; ++p) {
      for (uint64_t i = 0; i < in; ++i) {
        const uint64_t canonical = (o * pixels + p) * in + i, pytorch = (o * in + i) * pixels + p;
        if (to == Layout::kPyTorch) reordered[pytorch] = values[canonical];
        else reordered[canonical] = values[pytorch];
      }
    }
  }
  return reordered;
}

// A file that gets its name when it is safe, and is removed where it does not come to that.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path), part_(path + ".part") {}
  ~NewFile() {
    if (file_ >= 0) close(file_);
    if (made_) unlink(part_.c_str());
  }
  absl::Status Open() {
    file_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file_ < 0) return StorageError(errno, "create", part_);
    made_ = true;
    return absl::OkStatus();
  }
  absl::Status Append(ByteSpan bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(file_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return StorageError(errno, "write", part_);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }
  absl::Status Finish() {
    if (fsync(file_) != 0) return StorageError(errno, "sync", part_);
    if (rename(part_.c_str(), path_.c_str()) != 0) return StorageError(errno, "rename", part_);
    made_ = false;
    return absl::OkStatus();
  }

 private:
  const std::string path_, part_;
  int file_ = -1;
  bool made_ = false;
};

// Calls `read(piece, first, out)` for the pieces, ordered by begin, that cover the range.
template <typename Pieces, typename BeginOf, typename ElementsOf, typename ReadPiece>
absl::Status ReadAcross(const Pieces& pieces, BeginOf begin_of, ElementsOf elements_of, uint64_t begin,
                        absl::Span<float> out, ReadPiece read) {
  auto piece = std::upper_bound(pieces.begin(), pieces.end(), begin,
                                [&](uint64_t at, const auto& each) { return at < begin_of(each); });
  if (piece != pieces.begin()) --piece;
  while (!out.empty()) {
    if (piece == pieces.end()) return absl::InternalError(absl::StrCat("no shard has element ", begin));
    const uint64_t first = begin - begin_of(*piece);
    if (first < elements_of(*piece)) {
      const uint64_t count = std::min<uint64_t>(out.size(), elements_of(*piece) - first);
      if (absl::Status status = read(*piece, first, out.first(count)); !status.ok()) return status;
      out.remove_prefix(count);
      begin += count;
    }
    ++piece;
  }
  return absl::OkStatus();
}

}  // namespace

const char* ToString(Layout layout) { return layout == Layout::kPyTorch ? "pytorch" : "canonical"; }

absl::Status CheckLayout(const std::string& model, Layout layout) {
  if (layout != Layout::kPyTorch || !DenseReadsImage(model)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--layout: pytorch: model ", model, " has a dense layer that reads an image, whose columns PyTorch has in another "
      "order; take --layout canonical, and 'foreshard weights' to convert the file"));
}

absl::StatusOr<CheckpointCut> ChooseCheckpoints(const StoredRun& run, uint64_t tolerance, WorkWatch* watch) {
  struct Candidate {
    std::string name;
    uint64_t step = 0;
  };
  std::vector<std::vector<Candidate>> candidates;  // by shard, oldest first
  std::vector<std::string> damage(run.shards.size());
  for (const StateDirectory& shard : run.shards) {
    const auto names = Checkpoint::List(*shard.storage);
    if (!names.ok()) return names.status();
    candidates.emplace_back();
    for (const std::string& name : *names) {
      const auto manifest = ReadManifest(*shard.storage, name);
      if (manifest.ok()) {
        candidates.back().push_back({name, manifest->about.step});
      } else {
        absl::StrAppend(&damage[candidates.size() - 1], "; ", manifest.status().message());
      }
    }
  }
  // Until those that were chosen turn out to be whole.
  for (;;) {
    std::set<uint64_t, std::greater<>> steps;
    for (size_t s = 0; s < candidates.size(); ++s) {
      for (const Candidate& candidate : candidates[s]) steps.insert(candidate.step);
      if (!candidates[s].empty()) continue;
      const std::string where = run.shards[s].storage->Describe("");
      if (damage[s].empty()) {
        return absl::NotFoundError(absl::StrCat(
            where, " has no checkpoint; make one with foreshard checkpoint --servers, or use --from-journal"));
      }
      return absl::DataLossError(absl::StrCat(where, " has no checkpoint that is whole", damage[s]));
    }
    std::vector<size_t> chosen;
    for (const uint64_t step : steps) {
      chosen.clear();
      for (const std::vector<Candidate>& shard : candidates) {
        size_t k = shard.size();
        while (k > 0 && shard[k - 1].step > step) --k;
        if (k == 0 || shard[k - 1].step + tolerance < step) break;
        chosen.push_back(k - 1);
      }
      if (chosen.size() == candidates.size()) break;
    }
    if (chosen.size() < candidates.size()) {
      chosen.clear();
      for (const std::vector<Candidate>& shard : candidates) chosen.push_back(shard.size() - 1);
    }
    CheckpointCut cut;
    for (size_t s = 0; s < candidates.size(); ++s) {
      if (!watch->Proceed("checking checkpoints, shard", run.shards[s].shard)) return WorkWatch::Cancelled();
      auto opened = Checkpoint::Open(*run.shards[s].storage, candidates[s][chosen[s]].name, run.shards[s].identity);
      if (absl::IsDataLoss(opened.status()) || absl::IsNotFound(opened.status())) {
        absl::StrAppend(&damage[s], "; ", opened.status().message());
        candidates[s].erase(candidates[s].begin() + static_cast<ptrdiff_t>(chosen[s]));
        break;
      }
      if (!opened.ok()) return opened.status();
      const uint64_t step = (*opened)->manifest().about.step;
      cut.least_step = s == 0 ? step : std::min(cut.least_step, step);
      cut.greatest_step = std::max(cut.greatest_step, step);
      cut.checkpoints.push_back(*std::move(opened));
    }
    if (cut.checkpoints.size() == candidates.size()) return cut;
  }
}

absl::StatusOr<std::unique_ptr<CheckpointSource>> CheckpointSource::Open(
    const StoredRun& run, const std::vector<std::unique_ptr<Checkpoint>>& checkpoints) {
  auto source = std::make_unique<CheckpointSource>();
  for (size_t s = 0; s < checkpoints.size(); ++s) {
    auto reader = checkpoints[s]->OpenParameters();
    if (!reader.ok()) return reader.status();
    const std::vector<uint32_t> segments = run.plan.SegmentsOfShard(static_cast<uint32_t>(s));
    if (segments.empty()) continue;
    uint64_t begin = run.plan.segments()[segments.front()].begin;
    for (const SafetensorsTensor& expected :
         ShardTensors(run.schema, run.plan, static_cast<uint32_t>(s))) {
      const SafetensorsTensor* tensor = reader->Find(expected.name);
      if (tensor == nullptr || tensor->shape != expected.shape) {
        return absl::DataLossError(absl::StrCat(run.shards[s].storage->Describe(checkpoints[s]->name()),
                                                ": the parameters lack tensor ", expected.name,
                                                ", or it has another shape"));
      }
      if (tensor->elements == 0) continue;
      source->pieces_.push_back(
          {.begin = begin, .elements = tensor->elements, .reader = source->readers_.size(), .tensor = *tensor});
      begin += tensor->elements;
    }
    source->readers_.push_back(*std::move(reader));
  }
  return source;
}

absl::Status CheckpointSource::Read(uint64_t begin, absl::Span<float> out) const {
  return ReadAcross(
      pieces_, [](const Piece& piece) { return piece.begin; }, [](const Piece& piece) { return piece.elements; },
      begin, out, [&](const Piece& piece, uint64_t first, absl::Span<float> values) {
        return readers_[piece.reader].ReadFloats(piece.tensor, first, values);
      });
}

absl::StatusOr<std::unique_ptr<MachinesSource>> MachinesSource::Open(
    const std::vector<std::unique_ptr<ShardMachines>>& shards) {
  auto source = std::make_unique<MachinesSource>();
  for (const auto& shard : shards) {
    for (const auto& segment : shard->segments()) {
      if (!segment->initialised()) {
        return absl::FailedPreconditionError(absl::StrCat("segment ", segment->plan().id,
                                                          " has no values yet: no worker had brought them"));
      }
      source->segments_.push_back(segment.get());
    }
  }
  return source;
}

absl::Status MachinesSource::Read(uint64_t begin, absl::Span<float> out) const {
  return ReadAcross(
      segments_, [](const Segment* segment) { return segment->plan().begin; },
      [](const Segment* segment) { return segment->plan().elements; }, begin, out,
      [](const Segment* segment, uint64_t first, absl::Span<float> values) {
        const auto part = segment->theta().subspan(first, values.size());
        std::copy(part.begin(), part.end(), values.begin());
        return absl::OkStatus();
      });
}

absl::StatusOr<std::unique_ptr<FileSource>> FileSource::Open(const Schema& schema, const std::string& path,
                                                             Layout layout) {
  const auto file = std::shared_ptr<int>(new int(open(path.c_str(), O_RDONLY | O_CLOEXEC)), [](int* each) {
    if (*each >= 0) close(*each);
    delete each;
  });
  if (*file < 0) return StorageError(errno, "read", path);
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (error) return StorageError(error.value(), "read", path);
  auto reader = SafetensorsReader::Open(
      [file, path](uint64_t offset, uint64_t count) -> absl::StatusOr<std::string> {
        std::string text(count, '\0');
        uint64_t got = 0;
        while (got < count) {
          const ssize_t read = pread(*file, text.data() + got, count - got, static_cast<off_t>(offset + got));
          if (read < 0 && errno == EINTR) continue;
          if (read < 0) return StorageError(errno, "read", path);
          if (read == 0) break;
          got += static_cast<uint64_t>(read);
        }
        text.resize(got);
        return text;
      },
      bytes, path);
  if (!reader.ok()) return reader.status();
  std::unique_ptr<FileSource> source(new FileSource(schema, *std::move(reader)));
  source->layout_ = layout;
  if (const auto said = source->reader_.metadata().find(kLayoutKey); said != source->reader_.metadata().end()) {
    if (said->second != ToString(Layout::kCanonical) && said->second != ToString(Layout::kPyTorch)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", kLayoutKey, ": '", said->second, "': there are canonical and pytorch"));
    }
    source->layout_ = said->second == ToString(Layout::kPyTorch) ? Layout::kPyTorch : Layout::kCanonical;
  }
  const std::vector<std::string> counts = CountNames(schema, source->layout_);
  std::set<std::string> known(counts.begin(), counts.end());
  for (const TensorSpec& tensor : schema.tensors()) {
    known.insert(tensor.name);
    const std::vector<uint64_t> shape = ShapeIn(source->layout_, tensor);
    const SafetensorsTensor* found = source->reader_.Find(tensor.name);
    if (found == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", tensor.name, " of the model is missing"));
    }
    if (found->shape != shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor ", tensor.name, " has the shape [", absl::StrJoin(found->shape, ", "), "], and the model's, in the ",
          ToString(source->layout_), " layout, is [", absl::StrJoin(shape, ", "), "]; is --layout right?"));
    }
  }
  for (const SafetensorsTensor& tensor : source->reader_.tensors()) {
    if (known.contains(tensor.name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tensor ", tensor.name, " is none of the model's; is it the job's model?"));
  }
  return source;
}

absl::Status FileSource::Read(uint64_t begin, absl::Span<float> out) const {
  for (size_t t = 0; t < schema_.tensors().size() && !out.empty(); ++t) {
    const TensorSpec& tensor = schema_.tensors()[t];
    const uint64_t offset = schema_.offset(t), elements = tensor.elements();
    if (begin < offset || begin - offset >= elements) continue;
    const uint64_t first = begin - offset, count = std::min<uint64_t>(out.size(), elements - first);
    const SafetensorsTensor& stored = *reader_.Find(tensor.name);
    if (layout_ == Layout::kPyTorch && IsFilter(tensor)) {
      if (cached_ != t) {
        std::vector<float> values(elements);
        if (absl::Status read = reader_.ReadFloats(stored, 0, absl::MakeSpan(values)); !read.ok()) return read;
        filter_ = Reordered(tensor, values, Layout::kCanonical);
        cached_ = t;
      }
      std::copy_n(filter_.begin() + static_cast<ptrdiff_t>(first), count, out.begin());
    } else if (absl::Status read = reader_.ReadFloats(stored, first, out.first(count)); !read.ok()) {
      return read;
    }
    begin += count;
    out.remove_prefix(count);
  }
  return out.empty() ? absl::OkStatus() : absl::OutOfRangeError("beyond the model's last element");
}

absl::Status ExportModel(const Schema& schema, const ParameterSource& source, Layout layout,
                         std::map<std::string, std::string> metadata, const std::string& path, bool replace,
                         WorkWatch* watch) {
  std::error_code error;
  if (!replace && std::filesystem::exists(path, error)) {
    return absl::AlreadyExistsError(
        absl::StrCat("--output: ", path, " is there already; give another name, or --replace"));
  }
  if (absl::Status may = CheckReplaceable(path); !may.ok()) {
    return absl::Status(may.code(), absl::StrCat("--output: ", may.message()));
  }
  std::vector<SafetensorsTensor> tensors;
  const std::vector<std::string> counts = CountNames(schema, layout);
  // First, so that they are aligned to their size, which PyTorch's loader wants.
  for (const std::string& name : counts) tensors.push_back({.name = name, .type = SafetensorsType::kI64});
  for (const TensorSpec& tensor : schema.tensors()) {
    tensors.push_back({.name = tensor.name, .shape = ShapeIn(layout, tensor)});
  }
  metadata["format"] = "pt";
  metadata[kLayoutKey] = ToString(layout);
  NewFile file(path);
  if (absl::Status opened = file.Open(); !opened.ok()) return opened;
  auto writer = SafetensorsWriter::Create(std::move(tensors), metadata,
                                          [&file](ByteSpan bytes) { return file.Append(bytes); });
  if (!writer.ok()) return writer.status();
  const std::string zeros(counts.size() * sizeof(int64_t), '\0');
  if (absl::Status written = writer->Append(AsBytes(zeros)); !written.ok()) return written;
  std::vector<float> values;
  for (size_t t = 0; t < schema.tensors().size(); ++t) {
    const TensorSpec& tensor = schema.tensors()[t];
    const bool reorder = layout == Layout::kPyTorch && IsFilter(tensor);
    const uint64_t elements = tensor.elements(), piece = reorder ? elements : kPieceElements;
    for (uint64_t first = 0; first < elements; first += piece) {
      if (!watch->Proceed(absl::StrCat("writing ", path, ", tensor"), t + 1)) return WorkWatch::Cancelled();
      values.resize(std::min(piece, elements - first));
      if (absl::Status read = source.Read(schema.offset(t) + first, absl::MakeSpan(values)); !read.ok()) return read;
      if (reorder) values = Reordered(tensor, values, Layout::kPyTorch);
      const ByteSpan bytes(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float));
      if (absl::Status written = writer->Append(bytes); !written.ok()) return written;
    }
  }
  if (absl::Status finished = writer->Finish(); !finished.ok()) return finished;
  return file.Finish();
}

}  // namespace foreshard
