// What can be said against a StudySpec without reading another file.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "foreshard/v1/study.pb.h"

namespace foreshard {

// Fills in what study.proto promises for fields left out.
void FillStudyDefaults(v1::StudySpec* spec);

// Every problem in one INVALID_ARGUMENT, one a line "field: value: remedy". Of a spec
// with its defaults.
absl::Status ValidateStudySpec(const v1::StudySpec& spec);

// What ':', spaces and the like become in the name of a file.
std::string Slug(const std::string& label);

}  // namespace foreshard
