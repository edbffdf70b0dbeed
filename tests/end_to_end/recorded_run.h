// Real daemons of a small job that record what they do, and its replay.
#pragma once

#include <signal.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/batch_trace.h"
#include "common/net/job_spec.h"
#include "gtest/gtest.h"
#include "server/arrivals.h"
#include "tests/end_to_end/job_folder.h"
#include "tools/files.h"
#include "tools/simulate/replay_arrivals.h"
#include "worker/job_setup.h"
#include "worker/parameter_client.h"

namespace foreshard {

inline constexpr uint32_t kRecordedShards = 2;

class RecordedRunTest : public EndToEndTest {
 protected:
  // Loads job and data, and starts servers that record.
  void Begin(const std::vector<std::string>& overrides) {
    job_path_ = WriteJob(overrides);
    job_ = LoadJobSpec(job_path_, {}).value();
    train_ = LoadTrainingData(job_).value();
    test_ = LoadTestData(job_, *train_).value();
    device_ = kernels::MakeDevice("cpu").value();
    model_ = MakeJobModel(job_, *train_, *device_).value();
    fleet_ = MakeFleet(job_path_);
    for (uint32_t shard = 0; shard < kRecordedShards; ++shard) {
      ASSERT_TRUE(
          fleet_->StartServer(shard, {absl::StrCat("--record-arrivals=", ArrivalsPath(shard))}).ok());
    }
    const absl::Status up = fleet_->WaitForServers(kPatience);
    ASSERT_TRUE(up.ok()) << up;
  }

  void StartWorkers(const std::vector<std::string>& arguments = {}) {
    for (uint32_t k = 0; k < job_.training().workers(); ++k) {
      ASSERT_TRUE(fleet_->StartWorker(k, arguments).ok());
    }
  }

  // Each worker's batches take these seconds, again and again.
  std::string WriteTrace(const BatchTrace& trace) {
    EXPECT_TRUE(WriteFileAtomically(Path("pace.csv"), PrintTrace(trace)).ok());
    return Path("pace.csv");
  }
  std::string WritePace(const BatchTrace& trace) {
    return absl::StrCat("--pace=", WriteTrace(trace));
  }

  // Waits for the workers to be done, and returns the servers' parameters.
  std::vector<float> AwaitMaster() {
    EXPECT_TRUE(fleet_->WaitForExits(Role::kWorker, kPatience));
    for (const Child& child : fleet_->children()) {
      if (child.role != Role::kWorker) continue;
      EXPECT_TRUE(child.exit.has_value() && (child.exit->ok() || child.exit->signal == SIGKILL))
          << LogOf(*fleet_, child.name);
    }
    ParameterClientOptions options =
        MakeClientOptions(job_, model_->schema(), train_->examples(), fleet_->addresses()).value();
    options.hello.set_reader(true);
    options.hello.set_worker_name("reader");
    auto client = ParameterClient::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    if (!client.ok()) return {};
    const absl::Status pulled = (*client)->Pull(Parameters::kMaster);
    EXPECT_TRUE(pulled.ok()) << pulled;
    const float* parameters = (*client)->parameters();
    return {parameters, parameters + model_->schema().elements()};
  }

  // Ends the servers, so that their records are whole.
  std::vector<std::vector<Event>> EndAndLoadArrivals() {
    fleet_->Terminate(Role::kServer, kPatience);
    std::vector<std::vector<Event>> arrivals;
    for (uint32_t shard = 0; shard < kRecordedShards; ++shard) {
      auto loaded = LoadArrivals(ArrivalsPath(shard));
      EXPECT_TRUE(loaded.ok()) << loaded.status();
      arrivals.push_back(loaded.ok() ? *std::move(loaded) : std::vector<Event>());
    }
    return arrivals;
  }

  // The replay of a finished run gives what the servers had, to the bit.
  void ExpectReplayAgrees() {
    const std::vector<float> master = AwaitMaster();
    const std::vector<std::vector<Event>> arrivals = EndAndLoadArrivals();
    for (const std::vector<Event>& shard : arrivals) {
      for (const Event& event : shard) kinds_.insert(event.kind);
    }
    const auto replayed = ReplayArrivals(job_, *train_, arrivals);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    ASSERT_EQ(replayed->parameters.size(), master.size());
    const uint64_t trainable = model_->schema().trainable_elements();
    uint64_t different = 0;
    for (size_t k = 0; k < master.size(); ++k) {
      if (memcmp(&replayed->parameters[k], &master[k], sizeof(float)) == 0) continue;
      if (different++ == 0) {
        ADD_FAILURE() << "element " << k << " of " << trainable << " trainable ones: "
                      << replayed->parameters[k] << " replayed, " << master[k] << " in the run";
      }
    }
    EXPECT_EQ(different, 0u);
    // Not the values that the run began with.
    std::vector<float> initial(master.size());
    model_->InitialValues(job_.seed(), initial.data());
    const ParameterClientOptions options =
        MakeClientOptions(job_, model_->schema(), train_->examples(), {}).value();
    for (const SegmentPlan& segment : options.plan.segments()) {
      EXPECT_NE(memcmp(&initial[segment.begin], &master[segment.begin],
                       segment.elements * sizeof(float)),
                0)
          << "segment " << segment.id;
    }
    replayed_ = *replayed;
  }

  std::string ArrivalsPath(uint32_t shard) const {
    return Path(absl::StrCat("arrivals-", shard, ".csv"));
  }

  std::string job_path_;
  v1::JobSpec job_;
  std::unique_ptr<Dataset> train_, test_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Fleet> fleet_;
  ReplayResult replayed_;
  std::set<EventKind> kinds_;  // of events that were recorded
};

}  // namespace foreshard
