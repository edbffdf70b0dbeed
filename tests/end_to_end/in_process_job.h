// A job in one process: real servers, and workers as threads, for tests that look
// at both sides at once.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "server/shard_server.h"
#include "worker/gradient.h"
#include "worker/heartbeat.h"
#include "worker/job_setup.h"
#include "worker/lead_client.h"
#include "worker/parameter_client.h"
#include "worker/progress.h"
#include "worker/training_loop.h"

namespace foreshard {

inline v1::JobSpec SyntheticJob(const std::vector<std::string>& overrides) {
  const auto job = ParseJobSpec(
      "name: 'in-process' seed: 5 model { name: 'synthetic' elements: 20000 } "
      "data { format: 'synthetic' examples: 600 } "
      "training { epochs: 2 batch_size: 10 workers: 3 } update { rule: 'asgd' } "
      "schedule { learning_rate: 0.5 } servers { shards: 2 segment_elements: 4096 } "
      "compression { block_elements: 1024 } timeouts { lease_seconds: 10 connect_seconds: 20 }",
      "the test's job", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

class InProcessServers {
 public:
  explicit InProcessServers(const v1::JobSpec& job, EventSink* events = nullptr) {
    for (uint32_t shard = 0; shard < job.servers().shards(); ++shard) {
      Start({.job = job, .shard = shard, .events = events});
    }
  }
  // With a state directory each, below `folder`; of the release that speaks this.
  InProcessServers(const v1::JobSpec& job, const std::string& folder, const ProtocolRange& speaks) {
    for (uint32_t shard = 0; shard < job.servers().shards(); ++shard) {
      Start({.job = job,
             .shard = shard,
             .state_directory = absl::StrCat(folder, "/shard-", shard),
             .speaks = speaks});
    }
  }
  // Ends it, and starts one that speaks this at the same address, which goes on from its state.
  void Replace(uint32_t shard, const ProtocolRange& speaks) {
    EXPECT_TRUE(servers_[shard]->Shutdown().ok());
    servers_[shard].reset();
    options_[shard].listen = addresses_[shard];
    options_[shard].speaks = speaks;
    auto server = ShardServer::Start(options_[shard]);
    ASSERT_TRUE(server.ok()) << server.status();
    servers_[shard] = *std::move(server);
  }
  const std::vector<std::string>& addresses() const { return addresses_; }
  std::unique_ptr<ShardServer>& operator[](size_t shard) { return servers_[shard]; }
  size_t size() const { return servers_.size(); }

 private:
  void Start(const ShardServerOptions& options) {
    auto server = ShardServer::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    addresses_.push_back((*server)->address());
    servers_.push_back(*std::move(server));
    options_.push_back(options);
  }

  std::vector<ShardServerOptions> options_;
  std::vector<std::unique_ptr<ShardServer>> servers_;
  std::vector<std::string> addresses_;
};

// One worker of the job, up to its first ticket.
class InProcessWorker {
 public:
  InProcessWorker(const v1::JobSpec& job, const std::vector<std::string>& servers,
                  const ProtocolRange& speaks = {})
      : job_(job), servers_(servers), speaks_(speaks), progress_(nullptr, "") {
    device_ = kernels::MakeDevice("cpu").value();
    data_ = LoadTrainingData(job).value();
    model_ = MakeJobModel(job, *data_, *device_).value();
  }

  absl::Status Connect(std::optional<uint32_t> wanted_slot = std::nullopt) {
    auto options = MakeClientOptions(job_, model_->schema(), data_->examples(), servers_);
    if (!options.ok()) return options.status();
    options->hello.mutable_contract()->set_protocol(speaks_.newest);
    options->hello.mutable_contract()->set_oldest_protocol(speaks_.oldest);
    client_options_ = *options;
    LeadClientOptions lead = {.address = servers_[0],
                              .connect_seconds = options->connect_seconds,
                              .watch = RepairsSteps(*options) || HasViews(job_),
                              .staleness_bound = job_.training().has_staleness_bound(),
                              .stop = &stop_};
    lead.registration = MakeRegistration(options->hello, "in-process", "cpu");
    if (wanted_slot.has_value()) lead.registration.set_wanted_slot(*wanted_slot);
    auto registered = LeadClient::Register(lead);
    if (!registered.ok()) return registered.status();
    lead_ = *std::move(registered);
    options->hello.set_worker(lead_->worker());
    options->hello.set_incarnation(lead_->incarnation());
    options->hello.set_common_run_id(lead_->common_run_id());
    options->hello.set_run_begun(lead_->run_begun());
    options->stop = &stop_;
    options->over = [this] { return lead_->finished(); };
    options->acknowledged = [this](const PushFigures& push) {
      if (push.round.has_value()) lead_->NoteRound(*push.round);
      lead_->Completed(push.ticket, push.earlier);
      progress_.Acknowledged(push);
      if (after_push) after_push(push);
    };
    auto client = ParameterClient::Connect(*options);
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    Heartbeat::Options beat = {.addresses = servers_,
                               .worker = lead_->worker(),
                               .incarnation = lead_->incarnation(),
                               .lease_seconds = lead_->lease_seconds()};
    for (uint32_t shard = 0; shard < servers_.size(); ++shard) {
      beat.channels.push_back(client_->channel(shard));
    }
    heartbeat_ = std::make_unique<Heartbeat>(beat);
    std::vector<float> values(model_->schema().elements());
    model_->InitialValues(job_.seed(), values.data());
    if (const absl::Status s = client_->Initialise(values); !s.ok()) return s;
    computer_ =
        std::make_unique<GradientComputer>(MakeGradientOptions(job_), model_.get(), data_.get());
    return absl::OkStatus();
  }

  absl::Status Train(double slowdown = 1) {
    TrainingLoopOptions options;
    options.slowdown = slowdown;
    options.batches_per_epoch = BatchesPerEpoch(job_, data_->examples());
    if (IsSynchronous(job_)) options.round_members = job_.training().workers();
    use_ = MakeGradientUse(job_, client_options_, client_.get());
    options.use = use_.get();
    options.stop = &stop_;
    options.fenced = [this] { return heartbeat_->status(); };
    options.views = HasViews(job_);
    if (options.views) {
      lead_->BringViews([this](const v1::View& view) { return client_->ChangeView(view); });
    }
    TrainingLoop loop(options, computer_.get(), client_.get(), lead_.get(), &progress_);
    const absl::Status trained = loop.Run();
    lead_->BringViews(nullptr);
    return trained;
  }

  void Leave() {
    lead_->Leave("finished");
    heartbeat_->End(true);
  }
  // It is heard of by what it exchanges only, as if its other threads hung.
  void StopHeartbeat() { heartbeat_.reset(); }
  // Without a word, as a process that is killed.
  void Vanish() {
    heartbeat_.reset();
    client_.reset();
    lead_.reset();
  }

  const v1::JobSpec& job() const { return job_; }
  ParameterClient& client() { return *client_; }
  LeadClient& lead() { return *lead_; }
  Model& model() { return *model_; }
  const Dataset& data() const { return *data_; }
  GradientComputer& computer() { return *computer_; }
  Progress& progress() { return progress_; }
  void Stop() { stop_ = true; }

  std::function<void(const PushFigures&)> after_push;

 private:
  const v1::JobSpec job_;
  const std::vector<std::string> servers_;
  const ProtocolRange speaks_;
  std::atomic<bool> stop_{false};
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Dataset> data_;
  std::unique_ptr<Model> model_;
  Progress progress_;
  ParameterClientOptions client_options_;
  std::unique_ptr<LeadClient> lead_;
  // Messages point into the memory of these, so they outlive the client.
  std::unique_ptr<GradientComputer> computer_;
  std::unique_ptr<GradientUse> use_;
  std::unique_ptr<ParameterClient> client_;
  std::unique_ptr<Heartbeat> heartbeat_;
};

// Connects and trains all of them, each in a thread of its own, to the end of the job.
inline void TrainAll(std::vector<std::unique_ptr<InProcessWorker>>& workers) {
  std::vector<std::thread> threads;
  for (auto& worker : workers) {
    threads.emplace_back([&worker] {
      absl::Status status = worker->Connect();
      ASSERT_TRUE(status.ok()) << status;
      status = worker->Train();
      ASSERT_TRUE(status.ok()) << status;
      worker->Leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Runs `workers` workers to the end of the job.
inline std::vector<std::unique_ptr<InProcessWorker>> RunJob(const v1::JobSpec& job,
                                                            InProcessServers& servers,
                                                            int workers) {
  std::vector<std::unique_ptr<InProcessWorker>> all;
  for (int w = 0; w < workers; ++w) {
    all.push_back(std::make_unique<InProcessWorker>(job, servers.addresses()));
  }
  TrainAll(all);
  return all;
}

}  // namespace foreshard
