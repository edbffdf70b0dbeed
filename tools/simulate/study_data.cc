#include "tools/simulate/study_data.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/bytes.h"
#include "glog/logging.h"
#include "tools/files.h"
#include "worker/data/packed_records.h"
#include "worker/data/token_records.h"
#include "worker/job_setup.h"

namespace foreshard {
namespace {

// Synthetic data also depend on whether the model reads them.
std::string KeyOf(const v1::JobSpec& job) {
  return absl::StrCat(job.data().ShortDebugString(), " ", job.model().name() == "synthetic");
}

// The files that decide what the data are.
absl::StatusOr<std::vector<std::string>> FilesOf(const v1::DataSpec& data) {
  std::vector<std::string> names = {data.train_images(), data.train_labels(), data.test_images(),
                                    data.test_labels()};
  names.insert(names.end(), data.train_files().begin(), data.train_files().end());
  names.insert(names.end(), data.test_files().begin(), data.test_files().end());
  std::erase(names, "");
  // The index has every picture's checksum.
  for (const std::string& folder : {data.train_packed(), data.test_packed()}) {
    if (!folder.empty()) names.push_back(absl::StrCat(folder, "/", kPackedIndexName));
  }
  for (std::string& name : names) name = std::filesystem::path(data.directory()) / name;
  for (const std::string& folder : {data.train_tokens(), data.test_tokens()}) {
    if (folder.empty()) continue;
    const std::string path = std::filesystem::path(data.directory()) / folder;
    names.push_back(absl::StrCat(path, "/", kTokenIndexName));
    const auto content = ReadFile(names.back());
    if (!content.ok()) return content.status();
    const auto index = ParseTokenIndex(*content, names.back());
    if (!index.ok()) return index.status();
    for (uint32_t shard = 0; shard < index->records.size(); ++shard) {
      names.push_back(absl::StrCat(path, "/", TokenShardName(shard)));
    }
  }
  return names;
}

absl::StatusOr<uint64_t> ChecksumOf(const v1::DataSpec& data) {
  const auto names = FilesOf(data);
  if (!names.ok()) return names.status();
  std::string all;
  for (const std::string& name : *names) {
    absl::StatusOr<std::string> content = ReadFile(name);
    if (!content.ok()) return content.status();
    absl::StrAppend(&all, Checksum(AsBytes(*content)), " ");
  }
  return Checksum(AsBytes(all));
}

}  // namespace

absl::Status StudyData::Add(const v1::JobSpec& job) {
  const std::string key = KeyOf(job);
  if (sets_.contains(key)) return absl::OkStatus();
  Sets sets;
  auto train = LoadTrainingData(job);
  if (!train.ok()) return train.status();
  auto test = LoadTestData(job, **train);
  if (!test.ok()) return test.status();
  absl::StatusOr<uint64_t> checksum = ChecksumOf(job.data());
  if (!checksum.ok()) return checksum.status();
  sets.train = *std::move(train);
  sets.test = *std::move(test);
  sets.checksum = *checksum;
  sets_.emplace(key, std::move(sets));
  return absl::OkStatus();
}

const StudyData::Sets& StudyData::Of(const v1::JobSpec& job) const {
  const auto found = sets_.find(KeyOf(job));
  CHECK(found != sets_.end()) << "no data for " << job.data().ShortDebugString();
  return found->second;
}

}  // namespace foreshard
