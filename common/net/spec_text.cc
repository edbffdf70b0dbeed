#include "common/net/spec_text.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace foreshard {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;

// "Message type "foreshard.v1.X" has no field named "y"." gets X's fields added;
// a minus sign where the parser wants a count is said in plain words.
std::string ExplainParseError(const std::string& message, const DescriptorPool& pool) {
  const std::vector<std::string> quoted = absl::StrSplit(message, '"');
  if (absl::StrContains(message, "has no field named") && quoted.size() > 1) {
    const Descriptor* type = pool.FindMessageTypeByName(quoted[1]);
    if (type != nullptr) {
      std::vector<std::string> names;
      for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
      return absl::StrCat(message, " Known fields: ", absl::StrJoin(names, ", "), ".");
    }
  }
  if (absl::StartsWith(message, "Expected integer, got: -")) {
    return "this field is a count and cannot be negative";
  }
  return message;
}

// Collects the text parser's errors with the line they are on.
class ParseErrors : public google::protobuf::io::ErrorCollector {
 public:
  ParseErrors(const std::string& text, const std::string& origin, const DescriptorPool& pool)
      : lines_(absl::StrSplit(text, '\n')), origin_(origin), pool_(pool) {}

  void AddError(int line, int column, const std::string& message) override {
    std::string error = origin_;
    if (line >= 0) absl::StrAppend(&error, ":", line + 1, ":", column + 1);
    absl::StrAppend(&error, ": ", ExplainParseError(message, pool_));
    if (line >= 0 && line < static_cast<int>(lines_.size())) {
      absl::StrAppend(&error, " (in '", absl::StripAsciiWhitespace(lines_[line]), "')");
    }
    errors_.push_back(std::move(error));
  }
  absl::Status status() const {
    return absl::InvalidArgumentError(absl::StrJoin(errors_, "\n"));
  }

 private:
  std::vector<std::string> lines_;
  std::string origin_;
  const DescriptorPool& pool_;
  std::vector<std::string> errors_;
};

}  // namespace

absl::StatusOr<std::string> ReadSpecFile(const std::string& path, const std::string& kind,
                                         const std::string& example) {
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ", kind, " file '", path, "' is ",
        std::filesystem::is_directory(path, unknown) ? "a directory" : "no plain file",
        ": give a file such as ", example));
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad()) {
    return absl::NotFoundError(absl::StrCat(
        "cannot read the ", kind, " file '", path, "': does it exist? Ready ones are in ",
        std::filesystem::path(example).parent_path().string(), ", as in ", example));
  }
  return text.str();
}

absl::Status ParseSpecText(const std::string& text, const std::string& origin,
                           google::protobuf::Message* message) {
  ParseErrors errors(text, origin, *message->GetDescriptor()->file()->pool());
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  return parser.ParseFromString(text, message) ? absl::OkStatus() : errors.status();
}

}  // namespace foreshard
