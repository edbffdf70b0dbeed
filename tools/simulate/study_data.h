// The data sets that the runs of a study share.
//
//   StudyData data;
//   absl::Status status = data.Add(run.job);  // loads what is not there yet
//   const StudyData::Sets& sets = data.Of(run.job);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "foreshard/v1/job.pb.h"
#include "worker/data/dataset.h"

namespace foreshard {

// Add is thread-compatible; Of is safe from several threads once all is added.
class StudyData {
 public:
  struct Sets {
    std::unique_ptr<Dataset> train, test;
    uint64_t checksum = 0;  // of the files' content
  };

  // Errors as LoadTrainingData and LoadTestData.
  absl::Status Add(const v1::JobSpec& job);
  // Of a job that was added.
  const Sets& Of(const v1::JobSpec& job) const;

 private:
  std::map<std::string, Sets> sets_;  // by what decides them
};

}  // namespace foreshard
