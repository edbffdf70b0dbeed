// foreshard weights: parameters between our layout and PyTorch's, as safetensors.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/exit_code.h"
#include "common/net/job_flags.h"
#include "tools/commands.h"
#include "worker/job_setup.h"
#include "worker/models/pytorch_weights.h"

namespace foreshard {
namespace {

struct WeightsFlags {
  std::string job;
  std::vector<std::string> overrides;
  std::string to_pytorch, from_pytorch, checksum, output;
  bool first = false;
};

absl::Status Convert(const WeightsFlags& flags) {
  if (flags.job.empty() || flags.output.empty()) {
    return absl::InvalidArgumentError("--job and --output are needed: whose model, and where to");
  }
  const auto job = LoadJobSpec(flags.job, flags.overrides);
  if (!job.ok()) return job.status();
  const auto base = LoadJobModel(*job);
  if (!base.ok()) return base.status();
  const Model& model = *base->model;
  std::vector<float> vector(model.schema().elements());
  const bool from = !flags.from_pytorch.empty();
  absl::Status loaded = flags.first ? WriteFirstValues(*job, model, vector.data())
                        : from ? LoadPytorchWeights(model, flags.from_pytorch, vector.data())
                               : LoadWeights(model, flags.to_pytorch, WeightLayout::kPlain, vector.data());
  // A file that is cut is the user's to replace: exit status 2.
  if (absl::IsDataLoss(loaded)) return absl::InvalidArgumentError(loaded.message());
  if (!loaded.ok()) return loaded;
  return SaveWeights(model, vector, flags.output, from ? WeightLayout::kPlain : WeightLayout::kPytorch);
}

int Weights(const WeightsFlags& flags) {
  const int asked = !flags.to_pytorch.empty() + !flags.from_pytorch.empty() + !flags.checksum.empty() + flags.first;
  if (asked != 1) {
    return Fail("weights", absl::InvalidArgumentError(
                               "give one of --to-pytorch, --from-pytorch, --first-values and --checksum"));
  }
  if (!flags.checksum.empty()) {
    const auto checksum = FileChecksum(flags.checksum);
    if (!checksum.ok()) return Fail("weights", checksum.status());
    std::printf("%s\n", checksum->c_str());
    return kExitDone;
  }
  if (const absl::Status status = Convert(flags); !status.ok()) return Fail("weights", status);
  const auto checksum = FileChecksum(flags.output);
  if (!checksum.ok()) return Fail("weights", checksum.status());
  std::printf("%s: checksum %s\n", flags.output.c_str(), checksum->c_str());
  return kExitDone;
}

}  // namespace

void AddWeightsCommand(CLI::App& program, int* exit_code) {
  auto flags = std::make_shared<WeightsFlags>();
  CLI::App* weights = program.add_subcommand(
      "weights", "Convert a model's parameters between our layout and PyTorch's (safetensors)");
  weights->add_option("--job", flags->job, "Whose model it is: a JobSpec; its data gives the shape")
      ->type_name("FILE");
  weights->add_option("--set", flags->overrides, "Override a field of the job, as in --set model.name=resnet18")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->take_all();
  weights->add_option("--to-pytorch", flags->to_pytorch,
                      "Read this file in our layout (the schema's names and shapes), write PyTorch's")
      ->type_name("FILE");
  weights->add_option("--from-pytorch", flags->from_pytorch,
                      "Read this file with torchvision's names and layouts, write ours")
      ->type_name("FILE");
  weights->add_flag("--first-values", flags->first,
                    "Write what the job starts from, in PyTorch's layout");
  weights->add_option("--checksum", flags->checksum,
                      "Only print this file's checksum, for model.initial_weights_checksum")
      ->type_name("FILE");
  weights->add_option("--output", flags->output, "File to write")->type_name("FILE");
  weights->footer("Exit status: 0 done, 1 failed, 2 bad arguments, job or file.");
  weights->callback([flags, exit_code] { *exit_code = Weights(*flags); });
}

}  // namespace foreshard
