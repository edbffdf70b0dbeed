#include "tools/pack_images.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/core/json_text.h"
#include "tools/files.h"
#include "tools/new_folder.h"
#include "worker/data/image_codec.h"
#include "worker/data/packed_records.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

// Pictures a thread that are made ready before they are written, in order.
constexpr size_t kAhead = 16;
constexpr size_t kSkippedKept = 10;

struct Source {
  std::string path;
  uint32_t label = 0;
};

struct Sources {
  std::vector<std::string> classes;
  std::vector<Source> files;
};

absl::Status Utf8(const std::string& name, const std::string& folder) {
  const auto text = JsonText(name);
  if (text.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(folder, ": a name in it: ",
                                                 std::string(text.status().message()), "; rename it"));
}

bool Hidden(const fs::path& path) { return absl::StartsWith(path.filename().string(), "."); }

// The pictures below a class's folder, at any depth, by name.
absl::StatusOr<std::vector<std::string>> FilesBelow(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code error, none;  // a link to nowhere is no reason to stop
  fs::recursive_directory_iterator each(folder, error);
  for (; !error && each != fs::recursive_directory_iterator(); each.increment(error)) {
    const fs::path& path = each->path();
    if (Hidden(path)) {
      if (each->is_directory(none)) each.disable_recursion_pending();
      continue;
    }
    if (auto s = Utf8(path.filename().string(), path.parent_path().string()); !s.ok()) return s;
    if (each->is_regular_file(none)) files.push_back(path.string());
  }
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(folder.string(), ": can't be listed: ", error.message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<Sources> FindSources(const std::string& input) {
  Sources sources;
  std::error_code error, none;
  if (!fs::is_directory(input, error)) {
    return absl::NotFoundError(absl::StrCat("--input: ", input, " is no folder"));
  }
  for (fs::directory_iterator each(input, error); !error && each != fs::directory_iterator();
       each.increment(error)) {
    if (Hidden(each->path()) || !each->is_directory(none)) continue;
    const std::string name = each->path().filename().string();
    if (auto s = Utf8(name, input); !s.ok()) return s;
    sources.classes.push_back(name);
  }
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("--input: ", input, ": can't be listed: ", error.message()));
  }
  if (sources.classes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--input: ", input, " has no folders in it; there must be one for each class, with its pictures"));
  }
  if (sources.classes.size() > kMaxPackedClasses) {
    return absl::InvalidArgumentError(absl::StrCat("--input: ", input, " has ", sources.classes.size(),
                                                   " class folders; ", kMaxPackedClasses, " at most"));
  }
  std::sort(sources.classes.begin(), sources.classes.end());
  for (uint32_t label = 0; label < sources.classes.size(); ++label) {
    const fs::path folder = fs::path(input) / sources.classes[label];
    auto files = FilesBelow(folder);
    if (!files.ok()) return files.status();
    if (files->empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder.string(), ": has no pictures; every class needs some: fill it or remove it"));
    }
    for (std::string& path : *files) sources.files.push_back({std::move(path), label});
  }
  return sources;
}

struct Ready {
  absl::Status status;  // of the picture
  std::string bytes;
  bool resized = false;
};

Ready MakeReady(const std::string& path, uint32_t size) {
  Ready ready;
  const auto fail = [&](const absl::Status& status) {
    ready.status = absl::InvalidArgumentError(absl::StrCat(path, ": ", std::string(status.message())));
    ready.bytes.clear();
    return ready;
  };
  auto bytes = ReadFile(path);
  if (!bytes.ok()) return fail(bytes.status());
  const auto about = AboutImage(AsBytes(*bytes));
  if (!about.ok()) return fail(about.status());
  // Decoded in any case, so that every record is known to be good.
  const auto image = DecodeImage(AsBytes(*bytes));
  if (!image.ok()) return fail(image.status());
  const uint32_t shorter = std::min(image->width, image->height);
  if (about->plain && shorter <= size && bytes->size() <= kMaxPackedRecordBytes) {
    ready.bytes = *std::move(bytes);
    return ready;
  }
  const double scale = shorter > size ? static_cast<double>(size) / shorter : 1;
  const auto side = [&](uint32_t length) {
    return std::max(1u, static_cast<uint32_t>(std::lround(length * scale)));
  };
  ready.resized = true;
  const ImageBox all{0, 0, static_cast<double>(image->width), static_cast<double>(image->height)};
  auto jpeg = EncodeJpeg(scale == 1 ? *image : Resize(*image, all, side(image->width), side(image->height)));
  if (!jpeg.ok()) return fail(jpeg.status());
  ready.bytes = *std::move(jpeg);
  return ready;
}

// A shard under way.
class ShardFile {
 public:
  static absl::StatusOr<std::unique_ptr<ShardFile>> Create(const std::string& folder, uint32_t shard) {
    const std::string path = absl::StrCat(folder, "/", PackedShardName(shard));
    FILE* file = fopen(path.c_str(), "wbe");
    if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("can't create ", path));
    std::unique_ptr<ShardFile> made(new ShardFile(path, file));
    if (auto s = made->Append(PackedShardHeader(shard)); !s.ok()) return s;
    return made;
  }
  ~ShardFile() {
    if (file_ != nullptr) fclose(file_);
  }
  absl::Status Append(const std::string& bytes) {
    if (fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) return Problem();
    size_ += bytes.size();
    return absl::OkStatus();
  }
  absl::Status Finish() {
    if (fflush(file_) != 0 || (fsync(fileno(file_)) != 0 && errno != EINVAL)) return Problem();
    FILE* file = std::exchange(file_, nullptr);
    return fclose(file) == 0 ? absl::OkStatus() : Problem();
  }
  uint64_t size() const { return size_; }

 private:
  ShardFile(std::string path, FILE* file) : path_(std::move(path)), file_(file) {}
  absl::Status Problem() const { return absl::ErrnoToStatus(errno, absl::StrCat("can't write ", path_)); }

  const std::string path_;
  FILE* file_;
  uint64_t size_ = 0;
};

// What a run leaves in its folder.
bool IsOurs(const std::string& name) {
  return absl::StartsWith(name, kPackedIndexName) || (absl::StartsWith(name, "images-") && absl::EndsWith(name, ".packed"));
}

class Packer {
 public:
  Packer(const PackOptions& options, const Sources& sources, std::string folder)
      : options_(options), sources_(sources), folder_(std::move(folder)) {
    figures_.images = sources.files.size();
    index_.size = options.size;
    index_.classes = sources.classes;
    threads_ = options.threads > 0 ? options.threads : std::max(std::thread::hardware_concurrency(), 1u);
  }

  absl::StatusOr<PackFigures> Run() {
    const size_t total = sources_.files.size();
    for (size_t begin = 0; begin < total; begin += threads_ * kAhead) {
      if (options_.interrupted && options_.interrupted()) {
        return absl::CancelledError(absl::StrCat("interrupted; nothing is left of ", options_.output));
      }
      const size_t count = std::min<size_t>(threads_ * kAhead, total - begin);
      std::vector<Ready> ready(count);
      std::atomic<size_t> next = 0;
      std::vector<std::thread> threads;
      for (size_t t = 0; t < std::min<size_t>(threads_, count); ++t) {
        threads.emplace_back([&] {
          for (size_t k; (k = next.fetch_add(1)) < count;) {
            ready[k] = MakeReady(sources_.files[begin + k].path, options_.size);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (size_t k = 0; k < count; ++k) {
        if (auto s = Take(begin + k, ready[k]); !s.ok()) return s;
      }
      if (options_.progress) options_.progress(figures_);
    }
    return Finish();
  }

 private:
  absl::Status Take(size_t i, const Ready& ready) {
    if (!ready.status.ok()) {
      if (!options_.skip_bad) {
        return absl::InvalidArgumentError(absl::StrCat(std::string(ready.status.message()),
                                                       "; take it out, or say --skip-bad"));
      }
      ++figures_.skipped;
      if (figures_.first_skipped.size() < kSkippedKept) {
        figures_.first_skipped.emplace_back(ready.status.message());
      }
      return absl::OkStatus();
    }
    // As many pictures in each shard, skipped ones counted.
    const auto shard = static_cast<uint32_t>(i * options_.shards / sources_.files.size());
    while (index_.shard_bytes.size() + (file_ != nullptr) <= shard) {
      if (auto s = EndShard(); !s.ok()) return s;
      auto made = ShardFile::Create(folder_, static_cast<uint32_t>(index_.shard_bytes.size()));
      if (!made.ok()) return made.status();
      file_ = *std::move(made);
    }
    index_.records.push_back({.offset = file_->size(),
                              .checksum = Checksum(AsBytes(ready.bytes)),
                              .bytes = static_cast<uint32_t>(ready.bytes.size()),
                              .label = sources_.files[i].label,
                              .shard = shard});
    ++figures_.packed;
    figures_.resized += ready.resized;
    figures_.bytes += ready.bytes.size();
    return file_->Append(ready.bytes);
  }

  absl::Status EndShard() {
    if (file_ == nullptr) return absl::OkStatus();
    if (auto s = file_->Finish(); !s.ok()) return s;
    index_.shard_bytes.push_back(file_->size());
    file_ = nullptr;
    return absl::OkStatus();
  }

  absl::StatusOr<PackFigures> Finish() {
    if (auto s = EndShard(); !s.ok()) return s;
    if (index_.records.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--input: none of the ", figures_.images, " pictures in ", options_.input,
                       " decodes; the first: ", figures_.first_skipped.front()));
    }
    if (auto s = WriteFileAtomically(absl::StrCat(folder_, "/", kPackedIndexName), PrintPackedIndex(index_));
        !s.ok()) {
      return s;
    }
    return figures_;
  }

  const PackOptions& options_;
  const Sources& sources_;
  const std::string folder_;
  uint32_t threads_;
  PackedIndex index_;
  PackFigures figures_;
  std::unique_ptr<ShardFile> file_;
};

absl::Status CheckOptions(const PackOptions& options, const Sources& sources) {
  if (options.size < 1 || options.size > kMaxImageSide) {
    return absl::InvalidArgumentError(
        absl::StrCat("--size: ", options.size, ": give 1 to ", kMaxImageSide, " pixels"));
  }
  const uint64_t most = std::min<uint64_t>(kMaxPackedShards, sources.files.size());
  if (options.shards < 1 || options.shards > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shards: ", options.shards, ": give 1 to ", most, " for ", sources.files.size(), " pictures"));
  }
  return CheckNewFolder(options.output);
}

}  // namespace

absl::StatusOr<PackFigures> PackImages(const PackOptions& given) {
  PackOptions options = given;
  while (options.output.size() > 1 && options.output.back() == '/') options.output.pop_back();
  const auto sources = FindSources(options.input);
  if (!sources.ok()) return sources.status();
  if (auto s = CheckOptions(options, *sources); !s.ok()) return s;
  absl::StatusOr<PackFigures> figures;
  const absl::Status made = MakeFolderWhole(options.output, IsOurs, [&](const std::string& part) {
    if (auto s = PrepareFolder(part); !s.ok()) return s;
    figures = Packer(options, *sources, part).Run();
    return figures.status();
  });
  if (!made.ok()) return made;
  return figures;
}

}  // namespace foreshard
