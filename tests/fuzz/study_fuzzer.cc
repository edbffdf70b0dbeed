// The text of a study, up to where the job it names would be read.
#include "common/net/spec_text.h"
#include "tests/fuzz/fuzz.h"
#include "tools/simulate/study_validation.h"

namespace foreshard::fuzz {
namespace {

void Run(ByteSpan bytes) {
  v1::StudySpec study;
  if (!ParseSpecText(AsText(bytes), "fuzz", &study).ok()) return;
  FillStudyDefaults(&study);
  ValidateStudySpec(study).IgnoreError();
}

Seeds MakeSeeds() {
  return {{"study",
           "name: \"quick\" job: \"fashion_mnist.textproto\" workers: [8, 16] seeds: [1, 2]\n"
           "rules { label: \"one\" baseline: true set: [\"update.rule=asgd\"] }\n"
           "rules { label: \"DANA\" set: [\"update.rule=dana_zero\", \"update.momentum=0.9\"] }\n"}};
}

const Registration registration({.name = "study", .run = Run, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
