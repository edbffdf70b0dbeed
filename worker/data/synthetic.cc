#include <algorithm>

#include "worker/data/dataset.h"

namespace foreshard {
namespace {

// No inputs; the label only makes one batch differ from another.
class SyntheticDataset : public Dataset {
 public:
  SyntheticDataset(uint64_t examples, InputShape shape, uint32_t classes)
      : examples_(examples), shape_(shape), classes_(std::max(classes, 1u)) {}

  uint64_t examples() const override { return examples_; }
  InputShape shape() const override { return shape_; }
  uint32_t classes() const override { return classes_; }

  absl::Status Gather(absl::Span<const uint32_t> indices, uint64_t augment_key,
                      Batch* batch) const override {
    batch->examples = indices.size();
    batch->inputs.assign(indices.size() * shape_.elements(), 0.0f);
    batch->labels.resize(indices.size());
    for (size_t k = 0; k < indices.size(); ++k) {
      batch->labels[k] = static_cast<int32_t>(indices[k] % classes_);
    }
    return absl::OkStatus();
  }

 private:
  uint64_t examples_;
  InputShape shape_;
  uint32_t classes_;
};

}  // namespace

std::unique_ptr<Dataset> MakeSyntheticDataset(uint64_t examples, InputShape shape,
                                              uint32_t classes) {
  return std::make_unique<SyntheticDataset>(examples, shape, classes);
}

}  // namespace foreshard
