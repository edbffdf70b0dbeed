// A model's parameters as PyTorch has them: safetensors files with torchvision's names and
// layouts, which `torch.nn.Module.load_state_dict` takes as they are (strict).
//
//   RETURN_IF_ERROR(LoadPytorchWeights(*model, "resnet18.safetensors", vector.data()));
//   RETURN_IF_ERROR(SavePytorchWeights(*model, vector, "trained.safetensors"));
//
// Names are the schema's. Two layouts differ (worker/README.md): filters of convolutions are
// [out, in, height, width] there, and the columns of a dense layer that reads an image go by
// channel, height, width. Beside each batch norm's running statistics lies
// `num_batches_tracked` (I64): written as 0; read, and ignored, where it is there.
//
// BERT's names are Hugging Face's. What its files may have besides (position_ids, and
// cls.predictions.decoder.*, which repeats the table of tokens) is in Model::ExtraWeights; they are
// not written, and load_state_dict of a BertForMaskedLM with tied weights finds its own.
//
// The plain layout is our own, the schema's, in the same kind of file: what tools exchange.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/core/schema.h"
#include "worker/models/model.h"

namespace foreshard {

enum class WeightLayout : uint8_t { kPytorch, kPlain };

// Shape of tensor i of the model in this layout.
std::vector<uint64_t> WeightShape(const Model& model, size_t tensor, WeightLayout layout);

// Fills the whole vector [schema().elements()] from a file of F32, F16 or BF16 (widened
// exactly). Nothing is taken from a file that is not right in full: INVALID_ARGUMENT names
// file and tensor: one that is missing, that the model has not, of another shape (with both
// shapes) or type, with a value that is not finite, with a variance below 0. NOT_FOUND; DATA_LOSS: the file
// is cut.
absl::Status LoadWeights(const Model& model, const std::string& path, WeightLayout layout,
                         float* vector);

// Writes beside `path`, syncs, then renames: whole or not at all. `vector`
// [schema().elements()]. INVALID_ARGUMENT: a value is not finite; else as the file system says.
absl::Status SaveWeights(const Model& model, absl::Span<const float> vector,
                         const std::string& path, WeightLayout layout);

inline absl::Status LoadPytorchWeights(const Model& model, const std::string& path,
                                       float* vector) {
  return LoadWeights(model, path, WeightLayout::kPytorch, vector);
}
inline absl::Status SavePytorchWeights(const Model& model, absl::Span<const float> vector,
                                       const std::string& path) {
  return SaveWeights(model, vector, path, WeightLayout::kPytorch);
}

// Models with a dense layer that reads an image: how PyTorch orders its columns follows from the
// data's shape, which a schema does not have.
bool DenseReadsImage(std::string_view model);

// XXH3-64 of a file's bytes, as 16 hexadecimal digits. NOT_FOUND, or as the file system says.
absl::StatusOr<std::string> FileChecksum(const std::string& path);

}  // namespace foreshard
