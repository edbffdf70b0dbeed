// What a server makes of the model that the first Hello brings: schema, plan, fingerprints, and
// the text of the caller's job.
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "tests/fuzz/fuzz.h"

namespace foreshard::fuzz {
namespace {

constexpr uint64_t kMostElements = 1 << 18;  // a server bounds them by its memory

v1::JobSpec MakeJob() {
  return ParseJobSpec("name: 'f' seed: 1 model { name: 'synthetic' elements: 350 } "
                      "data { format: 'synthetic' examples: 100 } "
                      "training { epochs: 2 batch_size: 10 workers: 2 } update { rule: 'asgd' } "
                      "schedule { learning_rate: 0.1 } compression { block_elements: 64 } "
                      "servers { shards: 2 segment_elements: 128 }",
                      "the fuzzer's job", {})
      .value();
}

void Run(ByteSpan bytes) {
  static const v1::JobSpec& job = *new v1::JobSpec(MakeJob());
  v1::HelloRequest request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  JobDifference(job, request.job_text());
  const auto schema = FromProto(request.model());
  if (!schema.ok()) return;
  FUZZ_CHECK(FromProto(ToProto(*schema))->fingerprint() == schema->fingerprint());
  if (schema->elements() > kMostElements || schema->tensors().size() > 1000) return;
  const auto plan = ShardPlan::Create(*schema, MakePlanOptions(job));
  if (!plan.ok()) return;
  uint64_t elements = 0;
  for (const SegmentPlan& segment : plan->segments()) {
    FUZZ_CHECK(segment.begin == elements && segment.shard < job.servers().shards());
    elements += segment.elements;
    uint64_t in_blocks = 0;
    for (const Block& block : segment.blocks) {
      FUZZ_CHECK(block.offset == in_blocks && block.elements > 0);
      in_blocks += block.elements;
    }
    FUZZ_CHECK(in_blocks == segment.elements);
  }
  FUZZ_CHECK(elements == schema->elements());
  CheckContract(MakeContract(job, *schema, *plan), request.contract()).IgnoreError();
}

Seeds MakeSeeds() {
  const v1::JobSpec job = MakeJob();
  const Schema schema = Schema::Create({{"w", {30, 10}, TensorKind::kTrainable, true},
                                        {"b", {50}, TensorKind::kTrainable, false},
                                        {"mean", {20}, TensorKind::kStatistic, false}})
                            .value();
  v1::HelloRequest request;
  *request.mutable_contract() =
      MakeContract(job, schema, ShardPlan::Create(schema, MakePlanOptions(job)).value());
  request.set_job_name("f");
  *request.mutable_model() = ToProto(schema);
  request.set_train_examples(100);
  request.set_worker_name("w0");
  request.set_incarnation(5);
  request.set_job_text(PrintJobSpec(job));
  return {{"hello", request.SerializeAsString()}};
}

const Registration registration({.name = "hello", .run = Run, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
