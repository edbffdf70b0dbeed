#include "tools/simulate/study_data.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/bytes.h"
#include "glog/logging.h"
#include "tools/files.h"
#include "worker/job_setup.h"

namespace foreshard {
namespace {

// Synthetic data also depend on whether the model reads them.
std::string KeyOf(const v1::JobSpec& job) {
  return absl::StrCat(job.data().ShortDebugString(), " ", job.model().name() == "synthetic");
}

absl::StatusOr<uint64_t> ChecksumOf(const v1::DataSpec& data) {
  std::vector<std::string> names = {data.train_images(), data.train_labels(), data.test_images(),
                                    data.test_labels()};
  names.insert(names.end(), data.train_files().begin(), data.train_files().end());
  names.insert(names.end(), data.test_files().begin(), data.test_files().end());
  std::string all;
  for (const std::string& name : names) {
    if (name.empty()) continue;
    absl::StatusOr<std::string> content =
        ReadFile((std::filesystem::path(data.directory()) / name).string());
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
