// What a state directory says of its run, and of the lead: text that a start or a tool reads before
// anything else, and goes on with only where all of it fits.
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "server/lead_slots.h"
#include "server/run_description.h"
#include "tests/fuzz/fuzz.h"
#include "tests/golden/conversation.h"
#include "tests/golden/samples.h"

namespace foreshard::fuzz {
namespace {

constexpr int64_t kMostElements = 1 << 18;  // a server bounds them by its memory

void ReadLead(const std::string& text) {
  v1::LeadState state;
  if (!ParseText(text, &state).ok()) return;
  LeadSlots slots(4);
  if (!slots.Load(state).ok()) return;
  v1::LeadState saved;
  slots.Save(&saved);
  FUZZ_CHECK(slots.Load(saved).ok());
}

void Run(ByteSpan bytes) {
  const auto files = UnpackFiles(AsText(bytes), 2);
  ReadLead(files[1]);
  const ReadOnlyStorage storage({{kRunFile, files[0]}});
  const auto found = ReadRunDescription(storage);
  if (!found.ok() || !found->has_value()) return;
  const v1::RunDescription& description = **found;
  const ReadOnlyStorage printed({{kRunFile, PrintText(description)}});
  FUZZ_CHECK(PrintText(*ReadRunDescription(printed).value()) == PrintText(description));
  static const v1::JobSpec& ours = *new v1::JobSpec(golden::ConversationJob());
  CheckRun(description, ours, 0, "here").IgnoreError();
  IdentityOf(description);
  const v1::JobSpec& job = description.job();
  if (!ValidateJobSpec(job).ok()) return;
  const auto schema = FromProto(description.model());
  if (!schema.ok() || schema->elements() > kMostElements || schema->tensors().size() > 1000) return;
  const auto plan = ShardPlan::Create(*schema, MakePlanOptions(job));
  if (!plan.ok() || description.train_examples() == 0) return;
  CheckContract(MakeContract(job, *schema, *plan), description.contract()).IgnoreError();
  const uint64_t batches = BatchesPerEpoch(job, description.train_examples());
  FUZZ_CHECK(batches > 0);
  MakeSchedule(job, batches).At(batches);
}

Seeds MakeSeeds() {
  const std::string lead =
      "dealing: 5 dealing: 0 examples: 30 examples: 10 known: 5 known: 4 stop_reason: \"asked\"\n"
      "evaluations { parameters: \"master\" epoch: 2 loss: 0.5 accuracy: 0.75 examples: 10 }\n";
  return {{"run", PackFiles({golden::RunDescriptionFile().at(kRunFile), lead})}};
}

const Registration registration({.name = "run_description", .run = Run, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
