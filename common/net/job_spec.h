// Reading a JobSpec and turning it into what the parts need. One validation for
// every program: what is not said gets its documented default, what contradicts
// is INVALID_ARGUMENT with field, value and remedy.
//
//   auto job = LoadJobSpec("deploy/jobs/fashion_mnist.textproto", {"training.epochs=3"});
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "foreshard/v1/job.pb.h"

namespace foreshard {

// Reads a protobuf text file, applies overrides ("path.to.field=value"; a
// repeated field takes a comma-separated list; "path.to.field=" clears it),
// fills defaults in, validates. NOT_FOUND for a missing file; INVALID_ARGUMENT
// with the line for text that does not parse.
absl::StatusOr<v1::JobSpec> LoadJobSpec(const std::string& path,
                                        const std::vector<std::string>& overrides);

// The same from text; `origin` stands in for the file's name in errors.
absl::StatusOr<v1::JobSpec> ParseJobSpec(const std::string& text, const std::string& origin,
                                         const std::vector<std::string>& overrides);

// Every contradiction that can be seen without data, against
// common/core/catalogue.h; all problems in one error, one a line.
absl::Status ValidateJobSpec(const v1::JobSpec& job);

// XXH3-64 of the fields that must agree between programs (all but timeouts, durability, evaluation,
// data.directory, data.decode_threads and model.initial_weights), independent of how the file was
// written.
uint64_t JobFingerprint(const v1::JobSpec& job);

// The job as a text file that reads back as it was.
std::string PrintJobSpec(const v1::JobSpec& job);

}  // namespace foreshard
