#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/core/catalogue.h"
#include "worker/models/models.h"

namespace foreshard {
namespace {

struct Entry {
  std::string_view name;
  absl::StatusOr<std::unique_ptr<Model>> (*make)(const ModelOptions&, kernels::Device&);
};

constexpr Entry kEntries[] = {
    {"cnn", MakeCnn},
    {"mlp", MakeMlp},
    {"quadratic", MakeQuadratic},
    {"synthetic", MakeSynthetic},
    {"resnet18", MakeResnet18},
    {"resnet20", MakeResnet20},
    {"resnet50", MakeResnet50},
    {"wrn16_4", MakeWrn16By4},
};

}  // namespace

std::vector<std::string_view> ModelNames() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kEntries) names.push_back(entry.name);
  return names;
}

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelOptions& options,
                                                 kernels::Device& device) {
  for (const Entry& entry : kEntries) {
    if (entry.name != options.name) continue;
    const std::string prefix = absl::StrCat("model ", options.name, ": ");
    if (options.batch_size == 0) {
      return absl::InvalidArgumentError(prefix + "batch_size is 0; it must be at least 1");
    }
    if (IsAnalytic(options.name)) return entry.make(options, device);
    if (options.elements != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          prefix, "elements is ", options.elements, ", which only the models quadratic and synthetic have"));
    }
    if (!HasWidths(options.name) && (!options.widths.empty() || options.dense_units != 0)) {
      return absl::InvalidArgumentError(
          prefix + "has widths or dense_units, but all of its layers are given by its name");
    }
    if (options.classes < 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(prefix, "classes is ", options.classes, "; it must be at least 2"));
    }
    if (options.input.elements() == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(prefix, "input is ", options.input.height, " x ", options.input.width, " x ",
                       options.input.channels, "; no side may be 0"));
    }
    for (size_t i = 0; i < options.widths.size(); ++i) {
      if (options.widths[i] == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(prefix, "widths[", i, "] is 0; it must be at least 1"));
      }
    }
    return entry.make(options, device);
  }
  std::vector<std::string> names;
  for (std::string_view name : ModelNames()) names.emplace_back(name);
  return absl::InvalidArgumentError(absl::StrCat("model '", options.name,
                                                 "' is not known: use one of ",
                                                 absl::StrJoin(names, ", ")));
}

}  // namespace foreshard
