#include "common/core/safetensors_header.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace foreshard::internal {
namespace {

using Json = nlohmann::json;

// Takes the header as it is parsed, so that nothing that is not expected is even kept: a
// repeated key, a level too deep, a number that is none.
class HeaderHandler final : public nlohmann::json_sax<Json> {
 public:
  struct Tensor {
    SafetensorsTensor tensor;
    uint64_t begin = 0, end = 0;
  };

  bool start_object(size_t) override {
    if (place_ == Place::kStart) return Move(Place::kHeader);
    if (place_ == Place::kName) {
      if (key_ == kMetadata) return Move(Place::kMetadata);
      fields_.clear();
      tensors_.emplace_back();
      tensors_.back().tensor.name = key_;
      return Move(Place::kTensor);
    }
    return Unexpected("an object");
  }
  bool end_object() override {
    if (place_ == Place::kHeader) return Move(Place::kEnd);
    if (place_ == Place::kTensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (fields_.count(field) == 0) return Fail(absl::StrCat("tensor '", name(), "' has no ", field));
      }
    }
    return Move(Place::kHeader);
  }
  bool key(std::string& text) override {
    key_ = text;
    switch (place_) {
      case Place::kHeader:
        if (text.empty()) return Fail("a tensor has no name");
        if (!names_.insert(text).second) return Fail(absl::StrCat("'", text, "' is there twice"));
        return Move(Place::kName);
      case Place::kMetadata:
        if (metadata_.count(text) > 0) {
          return Fail(absl::StrCat("the metadata '", text, "' is there twice"));
        }
        return true;
      default:
        if (text != "dtype" && text != "shape" && text != "data_offsets") {
          return Fail(absl::StrCat("tensor '", name(), "' has a field '", text,
                                   "', which this program does not know"));
        }
        if (!fields_.insert(text).second) {
          return Fail(absl::StrCat("tensor '", name(), "' has two fields '", text, "'"));
        }
        return true;
    }
  }
  bool start_array(size_t) override {
    if (place_ != Place::kTensor || key_ == "dtype") return Unexpected("a list");
    numbers_.clear();
    return Move(Place::kNumbers);
  }
  bool end_array() override {
    Tensor& tensor = tensors_.back();
    if (key_ == "shape") {
      tensor.tensor.shape = numbers_;
    } else if (numbers_.size() != 2) {
      return Fail(
          absl::StrCat("tensor '", name(), "' has ", numbers_.size(), " data_offsets; there must be 2"));
    } else {
      tensor.begin = numbers_[0];
      tensor.end = numbers_[1];
    }
    return Move(Place::kTensor);
  }
  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kNumbers) return Unexpected("a number");
    if (numbers_.size() >= kMaxSafetensorsDimensions) {
      return Fail(absl::StrCat("tensor '", name(), "' has more than ", kMaxSafetensorsDimensions,
                               " numbers in ", key_));
    }
    numbers_.push_back(value);
    return true;
  }
  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) {
      metadata_[key_] = text;
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return Unexpected("a text");
    for (const SafetensorsType type :
         {SafetensorsType::kF32, SafetensorsType::kF16, SafetensorsType::kBF16, SafetensorsType::kI64}) {
      if (text != ToString(type)) continue;
      tensors_.back().tensor.type = type;
      return true;
    }
    return Fail(
        absl::StrCat("tensor '", name(), "' has the type '", text, "'; F32, F16, BF16 and I64 can be read"));
  }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool number_integer(int64_t value) override { return Unexpected(absl::StrCat("the number ", value)); }
  bool number_float(double, const std::string& text) override {
    return Unexpected(absl::StrCat("the number ", text.substr(0, 40)));
  }
  bool binary(Json::binary_t&) override { return Unexpected("bytes"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (fault_.empty()) fault_ = absl::StrCat("it is no JSON at byte ", position, " of the header");
    return false;
  }

  const std::string& fault() const { return fault_; }
  std::vector<Tensor>& tensors() { return tensors_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }

 private:
  enum class Place { kStart, kHeader, kName, kTensor, kNumbers, kMetadata, kEnd };
  static constexpr char kMetadata[] = "__metadata__";

  const std::string& name() const { return tensors_.back().tensor.name; }
  bool Move(Place place) {
    place_ = place;
    return true;
  }
  bool Fail(std::string fault) {
    fault_ = std::move(fault);
    return false;
  }
  bool Unexpected(const std::string& what) {
    return Fail(absl::StrCat(
        what, " where none belongs", key_.empty() ? "" : absl::StrCat(", at '", key_, "'"),
        place_ == Place::kTensor || place_ == Place::kNumbers ? absl::StrCat(" of tensor '", name(), "'")
                                                              : ""));
  }

  Place place_ = Place::kStart;
  std::string key_;
  std::set<std::string> names_, fields_;
  std::vector<uint64_t> numbers_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::string fault_;
};

}  // namespace

absl::StatusOr<uint64_t> SafetensorsElements(const std::vector<uint64_t>& shape) {
  if (shape.size() > kMaxSafetensorsDimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape.size(), " dimensions; there may be ", kMaxSafetensorsDimensions));
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  uint64_t elements = 1;
  for (const uint64_t dimension : shape) {
    if (dimension > kMaxSafetensorsBytes / 4 / elements) {
      return absl::InvalidArgumentError("the product of its shape is larger than any file");
    }
    elements *= dimension;
  }
  return elements;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(const std::string& json, uint64_t values_bytes) {
  // The parser would skip a byte order mark, and spaces, which other readers do not.
  if (json.empty() || json.front() != '{') {
    return absl::InvalidArgumentError("the header does not begin with '{'");
  }
  HeaderHandler handler;
  if (!Json::sax_parse(json, &handler)) return absl::InvalidArgumentError(handler.fault());
  std::vector<HeaderHandler::Tensor>& found = handler.tensors();
  // Stable, so that empty tensors keep their place.
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  SafetensorsHeader header;
  uint64_t end = 0;
  for (HeaderHandler::Tensor& each : found) {
    SafetensorsTensor& tensor = each.tensor;
    const auto bad = [&](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "': ", what...));
    };
    const auto elements = SafetensorsElements(tensor.shape);
    if (!elements.ok()) return bad(elements.status().message());
    tensor.elements = *elements;
    const uint64_t bytes = tensor.elements * BytesOf(tensor.type);
    if (each.end < each.begin || each.end - each.begin != bytes) {
      return bad("its data_offsets are ", each.begin, " and ", each.end, "; its shape and type take ",
                 bytes, " bytes");
    }
    if (each.begin < end) {
      return bad("begins at byte ", each.begin, ", inside the tensor before it, which ends at ", end);
    }
    if (each.begin > end) {
      return bad("begins at byte ", each.begin, ", and the one before it ends at ", end, ": a hole");
    }
    end = each.end;
    tensor.offset = each.begin;
    header.tensors.push_back(std::move(tensor));
  }
  if (end > values_bytes) {
    return absl::DataLossError(absl::StrCat("the header announces ", end, " bytes of values, and ",
                                            values_bytes, " are there: the file is cut"));
  }
  if (end < values_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(values_bytes - end, " bytes behind the last tensor belong to none"));
  }
  header.metadata = std::move(handler.metadata());
  return header;
}

}  // namespace foreshard::internal
