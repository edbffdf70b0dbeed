#include "tools/simulate/runner.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/net/job_parts.h"
#include "server/dealer.h"
#include "server/job_machines.h"
#include "tools/files.h"
#include "tools/simulate/run_file.h"
#include "tools/simulate/study_data.h"
#include "tools/simulate/study_summary.h"

namespace foreshard {
namespace {

constexpr uint64_t kMaxJobs = 256;
constexpr auto kPollInterval = std::chrono::milliseconds(100);

// A run under way. What is atomic is the simulation's to write.
struct Job {
  StudyRun run;
  uint64_t fingerprint = 0;
  std::string description;
  absl::Time started;
  std::atomic<double> part = 0;
  std::atomic<double> virtual_seconds = 0;
  std::atomic<double> accuracy = std::numeric_limits<double>::quiet_NaN();
};

// How long an epoch takes, of short runs and of full-length ones.
struct Speed {
  double epochs = 0, seconds = 0;
};

class Runner {
 public:
  Runner(const Study& study, const RunnerOptions& options)
      : study_(study),
        options_(options),
        observer_(options.observer != nullptr ? *options.observer : silent_),
        plan_(study),
        runs_folder_(absl::StrCat(options.folder, "/runs")),
        totals_(plan_.Totals()),
        jobs_(JobsOf(study, options.jobs)) {}

  absl::Status Prepare();
  absl::StatusOr<StudyOutcome> Run();

 private:
  // What a run needs, and what only its data can say against it.
  absl::Status Prepare(const StudyRun& run);
  // What a thread hands back.
  struct Ended {
    std::shared_ptr<Job> job;
    absl::StatusOr<SimulationResult> result;
    absl::Status written;
  };

  bool is_search(const StudyRun& run) const { return run.rung != StudyRun::kFinal; }
  void Work();
  Ended Execute(std::shared_ptr<Job> job);
  // Moves what is ready into the queue, and what is on the disk into the results.
  void Refill();
  bool TakeFromDisk(const StudyRun& run, uint64_t fingerprint);
  // `fresh`: it was not there before.
  void Note(const StudyRun& run, SimulationResult result, bool fresh);
  void Take(Ended ended);
  void Fail(const StudyRun& run, const absl::Status& status);
  // As many of jobs_ as can be had.
  absl::Status StartThreads();
  StudyFigures Figures() const;

  const Study& study_;
  const RunnerOptions& options_;
  StudyObserver silent_;
  StudyObserver& observer_;
  const StudyPlan plan_;
  const std::string runs_folder_;
  const StudyTotals totals_;
  uint32_t jobs_;
  StudyData data_;

  // Run's thread's own.
  StudyOutcome outcome_;
  std::set<std::string> known_;     // queued, running, done or failed
  std::vector<std::shared_ptr<Job>> running_;
  double done_epochs_[2] = {};  // [0] full, [1] search
  Speed speeds_[2];
  absl::Status fatal_;

  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable wake_workers_, wake_run_;
  // Under the mutex.
  std::deque<std::shared_ptr<Job>> queue_, begun_;
  std::deque<Ended> ended_;
  bool over_ = false;

  std::vector<std::thread> threads_;
};

absl::Status Runner::Prepare(const StudyRun& run) {
  if (absl::Status status = data_.Add(run.job); !status.ok()) return status;
  const uint64_t batches = BatchesPerEpoch(run.job, data_.Of(run.job).train->examples());
  const absl::Status status = Dealer::Check(MakeDealerOptions(run.job, batches));
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("variant '", study_.label(run.cell), "', ",
                                   FleetName(study_.cells()[run.cell]), ": ", status.message()));
}

absl::Status Runner::Prepare() {
  for (size_t cell = 0; cell < study_.cells().size(); ++cell) {
    if (absl::Status status = Prepare(study_.FinalRun(cell, 0, 0)); !status.ok()) return status;
    for (int rung = 0; rung < study_.spec().search().epochs_size(); ++rung) {
      const StudyRun run = study_.SearchRun(cell, rung, study_.LearningRates(cell).front());
      if (absl::Status status = Prepare(run); !status.ok()) return status;
    }
  }
  return PrepareFolder(runs_folder_);
}

Runner::Ended Runner::Execute(std::shared_ptr<Job> job) {
  const StudyData::Sets& sets = data_.Of(job->run.job);
  SimulationOptions options = {
      .job = job->run.job,
      .clock = study_.MakeClock(job->run),
      .network = study_.network(),
      .train = sets.train.get(),
      .test = sets.test.get(),
      .evaluation_interval_epochs = job->run.evaluation_interval_epochs,
      .stop = &stop_,
      .progress = [&](const SimulationProgress& progress) {
        job->part = progress.total_batches > 0
                        ? static_cast<double>(progress.batches) / progress.total_batches
                        : 0;
        job->virtual_seconds = progress.virtual_seconds;
        job->accuracy = progress.accuracy;
      }};
  Ended ended = {.job = job, .result = options_.simulate(options)};
  if (ended.result.ok()) {
    ended.written = WriteRunFile(
        runs_folder_, {job->run.key, job->fingerprint, job->description, *ended.result});
  }
  return ended;
}

void Runner::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_workers_.wait(lock, [&] { return over_ || !queue_.empty(); });
    if (over_) return;
    std::shared_ptr<Job> job = std::move(queue_.front());
    queue_.pop_front();
    job->started = absl::Now();
    begun_.push_back(job);
    lock.unlock();
    Ended ended = Execute(std::move(job));
    lock.lock();
    // Nothing more is computed that could not be kept.
    over_ |= !ended.written.ok();
    ended_.push_back(std::move(ended));
    wake_run_.notify_one();
  }
}

void Runner::Note(const StudyRun& run, SimulationResult result, bool fresh) {
  const bool search = is_search(run);
  done_epochs_[search] += run.job.training().epochs();
  const uint64_t per_epoch = BatchesPerEpoch(run.job, data_.Of(run.job).train->examples());
  // One that diverged was over early.
  speeds_[search].epochs += static_cast<double>(result.batches) / per_epoch;
  speeds_[search].seconds += result.total_seconds;
  outcome_.results.insert_or_assign(run.key, std::move(result));
  ++outcome_.figures.done_runs;
  if (!search || !fresh) return;
  if (const SearchOutcome outcome = plan_.Search(run.cell, outcome_.results); outcome.complete) {
    observer_.Searched(study_, run.cell, outcome);
  }
}

bool Runner::TakeFromDisk(const StudyRun& run, uint64_t fingerprint) {
  absl::StatusOr<RunFile> file = ReadRunFile(runs_folder_, run.key);
  if (absl::IsNotFound(file.status())) return false;
  if (!file.ok()) {
    observer_.Stale(run, std::string(file.status().message()));
    return false;
  }
  if (file->fingerprint != fingerprint) {
    observer_.Stale(run, "it was made with other settings, data or another version");
    return false;
  }
  ++outcome_.figures.resumed_runs;
  Note(run, std::move(file->result), false);
  return true;
}

void Runner::Refill() {
  // What was on the disk may make more ready.
  for (bool again = true; again;) {
    again = false;
    std::deque<std::shared_ptr<Job>> ready;
    for (StudyRun& run : plan_.Ready(outcome_.results, outcome_.failed)) {
      if (!known_.insert(run.key).second) continue;
      auto job = std::make_shared<Job>();
      job->description = study_.Describe(run);
      job->fingerprint = RunFingerprint(job->description, data_.Of(run.job).checksum);
      // No result can be kept there: better said before hours of work than after.
      const std::string path = RunFilePath(runs_folder_, run.key);
      if (std::error_code error; std::filesystem::is_directory(path, error)) {
        Fail(run, absl::FailedPreconditionError(
                      absl::StrCat(path, " is a folder, where the result belongs; remove it")));
        again = true;
        continue;
      }
      if (TakeFromDisk(run, job->fingerprint)) {
        again = true;
        continue;
      }
      job->run = std::move(run);
      ready.push_back(std::move(job));
    }
    if (ready.empty()) continue;
    std::lock_guard lock(mutex_);
    // A rung of the search that has just become ready goes before full-length runs.
    for (std::shared_ptr<Job>& job : ready) queue_.push_back(std::move(job));
    std::stable_sort(queue_.begin(), queue_.end(), [](const auto& a, const auto& b) {
      return a->run.rung > b->run.rung;
    });
    wake_workers_.notify_all();
  }
}

void Runner::Take(Ended ended) {
  std::erase(running_, ended.job);
  const StudyRun& run = ended.job->run;
  if (ended.result.ok()) {
    if (!ended.written.ok() && fatal_.ok()) fatal_ = ended.written;
    observer_.Finished(run, *ended.result);
    Note(run, *std::move(ended.result), true);
    return;
  }
  if (stop_ && absl::IsCancelled(ended.result.status())) return;
  Fail(run, ended.result.status());
}

void Runner::Fail(const StudyRun& run, const absl::Status& status) {
  if (outcome_.first_failure.ok()) outcome_.first_failure = status;
  outcome_.failures.push_back(absl::StrCat(run.name, ": ", std::string(status.message())));
  outcome_.failed.insert(run.key);
  ++outcome_.figures.done_runs;
  done_epochs_[is_search(run)] += run.job.training().epochs();
  observer_.Failed(run, status);
}

StudyFigures Runner::Figures() const {
  StudyFigures figures = outcome_.figures;
  figures.total_runs = totals_.search_runs + totals_.full_runs;
  double done[2] = {done_epochs_[0], done_epochs_[1]};
  Speed speeds[2] = {speeds_[0], speeds_[1]};
  const absl::Time now = absl::Now();
  for (const std::shared_ptr<Job>& job : running_) {
    const double seconds = absl::ToDoubleSeconds(now - job->started);
    const double part = job->part;
    figures.running.push_back({job->run.name, part, job->virtual_seconds, seconds, job->accuracy});
    const double epochs = part * job->run.job.training().epochs();
    done[is_search(job->run)] += epochs;
    if (epochs > 0) {
      speeds[is_search(job->run)].epochs += epochs;
      speeds[is_search(job->run)].seconds += seconds;
    }
  }
  const double totals[2] = {static_cast<double>(totals_.full_epochs),
                            static_cast<double>(totals_.search_epochs)};
  if (totals[0] + totals[1] > 0) figures.part = std::min(1.0, (done[0] + done[1]) / (totals[0] + totals[1]));
  double left = 0;
  bool known = false;
  for (int search : {0, 1}) {
    const double epochs = std::max(0.0, totals[search] - done[search]);
    if (epochs == 0) continue;
    if (speeds[search].epochs > 0) {
      left += epochs * speeds[search].seconds / speeds[search].epochs;
      known = true;
    } else {
      figures.left_is_bound = true;
    }
  }
  if (known) figures.seconds_left = left / jobs_;
  return figures;
}

absl::Status Runner::StartThreads() {
  for (uint32_t k = 0; k < jobs_; ++k) {
    try {
      threads_.push_back(options_.start_thread([this] { Work(); }));
    } catch (const std::system_error& error) {
      if (threads_.empty()) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "no thread can be started: ", error.what(), "; end other programs or raise the limit"));
      }
      break;
    }
  }
  jobs_ = static_cast<uint32_t>(threads_.size());
  return absl::OkStatus();
}

absl::StatusOr<StudyOutcome> Runner::Run() {
  if (absl::Status status = StartThreads(); !status.ok()) return status;
  Refill();
  while (true) {
    std::deque<Ended> ended;
    bool idle = false;
    {
      std::unique_lock lock(mutex_);
      wake_run_.wait_for(lock, kPollInterval, [&] { return !ended_.empty(); });
      ended.swap(ended_);
      for (std::shared_ptr<Job>& job : begun_) running_.push_back(std::move(job));
      begun_.clear();
    }
    for (Ended& one : ended) Take(std::move(one));
    if (!stop_ && (!fatal_.ok() || (options_.interrupted && options_.interrupted()))) {
      outcome_.interrupted = fatal_.ok();
      stop_ = true;
      std::lock_guard lock(mutex_);
      queue_.clear();
    }
    if (!stop_ && !ended.empty()) Refill();
    {
      std::lock_guard lock(mutex_);
      idle = queue_.empty() && begun_.empty() && ended_.empty() && running_.empty();
    }
    observer_.Show(Figures());
    if (idle) break;
  }
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_workers_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  if (!fatal_.ok()) {
    return absl::UnavailableError(
        absl::StrCat("ended, as results can't be kept: ", std::string(fatal_.message())));
  }
  outcome_.figures = Figures();
  return std::move(outcome_);
}

}  // namespace

uint32_t JobsOf(const Study& study, uint32_t wanted) {
  const StudyTotals totals = StudyPlan(study).Totals();
  const uint64_t runs = totals.search_runs + totals.full_runs;
  const uint64_t most = std::clamp<uint64_t>(runs, 1, kMaxJobs);
  return static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 1, most));
}

absl::StatusOr<StudyOutcome> RunStudy(const Study& study, const RunnerOptions& options) {
  Runner runner(study, options);
  if (absl::Status status = runner.Prepare(); !status.ok()) return status;
  return runner.Run();
}

}  // namespace foreshard
