// A JobSpec as people write it, then overrides, each behind a zero byte: what is accepted prints
// as a text that reads back as the same job.
#include "absl/strings/str_split.h"
#include "common/net/job_spec.h"
#include "tests/fuzz/fuzz.h"

namespace foreshard::fuzz {
namespace {

void Run(ByteSpan bytes) {
  std::vector<std::string> parts = absl::StrSplit(AsText(bytes), '\0');
  const std::string text = parts.front();
  parts.erase(parts.begin());
  const auto job = ParseJobSpec(text, "fuzz", parts);
  if (!job.ok()) {
    FUZZ_CHECK(!job.status().message().empty());
    return;
  }
  const std::string printed = PrintJobSpec(*job);
  const auto again = ParseJobSpec(printed, "printed", {});
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(JobFingerprint(*again) == JobFingerprint(*job) && PrintJobSpec(*again) == printed);
}

Seeds MakeSeeds() {
  const std::string plain =
      "name: \"fuzz\" seed: 5 model { name: \"synthetic\" elements: 350 }\n"
      "data { format: \"synthetic\" examples: 100 }\n"
      "training { epochs: 2 batch_size: 10 workers: 2 max_workers: 4 }\n"
      "update { rule: \"dana_zero\" momentum: 0.9 }\n"
      "schedule { learning_rate: 0.1 decay: \"step\" decay_epochs: [1, 1.5] decay_factor: 0.1 }\n"
      "compression { push: \"one_bit\" block_elements: 64 full_precision: [\"*.bias\"] }\n"
      "servers { shards: 2 segment_elements: 128 } timeouts { lease_seconds: 10 }\n";
  const std::string squeeze =
      "name: \"s\" model { name: \"mlp\" widths: [8, 4] }\n"
      "data { format: \"idx\" directory: \"d\" train_images: \"a\" train_labels: \"b\"\n"
      "  test_images: \"c\" test_labels: \"e\" classes: 10 mean: 0.2 deviation: 0.3 flip: true }\n"
      "training { epochs: 3 batch_size: 8 workers: 4 straggler_seconds: 2 }\n"
      "update { rule: \"apmsqueeze\" beta1: 0.9 bias_correction: true }\n"
      "schedule { learning_rate: 0.001 decay: \"cosine\" warmup_epochs: 0.1 }\n"
      "apmsqueeze { warmup_fraction: 0.2 fold_rounds: 100 dead: [\"x*\"] }\n"
      "durability { journal: \"synced\" keep_checkpoints: 3 }\n";
  return {{"plain", plain},
          {"overrides", plain + '\0' + "training.epochs=3" + '\0' + "schedule.decay_epochs=1,2"},
          {"squeeze", squeeze}};
}

const Registration registration({.name = "job_spec", .run = Run, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
