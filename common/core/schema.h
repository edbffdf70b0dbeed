// The ordered list of a model's named tensors: all trainable ones first, then
// the running statistics. Together they are one flat fp32 vector in canonical
// layout (convolution filters OHWI, dense weights output x input).
//
//   absl::StatusOr<Schema> schema = Schema::Create({
//       {"conv1.weight", {32, 3, 3, 1}, TensorKind::kTrainable, true},
//       {"bn1.running_mean", {32}, TensorKind::kStatistic, false}});
//   schema->offset(1);  // 288
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace foreshard {

enum class TensorKind : uint8_t { kTrainable = 0, kStatistic = 1 };

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  TensorKind kind = TensorKind::kTrainable;
  bool decayed = false;

  // Product of the shape; 1 for a scalar, 0 for an empty tensor.
  uint64_t elements() const;
};

// Immutable once created; safe to share between threads.
class Schema {
 public:
  Schema() = default;

  // INVALID_ARGUMENT, naming the tensor: an empty or repeated name, a negative
  // dimension, a trainable tensor after a statistic, a product beyond 2^40.
  static absl::StatusOr<Schema> Create(std::vector<TensorSpec> tensors);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // Position of tensor i's first element in the flat vector.
  uint64_t offset(size_t i) const { return offsets_[i]; }
  uint64_t elements() const { return elements_; }
  uint64_t trainable_elements() const { return trainable_elements_; }
  uint64_t statistic_elements() const { return elements_ - trainable_elements_; }
  // XXH3-64 over names, shapes and kinds.
  uint64_t fingerprint() const { return fingerprint_; }

  // One line naming the first difference to `other`, or "" when equal.
  std::string Difference(const Schema& other) const;

 private:
  std::vector<TensorSpec> tensors_;
  std::vector<uint64_t> offsets_;
  uint64_t elements_ = 0;
  uint64_t trainable_elements_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace foreshard
