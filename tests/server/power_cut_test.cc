// A server's state directory through several starts, on a storage whose power is cut, or whose process is
// killed, after every single write, or that refuses one; and what the next start makes of what it finds:
//
// * it starts, and its state is to the bit what it was after some event (or, where the power went, it says that
//   the buffered journal has holes);
// * all that had been acknowledged is in it, or it says that something is lost, and so does every start
//   after it until there is a checkpoint;
// * it is all there after a killed process where there was a journal, after a power cut where that was synced,
//   and after either where nothing had happened since a checkpoint or a start; then no loss is told of.
#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/durability.h"
#include "tests/common/storage/faulty_storage.h"
#include "tests/server/server_harness.h"

namespace foreshard {
namespace {

using States = std::map<uint64_t, std::vector<std::string>>;  // of all segments, by the last event's number

// One start, without any gRPC.
class Start {
 public:
  Start(const v1::JobSpec& job, std::unique_ptr<FaultyStorage> storage, const std::string& boot)
      : storage_(storage.get()) {
    const std::string file = absl::StrCat(::testing::TempDir(), "/power_cut.", getpid(), ".boot");
    std::ofstream(file) << boot;
    absl::StatusOr<std::unique_ptr<Durability>> opened = Durability::Open(
        {.failed = [this](const absl::Status&) { failed_ = true; }, .boot_id_file = file}, job, std::move(storage));
    status_ = opened.status();
    if (!status_.ok()) return;
    durability_ = *std::move(opened);
    context_ = std::make_unique<ServerContext>(job, 0, durability_.get(), 1, durability_->least_incarnation());
    status_ = durability_->Begin(context_.get(), nullptr);
  }
  ~Start() { End().IgnoreError(); }

  // Of the start itself.
  const absl::Status& status() const { return status_; }
  bool lost() const { return durability_->lost(); }
  // The process would end.
  bool failed() const { return failed_; }
  FaultyStorage& storage() { return *storage_; }
  Durability& durability() { return *durability_; }
  Shard& shard() { return context_->shard; }
  uint64_t through() const { return context_->shard.last_number(); }
  std::vector<std::string> Saved() const {
    std::vector<std::string> saved;
    if (context_->shard.agreement() == nullptr) return saved;
    for (const auto& cell : context_->shard.agreement()->cells) {
      absl::MutexLock lock(&cell->mutex);
      saved.push_back(cell->segment->Save());
    }
    return saved;
  }
  // As a server ends that is told to.
  absl::Status End() { return durability_ == nullptr ? absl::OkStatus() : durability_->Finish(); }

 private:
  FaultyStorage* storage_;
  absl::Status status_;
  std::atomic<bool> failed_{false};
  std::unique_ptr<Durability> durability_;
  std::unique_ptr<ServerContext> context_;  // its events go there
};

// What a start is to find.
struct Expected {
  bool power = false;  // was cut; else the process was killed
  std::string boot;    // of the start that finds it
  uint64_t acknowledged = 0;
  bool at_rest = false;   // then: nothing had happened since a checkpoint or a start
  bool whole = false;     // all of that must be there
  bool may_lack = false;  // a loss may be told of
  std::shared_ptr<const States> states;
  std::string text;
};

// What was there at some moment.
struct Moment {
  std::unique_ptr<FaultyStorage> found;
  Expected expected;
};

class PowerCut : public ::testing::Test {
 protected:
  void Prepare(const std::string& journal, const std::string& on_failure) {
    journal_ = journal;
    continues_ = on_failure == "continue";
    job_ = TestJob({absl::StrCat("durability.journal=", journal), absl::StrCat("durability.on_failure=", on_failure),
                    "durability.checkpoint_seconds=1000"});
    states_ = std::make_shared<States>();
  }

  // The life.
  bool Begin(const std::string& boot, std::unique_ptr<FaultyStorage> storage) {
    boot_ = boot;
    FaultyStorage* const there = storage.get();
    there->BeforeEach([this, there](const FaultyStorage::Operation& operation) {
      if (leaving_ || ++operations_ != refused_) return;
      at_rest_ = false;
      may_lack_ = refusal_has_come_ = true;
      if (refuses_once_) {
        there->RefuseNext(operation.kind, EIO);
      } else {
        there->RefuseFrom(0, EIO);
      }
    });
    there->AfterEach([this, there](const FaultyStorage::Operation& operation) {
      if (leaving_ || (refused_ > 0 && operations_ != refused_)) return;
      Note(*there, absl::StrCat("operation ", operations_.load(), " (kind ", static_cast<int>(operation.kind), " on '",
                                operation.path, "')"));
    });
    server_ = std::make_unique<Start>(job_, std::move(storage), boot);
    if (!server_->status().ok()) return false;
    may_lack_ = server_->lost() || refusal_has_come_;
    at_rest_ = !refusal_has_come_;
    return true;
  }

  bool Agree() {
    const ShardPlan plan = ShardPlan::Create(schema_, MakePlanOptions(job_)).value();
    const absl::Status agreed = server_->shard().Agree(MakeContract(job_, schema_, plan), job_.name(), ToProto(schema_), kTestExamples);
    return agreed.ok();
  }

  void Perform(Event event) {
    at_rest_ = false;
    Shard::Cell& cell = *server_->shard().FindCell(event.segment).value();
    std::vector<float> values(cell.plan->elements);
    for (float& value : values) value = static_cast<float>(RandomNormal(3, 4, ++draws_));
    const ByteSpan piece(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float));
    event.payload = {absl::MakeConstSpan(&piece, 1), piece.size()};
    std::vector<uint8_t> buffer(cell.reply_bytes);
    Reply reply = {.data = buffer.data()};
    const auto performed = server_->shard().Perform(cell, event, event.kind == EventKind::kPush ? &reply : nullptr);
    ASSERT_TRUE(performed.ok()) << performed.status();
    const uint64_t number = server_->through();
    (*states_)[number] = server_->Saved();
    if (server_->shard().recorded().ok()) acknowledged_ = number;
  }
  void Initialise() {
    for (const auto& cell : server_->shard().agreement()->cells) {
      Perform({.kind = EventKind::kInitialise, .segment = cell->plan->id});
    }
  }
  void Push(int count) {
    const auto& cells = server_->shard().agreement()->cells;
    for (int k = 0; k < count && !server_->failed(); ++k) {
      const uint64_t step = pushes_++;
      Shard::Cell& cell = *cells[step % cells.size()];
      const auto worker = static_cast<uint32_t>(step % 3);
      Perform({.kind = EventKind::kPush,
               .segment = cell.plan->id,
               .worker = worker,
               .incarnation = 1,
               .sequence = cell.segment->last_sequence(worker) + 1,
               .ticket = step,
               .held_version = cell.segment->version()});
    }
  }
  void Checkpoint() {
    absl::Notification done;
    bool written = false;
    server_->durability().RequestCheckpoint([&](const absl::StatusOr<Durability::Written>& reply) {
      written = reply.ok();
      done.Notify();
    });
    done.WaitForNotification();
    if (refusal_has_come_) return;
    EXPECT_TRUE(written);
    may_lack_ = false;
    at_rest_ = true;
  }
  // A polite end.
  std::unique_ptr<FaultyStorage> End() {
    const absl::Status ended = server_->End();
    if (!refusal_has_come_) {
      EXPECT_TRUE(ended.ok()) << ended;
      may_lack_ = false;
      at_rest_ = true;
    }
    return Leave();
  }
  std::unique_ptr<FaultyStorage> Kill() {
    lacking_ = !at_rest_ && journal_ == "off";
    return Leave();
  }
  std::unique_ptr<FaultyStorage> Leave() {
    auto left = server_->storage().KillProcess();
    leaving_ = true;
    server_.reset();
    leaving_ = false;
    return left;
  }
  // Such that something is lost where that can be, and the rest can be used.
  std::unique_ptr<FaultyStorage> Cut() {
    lacking_ = !at_rest_ && journal_ != "synced";
    leaving_ = true;
    const auto suits = [this](uint64_t seed) {
      const Start start(job_, server_->storage().CutPower(seed), "of a probe");
      return start.status().ok() && (start.through() < acknowledged_ || journal_ == "synced");
    };
    uint64_t seed = 1;
    while (seed < 100 && !suits(seed)) ++seed;
    auto found = server_->storage().CutPower(seed);
    Leave();
    return found;
  }
  // Numbers are given anew for what is lost.
  void AcceptLoss() {
    EXPECT_TRUE(server_->lost() || server_->through() >= acknowledged_);
    states_ = std::make_shared<States>(states_->begin(), states_->upper_bound(server_->through()));
    acknowledged_ = std::min<uint64_t>(acknowledged_, server_->through());
    lacking_ = false;
  }

  // What would be found now.
  void Note(const FaultyStorage& storage, const std::string& after) {
    for (int way = 0; way < 4; ++way) {
      const bool power = way > 0;
      const bool whole = !lacking_ && (at_rest_ || (!(continues_ && refusal_has_come_) && Outlives(power)));
      absl::MutexLock lock(&mutex_);
      moments_.push_back({After(storage, power),
                          {.power = power,
                           .boot = power ? "of the next start" : boot_,
                           .acknowledged = acknowledged_,
                           .at_rest = at_rest_,
                           .whole = whole,
                           .may_lack = may_lack_ || !whole,
                           .states = states_,
                           .text = absl::StrCat(power ? "power cut" : "killed", " after ", after)}});
    }
  }
  std::unique_ptr<FaultyStorage> After(const FaultyStorage& storage, bool power) {
    return power ? storage.CutPower(++seed_) : storage.KillProcess();
  }
  // What the journal promises.
  bool Outlives(bool power) const { return journal_ == "synced" || (journal_ == "buffered" && !power); }

  // A start with what was found; `then`, if given, is called after each of its operations. Returns how far it is.
  uint64_t Check(Moment moment, const std::function<void(const FaultyStorage&)>& then = {}) {
    const Expected& expected = moment.expected;
    SCOPED_TRACE(expected.text);
    std::atomic<bool> starting = true;
    if (then) {
      moment.found->AfterEach([&, there = moment.found.get()](const FaultyStorage::Operation&) {
        if (starting) then(*there);
      });
    }
    Start again(job_, std::move(moment.found), expected.boot);
    starting = false;
    // A disk that wrote in an order of its own leaves holes, beyond which nothing is guessed.
    const bool may_have_holes = journal_ == "buffered" && expected.power && !expected.whole;
    if (!again.status().ok()) {
      EXPECT_TRUE(may_have_holes && absl::IsDataLoss(again.status())) << again.status();
      return 0;
    }
    const uint64_t through = again.through();
    if (through > 0) {
      const auto state = expected.states->find(through);
      EXPECT_TRUE(state != expected.states->end() && again.Saved() == state->second) << "not as after event " << through;
    }
    if (through < expected.acknowledged) {
      EXPECT_FALSE(expected.whole) << through << " of " << expected.acknowledged << " that were acknowledged";
      EXPECT_TRUE(again.lost()) << through << " of " << expected.acknowledged << " that were acknowledged";
      ++losses_;
    }
    EXPECT_TRUE(expected.may_lack || !again.lost());
    return through;
  }

  // And the start that takes it is killed, or its power cut, after each of its writes.
  void CheckTwice(Moment moment) {
    std::vector<Moment> later;
    const Expected first = moment.expected;
    const uint64_t through = Check(std::move(moment), [&](const FaultyStorage& storage) {
      for (const bool power : {false, true}) {
        Expected next = first;
        next.power = power;
        if (power) next.boot = "of the one after that";
        next.whole = first.whole && (!power || first.at_rest || Outlives(power));
        next.may_lack = first.may_lack || !next.whole;
        absl::StrAppend(&next.text, ", then ", power ? "power cut" : "killed", " after ", storage.operations(),
                        " operations");
        later.push_back({After(storage, power), std::move(next)});
      }
    });
    for (Moment& each : later) {
      // What survived a power cut is safe, and what was found is still there after a kill.
      const bool same = first.power || !each.expected.power;
      const std::string text = each.expected.text;
      const uint64_t again = Check(std::move(each));
      EXPECT_TRUE(!same || again == through) << text << ": " << again << ", and " << through << " before";
    }
  }

  std::string journal_;
  bool continues_ = false;  // without a journal, should that fail
  v1::JobSpec job_;
  const Schema schema_ = TestSchema();
  std::unique_ptr<Start> server_;
  std::string boot_;
  std::shared_ptr<States> states_;
  std::atomic<uint64_t> acknowledged_{0};
  std::atomic<bool> at_rest_{true}, may_lack_{false}, leaving_{false};
  bool lacking_ = false;  // what a start finds may not be all
  uint64_t draws_ = 0, pushes_ = 0, losses_ = 0;
  std::atomic<uint64_t> operations_{0};
  uint64_t refused_ = 0;  // this operation; 0: none
  bool refuses_once_ = false;
  std::atomic<bool> refusal_has_come_{false};
  absl::Mutex mutex_;
  std::vector<Moment> moments_;
  std::atomic<uint64_t> seed_{0};
};

class PowerCutOfJournal : public PowerCut, public ::testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Journals, PowerCutOfJournal, ::testing::Values("buffered", "synced", "off"),
                         [](const auto& info) { return info.param; });

TEST_P(PowerCutOfJournal, AfterEveryWriteOfSeveralStarts) {
  Prepare(GetParam(), "stop");
  ASSERT_TRUE(Begin("first", std::make_unique<FaultyStorage>()) && Agree());
  Initialise();
  Push(5);
  Checkpoint();
  Push(4);
  ASSERT_TRUE(Begin("first", End()));
  Push(3);
  ASSERT_TRUE(Begin("first", Kill()));
  AcceptLoss();
  Push(3);
  Checkpoint();
  ASSERT_TRUE(Begin("first", Kill()));
  AcceptLoss();
  Push(4);
  ASSERT_TRUE(Begin("second", Cut()));
  EXPECT_EQ(server_->through() < acknowledged_, journal_ != "synced");
  AcceptLoss();
  Push(2);
  Checkpoint();
  Push(2);
  ASSERT_TRUE(Begin("second", Kill()));
  AcceptLoss();
  End();
  std::vector<Moment> moments = std::move(moments_);
  EXPECT_GT(moments.size(), 150u);
  for (size_t k = 0; k < moments.size(); ++k) {
    if (k % 9 == 0) {
      CheckTwice(std::move(moments[k]));
    } else {
      Check(std::move(moments[k]));
    }
  }
  // The test sees losses where there can be some.
  EXPECT_EQ(losses_ > 0, journal_ != "synced");
}

class PowerCutOfRefusal : public PowerCut,
                          public ::testing::WithParamInterface<std::tuple<std::string, std::string>> {};
INSTANTIATE_TEST_SUITE_P(Journals, PowerCutOfRefusal,
                         ::testing::Combine(::testing::Values("buffered", "synced", "off"), ::testing::Values("stop", "continue")),
                         [](const auto& info) { return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param)); });

// Once, or from then on.
TEST_P(PowerCutOfRefusal, AfterADiskRefusedAnyWrite) {
  Prepare(std::get<0>(GetParam()), std::get<1>(GetParam()));
  for (const bool once : {true, false}) {
    refuses_once_ = once;
    for (refused_ = 1;; ++refused_) {
      SCOPED_TRACE(absl::StrCat("refused: operation ", refused_, once ? "" : " and all later ones"));
      operations_ = acknowledged_ = pushes_ = 0;
      at_rest_ = true;
      may_lack_ = refusal_has_come_ = false;
      states_ = std::make_shared<States>();
      ASSERT_TRUE(Begin("first", std::make_unique<FaultyStorage>()));
      // Refused, a worker comes again.
      if (Agree() || Agree()) {
        Initialise();
        Push(3);
        Checkpoint();
        Push(3);
        Note(server_->storage(), "six pushes");
        // One mark can be left.
        const bool goes_on = once && journal_ != "off" && continues_;
        EXPECT_FALSE(goes_on && server_->failed());
      }
      auto left = End();
      if (!refusal_has_come_) break;
      Note(*left, "the end");
      // The disk is sound again.
      const bool had_failed = refusal_has_come_.exchange(false);
      const uint64_t refused = std::exchange(refused_, ~uint64_t{0});
      may_lack_ = true;
      ASSERT_TRUE(Begin("first", std::move(left)));
      if (server_->shard().agreement() != nullptr && server_->shard().MissingSegments().empty()) {
        AcceptLoss();
        Push(2);
        refusal_has_come_ = had_failed;
        may_lack_ = true;
        Note(server_->storage(), "two more pushes");
      }
      Leave();
      refused_ = refused;
      std::vector<Moment> moments = std::exchange(moments_, {});
      for (Moment& moment : moments) Check(std::move(moment));
      if (HasFailure()) return;
    }
    EXPECT_GT(refused_, 30u);
  }
}

}  // namespace
}  // namespace foreshard
