// foreshard-worker: trains, or evaluates what others train.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/core/catalogue.h"
#include "common/core/exit_code.h"
#include "common/net/admin_client.h"
#include "common/net/channel.h"
#include "common/net/credential_flags.h"
#include "common/net/job_flags.h"
#include "common/net/job_parts.h"
#include "common/net/live_page.h"
#include "common/net/logging.h"
#include "common/net/metrics.h"
#include "common/net/process.h"
#include "common/net/version.h"
#include "glog/logging.h"
#include "kernels/device.h"
#include "kernels/device_failure.h"
#include "worker/acknowledged_record.h"
#include "worker/batch_times.h"
#include "worker/evaluator.h"
#include "worker/gradient.h"
#include "worker/heartbeat.h"
#include "worker/job_setup.h"
#include "worker/lead_client.h"
#include "worker/parameter_client.h"
#include "worker/progress.h"
#include "worker/training_loop.h"

namespace foreshard {
namespace {

// How long the live page waits for servers that do not answer.
constexpr absl::Duration kPageWaits = absl::Seconds(1);

struct Flags {
  JobFlags job;
  CredentialFlags credentials;
  std::string servers;
  std::string role = "worker";
  std::string name;
  std::string device = "auto";
  std::string precision = "tf32";
  std::optional<uint32_t> slot;
  double slowdown = 1;
  BatchTimesOptions times;
  std::string record_acknowledged;
  std::string metrics_listen;
  std::string ready_file;
  std::string data_directory;
};

// SIGINT and SIGTERM end the run at the next step; a second one ends it at once.
// Must be made before any other thread.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    thread_ = std::thread([this] { Run(); });
  }
  ~Signals() {
    pthread_kill(thread_.native_handle(), SIGUSR2);
    thread_.join();
  }

  const std::atomic<bool>* stop() const { return &stop_; }
  // What the process ends with when it was asked to stop before the job was complete. Not with 0: a Job
  // of Kubernetes would take the pod that it moves elsewhere for one that has done its share.
  int exit_code() const { return first_.load() == SIGTERM ? kExitTerminated : kExitInterrupted; }
  bool stopped() const { return stop_.load(); }

 private:
  void Run() {
    for (;;) {
      int signal = 0;
      if (sigwait(&set_, &signal) != 0 || signal == SIGUSR2) return;
      if (stop_.load()) _exit(exit_code());
      first_.store(signal);
      stop_.store(true);
      LOG(INFO) << strsignal(signal) << ": finishing the step under way; once more to end at once";
    }
  }

  sigset_t set_;
  std::atomic<bool> stop_{false};
  std::atomic<int> first_{0};
  std::thread thread_;
};

// What worker and evaluator have in common.
struct Setup {
  v1::JobSpec job;
  std::vector<std::string> servers;
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Model> model;
  ParameterClientOptions client;
  std::unique_ptr<WorkerMetrics> metrics;
  std::unique_ptr<MetricsEndpoint> endpoint;
  std::string metrics_address;
  std::unique_ptr<BatchTimes> times;
  std::unique_ptr<AcknowledgedRecord> acknowledged;  // null: none is kept
};

absl::Status Prepare(const Flags& flags, Setup* setup) {
  if (std::isnan(flags.slowdown)) {
    return absl::InvalidArgumentError("--slowdown: nan: give a number from 1 to 10000");
  }
  JobFlags job_flags = flags.job;
  if (!flags.data_directory.empty()) {
    job_flags.overrides.push_back("data.directory=" + flags.data_directory);
  }
  auto job = job_flags.Load();
  if (!job.ok()) return job.status();
  setup->job = *std::move(job);
  auto servers = ParseAddresses(flags.servers);
  if (!servers.ok()) return servers.status();
  setup->servers = *std::move(servers);
  auto credentials = flags.credentials.Load(TlsSide::kClient);
  if (!credentials.ok()) return credentials.status();
  if (absl::Status calls = credentials->CheckCall(setup->servers); !calls.ok()) return calls;
  auto times = BatchTimes::Open(flags.times);
  if (!times.ok()) return times.status();
  setup->times = *std::move(times);
  if (!flags.record_acknowledged.empty()) {
    auto record = AcknowledgedRecord::Open(flags.record_acknowledged);
    if (!record.ok()) return record.status();
    setup->acknowledged = *std::move(record);
  }
  if (setup->servers.size() != setup->job.servers().shards()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--servers: ", setup->servers.size(), " addresses for a job with servers.shards: ",
        setup->job.servers().shards(), "; give one for each shard, in their order"));
  }
  auto train = LoadTrainingData(setup->job);
  if (!train.ok()) return train.status();
  setup->train = *std::move(train);
  auto model = MakeJobModel(setup->job, *setup->train, *setup->device);
  if (!model.ok()) return model.status();
  setup->model = *std::move(model);
  const Schema& schema = setup->model->schema();
  auto client =
      MakeClientOptions(setup->job, schema, setup->train->examples(), setup->servers, DataIdentity(*setup->train));
  if (!client.ok()) return client.status();
  setup->client = *std::move(client);
  setup->client.credentials = *credentials;
  setup->metrics = std::make_unique<WorkerMetrics>(setup->job.name(), setup->job.update().rule(),
                                                   std::string(setup->device->name()));
  setup->metrics->shards->Set(static_cast<double>(setup->servers.size()));
  if (!flags.metrics_listen.empty()) {
    if (absl::Status bind = CheckBindAddress(flags.metrics_listen, credentials->insecure()); !bind.ok()) {
      return bind;
    }
    // Servers are asked only when somebody looks at the page.
    const auto admin = std::make_shared<AdminClient>(setup->servers, *credentials);
    auto endpoint = MetricsEndpoint::Start(
        flags.metrics_listen, setup->metrics->registry,
        LivePages([admin, daemon = LiveDaemon{.role = flags.role, .name = flags.name}] {
          return LiveJson(daemon, admin->addresses(), admin->GetStatus(kPageWaits));
        }));
    if (!endpoint.ok()) return endpoint.status();
    setup->endpoint = *std::move(endpoint);
    setup->metrics_address = setup->endpoint->address();
  }
  const ShardPlan& plan = setup->client.plan;
  // An evaluator takes less: it has no gradients and keeps no vectors but the parameters.
  if (const WorkerMemory memory = MemoryOf(setup->job, *setup->model);
      flags.role == "worker" && memory.step_bytes > 0) {
    constexpr double kMiB = 1 << 20;
    LOG(INFO) << absl::StrFormat(
        "memory: %.1f MiB and messages under way: a step of %d examples at once takes %.1f, %d vectors as long as the "
        "parameters %.1f",
        static_cast<double>(memory.step_bytes + memory.vectors_bytes) / kMiB, LargestBatch(setup->job),
        static_cast<double>(memory.step_bytes) / kMiB, memory.vectors,
        static_cast<double>(memory.vectors_bytes) / kMiB);
  }
  LOG(INFO) << absl::StrFormat(
      "%s; %s data: %d training examples; model %s: %d parameters and %d running statistics in %d "
      "segments on %d servers (largest %.1f %% above the mean)%s%s",
      setup->device->description(), setup->job.data().format(), setup->train->examples(),
      setup->job.model().name(), schema.trainable_elements(), schema.statistic_elements(),
      plan.segments().size(), plan.shards(), 100 * plan.imbalance(),
      setup->metrics_address.empty() ? "" : "; metrics at http://",
      setup->metrics_address.empty() ? "" : absl::StrCat(setup->metrics_address, "/metrics"));
  return absl::OkStatus();
}

// As the server's: one JSON object, there whole or not at all.
absl::Status WriteReadyFile(const std::string& path, const std::string& metrics_address) {
  if (path.empty()) return absl::OkStatus();
  const std::string temporary = path + ".new";
  std::ofstream file(temporary, std::ios::trunc);
  file << absl::StrFormat("{\"metrics_address\": \"%s\", \"pid\": %d}\n", metrics_address, getpid());
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(
        absl::StrCat("--ready-file: cannot write ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

std::string DefaultName(const std::string& role) {
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  return absl::StrCat(host, "-", role == "worker" ? "" : "evaluator-", getpid());
}

absl::Status RunWorker(const Flags& flags, const Signals& signals, Setup& setup) {
  LeadClientOptions lead_options;
  lead_options.address = setup.servers[0];
  lead_options.credentials = setup.client.credentials;
  lead_options.connect_seconds = setup.client.connect_seconds;
  lead_options.staleness_bound = setup.job.training().has_staleness_bound();
  lead_options.stop = signals.stop();
  const bool views = HasViews(setup.job);
  lead_options.watch = RepairsSteps(setup.client) || views;
  lead_options.registration =
      MakeRegistration(setup.client.hello, flags.name, std::string(setup.device->name()));
  if (flags.slot.has_value()) lead_options.registration.set_wanted_slot(*flags.slot);
  auto lead = LeadClient::Register(lead_options);
  if (!lead.ok()) return lead.status();
  SetLogRole(absl::StrCat("worker ", (*lead)->worker()));
  if (const absl::Status paced = setup.times->SetWorker((*lead)->worker()); !paced.ok()) {
    (*lead)->Leave(std::string(paced.message()));
    return paced;
  }

  Progress progress(setup.metrics.get(), setup.metrics_address);
  ParameterClientOptions options = setup.client;
  options.hello.set_worker((*lead)->worker());
  options.hello.set_incarnation((*lead)->incarnation());
  options.hello.set_common_run_id((*lead)->common_run_id());
  options.hello.set_run_begun((*lead)->run_begun());
  options.hello.set_open_round((*lead)->open_round());  // of shard 0
  options.hello.set_worker_name(flags.name);
  options.stop = signals.stop();
  options.over = [lead = lead->get()] { return lead->finished(); };
  options.acknowledged = [&progress, lead = lead->get()](const PushFigures& push) {
    if (push.round.has_value()) lead->NoteRound(*push.round);
    lead->Completed(push.ticket, push.earlier);
    progress.Acknowledged(push);
  };
  if (setup.acknowledged != nullptr) {
    setup.acknowledged->SetIncarnation((*lead)->incarnation());
    options.answered = [record = setup.acknowledged.get()](const SegmentAnswer& answer) { record->Note(answer); };
  }
  const auto train = [&]() -> absl::Status {
    // Messages point into the memory of these, so they outlive the client.
    const auto device = MakeDeviceExchange(options, *setup.model);
    if (!device.ok()) return device.status();
    options.step_encoder = device->encoder.get();
    options.step_receiver = device->receiver.get();
    GradientComputer computer(MakeGradientOptions(setup.job), setup.model.get(),
                              setup.train.get(), device->encoder.get());
    std::unique_ptr<GradientUse> use;
    auto client = ParameterClient::Connect(options);
    if (!client.ok()) return client.status();
    Heartbeat::Options beat = {.addresses = setup.servers,
                               .worker = (*lead)->worker(),
                               .incarnation = (*lead)->incarnation(),
                               .lease_seconds = (*lead)->lease_seconds()};
    for (uint32_t shard = 0; shard < setup.servers.size(); ++shard) {
      beat.channels.push_back((*client)->channel(shard));
    }
    Heartbeat heartbeat(beat);
    // The vector itself takes the first values, so that they need no memory of
    // their own; what the servers hold comes over them.
    float* parameters = (*client)->parameters();
    absl::Status status = WriteFirstValues(setup.job, *setup.model, parameters);
    if (!status.ok()) return status;
    status = (*client)->Initialise({parameters, setup.model->schema().elements()});
    if (!status.ok()) return status;
    if (status = WriteReadyFile(flags.ready_file, setup.metrics_address); !status.ok()) return status;
    LOG(INFO) << "training as worker " << (*lead)->worker() << " (" << flags.name << ")";
    TrainingLoopOptions loop_options;
    loop_options.slowdown = flags.slowdown;
    loop_options.times = setup.times.get();
    loop_options.batches_per_epoch = BatchesPerEpoch(setup.job, setup.train->examples());
    if (options.synchronous) loop_options.round_members = setup.job.training().workers();
    loop_options.views = views;
    if (views) {
      (*lead)->BringViews([client = client->get()](const v1::View& view) { return client->ChangeView(view); });
    }
    use = MakeGradientUse(setup.job, options, client->get());
    loop_options.use = use.get();
    loop_options.stop = signals.stop();
    loop_options.fenced = [&heartbeat] { return heartbeat.status(); };
    TrainingLoop loop(loop_options, &computer, client->get(), lead->get(), &progress);
    const absl::Status trained = loop.Run();
    // The client goes before the lead's thread does.
    (*lead)->BringViews(nullptr);
    if (trained.code() != absl::StatusCode::kAborted) {
      (*lead)->Leave(trained.ok() ? "finished" : std::string(trained.message()));
      heartbeat.End(true);
    }
    return trained;
  };
  const absl::Status status = train();
  if (!status.ok() && status.code() != absl::StatusCode::kAborted) {
    (*lead)->Leave(std::string(status.message()));
  }
  if (status.ok()) {
    const v1::WorkerFigures figures = progress.Figures({});
    LOG(INFO) << absl::StrFormat("the job is over%s%s: %d steps, %d examples, %d steps skipped",
                                 (*lead)->finish_reason().empty() ? "" : ": ",
                                 (*lead)->finish_reason(), figures.steps(), figures.examples(),
                                 figures.skipped_steps());
  }
  return status;
}

absl::Status RunEvaluatorRole(const Flags& flags, const Signals& signals, Setup& setup) {
  auto test = LoadTestData(setup.job, *setup.train);
  if (!test.ok()) return test.status();
  ParameterClientOptions options = setup.client;
  options.hello.set_reader(true);
  options.hello.set_worker_name(flags.name);
  options.reply_codec = "none";
  options.stop = signals.stop();
  auto client = ParameterClient::Connect(options);
  if (!client.ok()) return client.status();
  if (const absl::Status ready = (*client)->AwaitInitialised(); !ready.ok()) return ready;
  if (const absl::Status written = WriteReadyFile(flags.ready_file, setup.metrics_address); !written.ok()) return written;
  Evaluator evaluator({.seed = setup.job.seed(),
                       .batch_size = LargestBatch(setup.job),
                       .recalibration_batches = setup.job.evaluation().recalibration_batches()},
                      setup.model.get(), setup.train.get(), test->get());
  const RuleTraits* rule = FindRule(setup.job.update().rule());
  EvaluatorRun run;
  run.contract = setup.client.hello.contract();
  run.lead = setup.servers[0];
  run.credentials = setup.client.credentials;
  run.interval_epochs = setup.job.evaluation().interval_epochs();
  run.examples = setup.job.evaluation().examples();
  run.lookahead = rule != nullptr && rule->lookahead;
  run.connect_seconds = setup.client.connect_seconds;
  run.stop = signals.stop();
  run.metrics = setup.metrics.get();
  return RunEvaluator(run, &evaluator, client->get());
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app(
      "Trains a job's model with the servers of the job, or evaluates what the others train.", "foreshard-worker");
  app.set_version_flag("--version", std::string("foreshard-worker ") + kVersion);
  flags.job.AddTo(app);
  flags.credentials.AddTo(app);
  app.add_option("--servers", flags.servers,
                 "Addresses of all servers, host:port, in the order of their shards, with commas")
      ->required();
  app.add_option("--role", flags.role, "What to do: worker trains, evaluator evaluates")
      ->check(CLI::IsMember({"worker", "evaluator"}))
      ->capture_default_str();
  app.add_option("--name", flags.name, "How logs and status call this process [host-pid]");
  app.add_option("--device", flags.device, "auto (a GPU where there is one), cpu, cuda or cuda:n")
      ->capture_default_str();
  app.add_option("--precision", flags.precision,
                 "How a GPU's layers multiply: fp32, tf32 or bf16; parameters and gradients are "
                 "fp32 with each, and so is all that the CPU does")
      ->check(CLI::IsMember({"fp32", "tf32", "bf16"}))
      ->capture_default_str();
  app.add_option("--slot", flags.slot,
                 "Worker slot to take; whoever holds it is fenced [any free one]");
  app.add_option("--slowdown", flags.slowdown,
                 "Make every step take this many times its computing time")
      ->check(CLI::Range(1.0, 1e4))
      ->capture_default_str();
  app.add_option("--pace", flags.times.pace,
                 "Make each step take at least what this trace says for the worker's slot: lines "
                 "worker,step,seconds, begun again at its end")
      ->type_name("FILE");
  app.add_option("--record-batches", flags.times.record,
                 "Write what each step takes to this file, as such a trace")
      ->type_name("FILE");
  app.add_option("--record-acknowledged", flags.record_acknowledged,
                 "Write what servers have acknowledged to this file: lines "
                 "segment,incarnation,sequence,ticket,version,result")
      ->type_name("FILE");
  app.add_option("--metrics-listen", flags.metrics_listen,
                 "Serve Prometheus metrics, at /metrics, and the fleet's live page, at /, here, host:port; port 0 "
                 "takes a free one [off]");
  app.add_option("--ready-file", flags.ready_file,
                 "Write metrics_address and pid to this file, as JSON, once all servers know "
                 "the worker");
  app.add_option("--data-directory", flags.data_directory,
                 "The same as --set data.directory=...");
  app.footer(
      "Exit status: 0 done, 1 failed, 2 bad configuration, 3 device lost, 4 fenced by a newer "
      "start of this worker, 130 interrupted, 143 ended by SIGTERM before the job was complete.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitDone : kExitBadConfiguration;
  }
  InitLogging(argv[0], flags.role);
  PrepareProcess();
  if (flags.name.empty()) flags.name = DefaultName(flags.role);
  const Signals signals;

  Setup setup;
  auto device = kernels::MakeDevice(
      flags.device, {.precision = kernels::ParsePrecision(flags.precision).value()});
  if (!device.ok()) {
    LOG(ERROR) << device.status().message();
    return kernels::IsDeviceFailure(device.status()) ? kExitDeviceLost : ExitCodeFor(device.status());
  }
  setup.device = *std::move(device);
  absl::Status status = Prepare(flags, &setup);
  if (status.ok()) {
    status = flags.role == "worker" ? RunWorker(flags, signals, setup)
                                    : RunEvaluatorRole(flags, signals, setup);
  }
  if (status.code() == absl::StatusCode::kCancelled && signals.stopped()) {
    LOG(INFO) << status.message();
    return signals.exit_code();
  }
  if (!status.ok()) LOG(ERROR) << status.message();
  return kernels::IsDeviceFailure(status) ? kExitDeviceLost : ExitCodeFor(status);
}

}  // namespace
}  // namespace foreshard

int main(int argc, char** argv) { return foreshard::Main(argc, argv); }
