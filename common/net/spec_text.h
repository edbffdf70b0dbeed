// Specs as people write them: protobuf text files, with errors that name the file, the
// line and the fields that there are.
//
//   v1::StudySpec study;
//   auto text = ReadSpecFile("study.textproto", "study", "deploy/jobs/studies/quick.textproto");
//   if (text.ok()) status = ParseSpecText(*text, "study.textproto", &study);
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace foreshard {

// `kind` and `example` are for the error: NOT_FOUND where it cannot be read,
// INVALID_ARGUMENT where it is no plain file.
absl::StatusOr<std::string> ReadSpecFile(const std::string& path, const std::string& kind,
                                         const std::string& example);

// INVALID_ARGUMENT, one line an error; `origin` stands for the file's name in them.
absl::Status ParseSpecText(const std::string& text, const std::string& origin,
                           google::protobuf::Message* message);

}  // namespace foreshard
