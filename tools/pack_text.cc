#include "tools/pack_text.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/core/random.h"
#include "tools/files.h"
#include "tools/new_folder.h"
#include "tools/text_files.h"
#include "worker/data/basic_tokens.h"
#include "worker/data/learn_vocabulary.h"
#include "worker/data/token_records.h"
#include "worker/data/vocabulary.h"

namespace foreshard {
namespace {

constexpr char kRecordsName[] = "records";  // under way, before they are spread over shards
constexpr size_t kWindow = 65536;           // parts among which another is chosen
constexpr size_t kLeastPart = 8;            // tokens of a document's last part
enum Stream : uint64_t { kIsOther = 0x70616972, kWhichOther };

absl::Status Interrupted(const std::string& output) {
  return absl::CancelledError(absl::StrCat("interrupted; nothing is left of ", output));
}

// What a run leaves in its folder.
bool IsOurs(const std::string& name) {
  return absl::EndsWith(name, ".tokens") || absl::StartsWith(name, kTokenIndexName) ||
         absl::StartsWith(name, kTokenVocabularyName) || name == kRecordsName || name == "train" || name == "test";
}

struct CloseFile {
  void operator()(FILE* file) const { fclose(file); }
};
using FilePointer = std::unique_ptr<FILE, CloseFile>;

absl::StatusOr<FilePointer> OpenFile(const std::string& path, const char* mode) {
  FilePointer file(fopen(path.c_str(), mode));
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("can't open ", path));
  return file;
}

absl::Status Write(FILE* file, const std::string& bytes, const std::string& path) {
  if (fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size()) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("can't write ", path));
}

// One folder of records: first one behind the other, then as shards of as many each.
class RecordFolder {
 public:
  static absl::StatusOr<std::unique_ptr<RecordFolder>> Create(const std::string& folder, const TokenIndex& index) {
    if (auto s = PrepareFolder(folder); !s.ok()) return s;
    std::unique_ptr<RecordFolder> made(new RecordFolder(folder, index));
    auto file = OpenFile(made->path_, "w+be");
    if (!file.ok()) return file.status();
    made->file_ = *std::move(file);
    return made;
  }

  absl::Status Append(const TokenRecord& record) {
    ++records_;
    return Write(file_.get(), PrintTokenRecord(index_, record), path_);
  }

  absl::Status Finish(uint32_t shards, const Vocabulary& vocabulary) {
    if (records_ < shards) {
      return absl::InvalidArgumentError(absl::StrCat("--shards: ", shards, ": the text makes only ", records_,
                                                     " sequences to train on; take fewer, or more text"));
    }
    if (fflush(file_.get()) != 0 || fseek(file_.get(), 0, SEEK_SET) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("can't write ", path_));
    }
    std::string bytes(index_.record_bytes(), '\0');
    uint64_t done = 0;
    for (uint32_t shard = 0; shard < shards; ++shard) {
      const std::string path = absl::StrCat(folder_, "/", TokenShardName(shard));
      auto file = OpenFile(path, "wbe");
      if (!file.ok()) return file.status();
      if (auto s = Write(file->get(), TokenShardHeader(index_, shard), path); !s.ok()) return s;
      const uint64_t end = records_ * (shard + 1) / shards;
      index_.records.push_back(end - done);
      for (; done < end; ++done) {
        if (fread(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) {
          return absl::ErrnoToStatus(errno, absl::StrCat("can't read ", path_));
        }
        if (auto s = Write(file->get(), bytes, path); !s.ok()) return s;
      }
      if (fflush(file->get()) != 0 || (fsync(fileno(file->get())) != 0 && errno != EINVAL)) {
        return absl::ErrnoToStatus(errno, absl::StrCat("can't write ", path));
      }
    }
    file_ = nullptr;
    unlink(path_.c_str());
    const std::string copy = absl::StrCat(folder_, "/", kTokenVocabularyName);
    if (auto s = WriteFileAtomically(copy, vocabulary.text()); !s.ok()) return s;
    return WriteFileAtomically(absl::StrCat(folder_, "/", kTokenIndexName), PrintTokenIndex(index_));
  }

 private:
  RecordFolder(std::string folder, const TokenIndex& index)
      : folder_(std::move(folder)), path_(absl::StrCat(folder_, "/", kRecordsName)), index_(index) {}

  const std::string folder_, path_;
  TokenIndex index_;
  FilePointer file_;
  uint64_t records_ = 0;
};

class TextPacker {
 public:
  TextPacker(const PackTextOptions& options, Vocabulary vocabulary, std::string folder)
      : options_(options),
        vocabulary_(std::move(vocabulary)),
        pieces_(vocabulary_),
        basic_(options.cased),
        folder_(std::move(folder)) {}

  absl::StatusOr<PackTextFigures> Run(const std::vector<TextFile>& files) {
    const TokenIndex index{.sequence = options_.sequence,
                           .vocabulary = vocabulary_.size(),
                           .pairs = options_.pairs,
                           .vocabulary_checksum = Checksum(AsBytes(vocabulary_.text()))};
    const bool both = options_.held_out > 0;
    auto train = RecordFolder::Create(both ? absl::StrCat(folder_, "/train") : folder_, index);
    if (!train.ok()) return train.status();
    train_ = *std::move(train);
    if (both) {
      auto test = RecordFolder::Create(absl::StrCat(folder_, "/test"), index);
      if (!test.ok()) return test.status();
      test_ = *std::move(test);
    }
    figures_.files = files.size();
    for (const TextFile& file : files) figures_.bytes += file.bytes;
    for (const TextFile& file : files) {
      if (auto s = Document(file); !s.ok()) return s;
      ++figures_.files_done;
      figures_.bytes_done += file.bytes;
    }
    absl::Status status = absl::OkStatus();
    if (options_.pairs) {
      status = EndWindow();
    } else if (!stream_.empty()) {
      status = Sequence(stream_.size());
    }
    if (status.ok() && figures_.records == 0) {
      status = absl::InvalidArgumentError(absl::StrCat("--input: the text makes no sequence of ", options_.sequence,
                                                       " tokens: it has ", figures_.tokens, "; give more text"));
    }
    if (status.ok() && both && figures_.held_out == 0) {
      status = absl::InvalidArgumentError(absl::StrCat("--held-out: ", options_.held_out, ": the text makes only ",
                                                       figures_.records, " sequences; hold more out, or give more text"));
    }
    if (status.ok()) status = train_->Finish(options_.shards, vocabulary_);
    if (status.ok() && both) status = test_->Finish(1, vocabulary_);
    if (!status.ok()) return status;
    return figures_;
  }

 private:
  struct Part {
    std::vector<uint32_t> tokens;
    bool first = false;    // of a pair
    bool follows = false;  // the part before it is of the same document
  };

  absl::Status Document(const TextFile& file) {
    std::vector<std::string> words;
    document_parts_ = 0;
    const uint32_t separator = vocabulary_.special().separator;
    if (!options_.pairs && !stream_.empty() && stream_.back() != separator) stream_.push_back(separator);
    const absl::Status read = ReadText(file.path, [&](std::string_view text, uint64_t offset) -> absl::Status {
      if (options_.interrupted && options_.interrupted()) return Interrupted(options_.output);
      words.clear();
      if (auto s = basic_.Split(text, file.path, offset, &words); !s.ok()) return s;
      for (const std::string& word : words) {
        const size_t before = stream_.size();
        pieces_.Append(word, &stream_);
        figures_.tokens += stream_.size() - before;
        figures_.unknown += stream_.back() == vocabulary_.special().unknown;
        if (auto s = Cut(); !s.ok()) return s;
      }
      if (options_.progress) {
        PackTextFigures now = figures_;
        now.bytes_done += std::min(offset + text.size(), file.bytes);
        options_.progress(now);
      }
      return absl::OkStatus();
    });
    if (!read.ok()) return read;
    if (!options_.pairs) return absl::OkStatus();
    if (stream_.size() >= kLeastPart) {
      if (auto s = EndPart(stream_.size()); !s.ok()) return s;
    }
    stream_.clear();
    return absl::OkStatus();
  }

  // Takes whole sequences or parts from the stream.
  absl::Status Cut() {
    const size_t part = options_.pairs ? (options_.sequence - 3) / 2 : options_.sequence - 2;
    while (stream_.size() >= part) {
      absl::Status status = options_.pairs ? EndPart(part) : Sequence(part);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Sequence(size_t tokens) {
    const SpecialTokens& special = vocabulary_.special();
    TokenRecord record;
    record.tokens.push_back(special.first);
    record.tokens.insert(record.tokens.end(), stream_.begin(), stream_.begin() + static_cast<int64_t>(tokens));
    stream_.erase(stream_.begin(), stream_.begin() + static_cast<int64_t>(tokens));
    // The separator of two documents may be here already.
    if (record.tokens.back() != special.separator) record.tokens.push_back(special.separator);
    record.second = static_cast<uint32_t>(record.tokens.size());
    return Append(&record, IsHeldOut(figures_.records));
  }

  absl::Status EndPart(size_t tokens) {
    Part part{.first = document_parts_ % 2 == 0, .follows = document_parts_ > 0};
    part.tokens.assign(stream_.begin(), stream_.begin() + static_cast<int64_t>(tokens));
    stream_.erase(stream_.begin(), stream_.begin() + static_cast<int64_t>(tokens));
    ++document_parts_;
    window_.push_back(std::move(part));
    // Not between a pair's two parts.
    return window_.size() >= kWindow && !window_.back().first ? EndWindow() : absl::OkStatus();
  }

  absl::Status EndWindow() {
    const SpecialTokens& special = vocabulary_.special();
    // Pairs for training and for testing draw from parts of their own kind, so that no text is in both.
    std::vector<bool> held(window_.size());
    std::vector<size_t> kinds[2];
    uint64_t pair = pairs_;
    for (size_t i = 0; i < window_.size(); ++i) {
      held[i] = window_[i].first ? IsHeldOut(pair++) : held[i - 1];
      kinds[held[i]].push_back(i);
    }
    for (size_t i = 0; i < window_.size(); ++i) {
      if (!window_[i].first) continue;
      const std::vector<size_t>& among = kinds[held[i]];
      const bool has_next = i + 1 < window_.size() && window_[i + 1].follows;
      const bool has_other = among.size() >= 3;
      pair = pairs_++;
      if (!has_next && !has_other) continue;
      const bool other = !has_next || (has_other && RandomBits(options_.seed, kIsOther, pair) % 2 == 0);
      size_t second = i + 1;
      // Neither the first part itself nor the one that follows it.
      for (uint64_t draw = 0; other && (second == i || second == i + 1); ++draw) {
        second = among[RandomBits(options_.seed, kWhichOther + draw, pair) % among.size()];
      }
      TokenRecord record{.label = other};
      record.tokens.push_back(special.first);
      record.tokens.insert(record.tokens.end(), window_[i].tokens.begin(), window_[i].tokens.end());
      record.tokens.push_back(special.separator);
      record.second = static_cast<uint32_t>(record.tokens.size());
      record.tokens.insert(record.tokens.end(), window_[second].tokens.begin(), window_[second].tokens.end());
      record.tokens.push_back(special.separator);
      if (auto s = Append(&record, held[i]); !s.ok()) return s;
    }
    window_.clear();
    return absl::OkStatus();
  }

  bool IsHeldOut(uint64_t number) const { return test_ != nullptr && (number + 1) % options_.held_out == 0; }

  absl::Status Append(TokenRecord* record, bool held_out) {
    record->words = CountWords(record->tokens, vocabulary_.special());
    ++figures_.records;
    if (held_out) {
      ++figures_.held_out;
      return test_->Append(*record);
    }
    return train_->Append(*record);
  }

  const PackTextOptions& options_;
  const Vocabulary vocabulary_;
  WordPieces pieces_;
  const BasicTokens basic_;
  const std::string folder_;
  PackTextFigures figures_;
  std::unique_ptr<RecordFolder> train_, test_;
  std::vector<uint32_t> stream_;
  std::vector<Part> window_;
  uint64_t document_parts_ = 0, pairs_ = 0;
};

absl::Status CheckOptions(const PackTextOptions& options) {
  if (options.sequence < kLeastSequence || options.sequence > kMostSequence) {
    return absl::InvalidArgumentError(absl::StrCat("--sequence: ", options.sequence, ": give ", kLeastSequence,
                                                   " to ", kMostSequence, " tokens; 128 and 512 are usual"));
  }
  if (options.pairs && (options.sequence - 3) / 2 < kLeastPart) {
    return absl::InvalidArgumentError(absl::StrCat("--sequence: ", options.sequence, ": pairs need at least ",
                                                   2 * kLeastPart + 3, " tokens"));
  }
  if (options.shards < 1 || options.shards > kMaxTokenShards) {
    return absl::InvalidArgumentError(absl::StrCat("--shards: ", options.shards, ": give 1 to ", kMaxTokenShards));
  }
  if (options.held_out == 1) {
    return absl::InvalidArgumentError("--held-out: 1: would leave nothing to train on; give at least 2");
  }
  return CheckNewFolder(options.output);
}

}  // namespace

absl::StatusOr<PackTextFigures> PackText(const PackTextOptions& given) {
  PackTextOptions options = given;
  while (options.output.size() > 1 && options.output.back() == '/') options.output.pop_back();
  if (auto s = CheckOptions(options); !s.ok()) return s;
  auto vocabulary = Vocabulary::Load(options.vocabulary);
  if (!vocabulary.ok()) return vocabulary.status();
  const auto files = FindTextFiles(options.inputs);
  if (!files.ok()) return files.status();
  absl::StatusOr<PackTextFigures> figures;
  const absl::Status made = MakeFolderWhole(options.output, IsOurs, [&](const std::string& part) {
    figures = TextPacker(options, *std::move(vocabulary), part).Run(*files);
    return figures.status();
  });
  if (!made.ok()) return made;
  return figures;
}

absl::StatusOr<uint32_t> LearnTextVocabulary(const LearnTextOptions& options) {
  const auto files = FindTextFiles(options.inputs);
  if (!files.ok()) return files.status();
  const std::string folder = std::filesystem::path(options.output).parent_path().string();
  if (auto s = PrepareFolder(folder.empty() ? "." : folder); !s.ok()) return s;
  uint64_t bytes = 0, done = 0;
  for (const TextFile& file : *files) bytes += file.bytes;
  const BasicTokens basic(options.cased);
  std::map<std::string, uint64_t> counts;
  std::vector<std::string> words;
  for (const TextFile& file : *files) {
    const absl::Status read = ReadText(file.path, [&](std::string_view text, uint64_t offset) -> absl::Status {
      if (options.interrupted && options.interrupted()) return Interrupted(options.output);
      words.clear();
      if (auto s = basic.Split(text, file.path, offset, &words); !s.ok()) return s;
      for (const std::string& word : words) ++counts[word];
      if (options.progress) options.progress("bytes read", done + std::min(offset, file.bytes), bytes);
      return absl::OkStatus();
    });
    if (!read.ok()) return read;
    done += file.bytes;
  }
  const auto tokens = LearnVocabulary(counts, {.size = options.size,
                                               .interrupted = options.interrupted,
                                               .progress = [&](uint32_t made) {
                                                 if (options.progress) options.progress("tokens", made, options.size);
                                               }});
  if (absl::IsCancelled(tokens.status())) return Interrupted(options.output);
  if (!tokens.ok()) return tokens.status();
  if (auto s = WriteFileAtomically(options.output, absl::StrCat(absl::StrJoin(*tokens, "\n"), "\n")); !s.ok()) {
    return s;
  }
  return static_cast<uint32_t>(tokens->size());
}

}  // namespace foreshard
