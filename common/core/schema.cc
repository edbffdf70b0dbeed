#include "common/core/schema.h"

#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/core/bytes.h"

namespace foreshard {
namespace {

constexpr uint64_t kMaxElements = uint64_t{1} << 40;

std::string Describe(const TensorSpec& tensor) {
  return absl::StrCat("'", tensor.name, "' [", absl::StrJoin(tensor.shape, ", "), "] ",
                      tensor.kind == TensorKind::kTrainable ? "trainable" : "statistic",
                      tensor.decayed ? ", decayed" : "");
}

// The product of the shape, or more than kMaxElements where it is too large.
uint64_t BoundedElements(const TensorSpec& tensor) {
  uint64_t product = 1;
  for (const int64_t dimension : tensor.shape) {
    if (dimension == 0) return 0;
  }
  for (const int64_t dimension : tensor.shape) {
    if (static_cast<uint64_t>(dimension) > kMaxElements / product) return kMaxElements + 1;
    product *= static_cast<uint64_t>(dimension);
  }
  return product;
}

}  // namespace

uint64_t TensorSpec::elements() const { return BoundedElements(*this); }

absl::StatusOr<Schema> Schema::Create(std::vector<TensorSpec> tensors) {
  Schema schema;
  std::unordered_set<std::string_view> names;
  bool statistics_began = false;
  ByteWriter identity;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("schema: tensor ", schema.offsets_.size(),
                                                     " has no name; name every tensor"));
    }
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("schema: two tensors are named '", tensor.name, "'; names must differ"));
    }
    for (const int64_t dimension : tensor.shape) {
      if (dimension < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("schema: tensor ", Describe(tensor), " has a negative dimension"));
      }
    }
    const bool statistic = tensor.kind == TensorKind::kStatistic;
    if (statistics_began && !statistic) {
      return absl::InvalidArgumentError(
          absl::StrCat("schema: tensor ", Describe(tensor),
                       " comes after a statistic; trainable tensors go first"));
    }
    statistics_began |= statistic;
    const uint64_t elements = BoundedElements(tensor);
    if (elements > kMaxElements || schema.elements_ + elements > kMaxElements) {
      return absl::InvalidArgumentError(
          absl::StrCat("schema: with tensor ", Describe(tensor), " the model has more than 2^40 elements"));
    }
    schema.offsets_.push_back(schema.elements_);
    schema.elements_ += elements;
    if (!statistic) schema.trainable_elements_ += elements;
    identity.PutString(tensor.name);
    identity.Put<uint8_t>(static_cast<uint8_t>(tensor.kind));
    identity.Put<uint8_t>(tensor.decayed);
    identity.Put<uint64_t>(tensor.shape.size());
    for (const int64_t dimension : tensor.shape) identity.Put(dimension);
  }
  const std::string bytes = identity.Take();
  schema.fingerprint_ = Checksum(AsBytes(bytes));
  schema.tensors_ = std::move(tensors);
  return schema;
}

std::string Schema::Difference(const Schema& other) const {
  for (size_t i = 0; i < tensors_.size() && i < other.tensors_.size(); ++i) {
    const TensorSpec& mine = tensors_[i];
    const TensorSpec& theirs = other.tensors_[i];
    if (mine.name != theirs.name || mine.shape != theirs.shape || mine.kind != theirs.kind ||
        mine.decayed != theirs.decayed) {
      return absl::StrCat("tensor ", i, " is ", Describe(mine), " here and ", Describe(theirs),
                          " there");
    }
  }
  if (tensors_.size() != other.tensors_.size()) {
    return absl::StrCat(tensors_.size(), " tensors here and ", other.tensors_.size(), " there");
  }
  return "";
}

}  // namespace foreshard
