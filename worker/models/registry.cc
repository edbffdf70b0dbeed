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

// Of the models that read text.
absl::Status CheckTextOptions(const ModelOptions& options) {
  const TextOptions& text = options.text;
  if (options.input.width != 1 || options.input.channels != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("reads text, and the data are of ", options.input.height, " x ",
                     options.input.width, " x ", options.input.channels,
                     "; its data.format is tokens"));
  }
  if (options.input.height > text.positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the data's sequences have ", options.input.height, " tokens, and model.positions is ",
        text.positions, "; raise it, or pack the text with --sequence ", text.positions));
  }
  if (text.targets == 0 || text.targets > options.input.height) {
    return absl::InvalidArgumentError(absl::StrCat("targets is ", text.targets, "; it must be 1 to ",
                                                   options.input.height));
  }
  if (!(text.dropout >= 0 && text.dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dropout is ", text.dropout, "; it must be at least 0 and below 1"));
  }
  return absl::OkStatus();
}

constexpr Entry kEntries[] = {
    {"cnn", MakeCnn},
    {"mlp", MakeMlp},
    {"quadratic", MakeQuadratic},
    {"synthetic", MakeSynthetic},
    {"resnet18", MakeResnet18},
    {"resnet20", MakeResnet20},
    {"resnet50", MakeResnet50},
    {"wrn16_4", MakeWrn16By4},
    {"bert_tiny", MakeBertTiny},
    {"bert_base", MakeBertBase},
    {"bert_large", MakeBertLarge},
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
    if (ReadsText(options.name)) {
      if (auto s = CheckTextOptions(options); !s.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(prefix, std::string(s.message())));
      }
    } else if (options.text.targets > 0) {
      return absl::InvalidArgumentError(
          prefix + "reads images, and the data are text; take bert_tiny, bert_base or bert_large");
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
