#include "tests/golden/samples.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/exchange_message.h"
#include "common/net/job_parts.h"
#include "server/arrivals.h"
#include "server/run_description.h"
#include "tests/common/storage/faulty_storage.h"
#include "tests/golden/conversation.h"
#include "tests/golden/messages.h"
#include "tests/server/durable_run.h"

namespace foreshard::golden {
namespace {

const UndisturbedRun& RunOf(const Kind& kind) {
  static auto& runs = *new std::map<std::string, UndisturbedRun>;
  auto found = runs.find(kind.name());
  if (found == runs.end()) {
    found = runs.try_emplace(kind.name(), kind.rule, kind.synchronous, kEvents).first;
  }
  return found->second;
}

const FaultyStorage& ServerFolder() {
  static const FaultyStorage& folder = []() -> const FaultyStorage& {
    auto& storage = *new FaultyStorage;
    const UndisturbedRun& run = RunOf({"dana_zero", false});
    DurableRun durable(&storage, run, JournalMode::kBuffered, run.NewMachines());
    EXPECT_TRUE(durable.Open(1700000000000000).ok());
    for (uint64_t number = 1; number <= run.size(); ++number) durable.Do(number);
    EXPECT_TRUE(durable.journal().Close().ok());
    EXPECT_EQ(durable.checkpoints(), run.size() / kCheckpointEvery);
    return storage;
  }();
  return folder;
}

std::string NameOf(EventKind kind) { return std::string(ToString(kind)); }

}  // namespace

const std::vector<Kind>& Kinds() {
  static const auto& kinds = *new std::vector<Kind>{
      {"asgd", false},    {"dana_zero", false},   {"dana_slim", false}, {"dana_dc", false},
      {"adam", false},    {"yellow_fin", false}, {"ssgd", true},       {"adam", true},
      // Appended: the first byte of a fuzzer's input is the place in this list.
      {"nag_asgd", false}, {"multi_asgd", false}, {"lwp", false},      {"staleness_aware", false},
      {"dc_asgd", false}, {"gap_aware", false},  {"dana_ga", false},   {"smega2", false},
      {"ormo_da", false}, {"dana_rate_aware", false}, {"easgd", false}, {"eamsgd", true},
      {"apmsqueeze", true}};
  return kinds;
}

std::unique_ptr<Segment> MakeSegment(const Kind& kind) {
  Machines machines(kind.rule, kind.synchronous);
  return std::move(machines.segments.front());
}

DealerOptions MakeDealerOptions() { return {.batches_per_epoch = 40, .epochs = 9}; }

Files SegmentStates() {
  Files files;
  for (const Kind& kind : Kinds()) {
    files[absl::StrCat("segments/", kind.name())] = RunOf(kind).StateAt(0, kEvents);
  }
  return files;
}

Files SegmentRecords() {
  constexpr size_t kMostBytes = 5000;
  Files files;
  for (const Kind& kind : Kinds()) {
    std::string& records = files[absl::StrCat("events/", kind.name())];
    for (uint64_t number = 1; number <= kEvents && records.size() < kMostBytes; ++number) {
      if (RunOf(kind).event(number).segment == 0) AppendRecord(RunOf(kind).event(number), &records);
    }
  }
  return files;
}

Files DealerStates() {
  Dealer rounds({.batches_per_epoch = 10, .epochs = 2, .synchronous_workers = 2, .views = true});
  for (const uint32_t worker : {0u, 1u}) rounds.Apply({.kind = DealerEvent::Kind::kJoin, .worker = worker});
  rounds.Apply({.kind = DealerEvent::Kind::kFetch, .worker = 0, .argument = 3});
  rounds.Apply({.kind = DealerEvent::Kind::kFetch, .worker = 1, .argument = 1});
  rounds.Apply({.kind = DealerEvent::Kind::kComplete, .worker = 0, .argument = 0});
  rounds.Apply({.kind = DealerEvent::Kind::kLost, .worker = 1});
  return {{"dealers/asynchronous", RunOf(Kinds().front()).StateAt(kDealerSegment, kEvents)},
          {"dealers/rounds", rounds.Save()}};
}

Files JournalFiles() {
  Files files;
  const auto entries = ServerFolder().List("").value();
  for (const StorageEntry& entry : entries) {
    if (!entry.folder) files["journal/" + entry.name] = ServerFolder().Read(entry.name).value();
  }
  return files;
}

Files CheckpointFiles() {
  Files files;
  const auto names = Checkpoint::List(ServerFolder()).value();
  for (const std::string& name : names) {
    const auto entries = ServerFolder().List(name).value();
    for (const StorageEntry& entry : entries) {
      const std::string path = absl::StrCat(name, "/", entry.name);
      files["checkpoint/" + path] = ServerFolder().Read(path).value();
    }
  }
  return files;
}

Files EventRecords() {
  Files files;
  const std::string payload = "sixteen bytes...";
  for (uint8_t number = 0; number < 100; ++number) {
    const auto kind = static_cast<EventKind>(number);
    const ByteSpan bytes = AsBytes(payload);
    Event event = {.kind = kind, .codec = 3, .reply_codec = 1, .segment = 4, .worker = 5,
                   .incarnation = 6, .sequence = 7, .ticket = 8, .held_version = 9, .argument = 10,
                   .number = 11, .payload = {absl::MakeConstSpan(&bytes, 1), bytes.size()}};
    std::string record;
    AppendRecord(event, &record);
    ByteSpan piece;
    uint64_t size = 0;
    // Those that a reader takes are the kinds that there are.
    if (ParseRecord(AsBytes(record), &piece, &size).ok()) files["records/" + NameOf(kind)] = record;
  }
  return files;
}

Files Messages() {
  Files files;
  for (const auto& [name, message] : SampleMessages()) {
    files["messages/" + name] = message->SerializeAsString();
  }
  return files;
}

Files RunDescriptionFile() {
  const v1::JobSpec job = ConversationJob();
  const Schema schema = ConversationSchema();
  const ShardPlan plan = ShardPlan::Create(schema, MakePlanOptions(job)).value();
  v1::RunDescription description = DescribeRun(job, schema, plan, kConversationExamples, 0);
  description.set_state_id(1700000000000000);
  description.set_incarnation(1700000000000001);
  return {{kRunFile, RunDescriptionText(description)}};
}

Files ConversationFiles() {
  Files files;
  for (Said& said : Conversation()) files["conversation/" + said.name] = std::move(said.request);
  return files;
}

Files Samples() {
  Files all;
  for (Files files : {Messages(), EventRecords(), SegmentRecords(), SegmentStates(), DealerStates(),
                      JournalFiles(), CheckpointFiles(), RunDescriptionFile(), ConversationFiles()}) {
    all.merge(files);
  }
  return all;
}

}  // namespace foreshard::golden
