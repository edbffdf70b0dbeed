#include "tools/run_job.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/core/exit_code.h"
#include "common/net/admin_client.h"
#include "common/net/job_spec.h"
#include "tools/files.h"
#include "tools/fleet.h"
#include "tools/interrupt.h"
#include "tools/progress.h"
#include "tools/records.h"
#include "tools/results.h"
#include "tools/run_figures.h"

namespace foreshard {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
// Between two looks at the servers; shorter while the run is young.
constexpr absl::Duration kStatusInterval = absl::Seconds(1);
constexpr absl::Duration kFirstStatusInterval = absl::Milliseconds(250);
constexpr absl::Duration kYoung = absl::Seconds(5);
constexpr absl::Duration kStatusTimeout = absl::Seconds(3);
// How long an evaluation of all test examples may take after the last epoch.
constexpr absl::Duration kFinalEvaluation = absl::Minutes(10);
// How long workers may take to leave, and servers to end, before they are killed.
constexpr absl::Duration kGrace = absl::Seconds(10);
constexpr absl::Duration kInterruptGrace = absl::Seconds(5);
// And servers that write a last checkpoint.
constexpr absl::Duration kCheckpointGrace = absl::Minutes(2);
// How long after one server others that were stopped with it may end.
constexpr absl::Duration kOthersToo = absl::Seconds(5);
// What foreshard-worker --slowdown takes at most.
constexpr double kMaxSlowdown = 1e4;
// A server that is silent gets a notice this often.
constexpr absl::Duration kSilence = absl::Seconds(15);

constexpr char kInterrupted[] = "interrupted";

// Of every daemon.
std::vector<std::string> DaemonArguments(const RunOptions& options) {
  std::vector<std::string> arguments = options.credentials.Arguments();
  arguments.push_back(absl::StrCat("--job=", options.folder, "/job.textproto"));
  return arguments;
}

class Launcher {
 public:
  Launcher(const v1::JobSpec& job, const RunOptions& options)
      : job_(job),
        options_(options),
        logs_(absl::StrCat(options.folder, "/logs")),
        fleet_({.programs = options.programs,
                .folder = logs_,
                .job = DaemonArguments(options)}),
        display_(stdout, job) {}

  int Run() {
    absl::StatusOr<Credentials> credentials = options_.credentials.Load(TlsSide::kBoth);
    if (!credentials.ok()) {
      Error(credentials.status().message());
      return ExitCodeFor(credentials.status());
    }
    credentials_ = *std::move(credentials);
    if (absl::Status status = Prepare(); !status.ok()) {
      // Whatever the folder is, it is no contradiction in the job.
      Error(status.message());
      return kExitFailed;
    }
    if (absl::Status status = StartAll(); absl::IsCancelled(status)) {
      Interrupted();
    } else if (!status.ok()) {
      Error(status.message());
      fleet_.End(kGrace);
      return ExitCodeFor(status);
    } else {
      Train();
    }
    if (exit_code_ == kExitDone) AwaitEvaluator();
    EndAll();
    return WriteAndSum();
  }

 private:
  // What the run has come to: the first reason counts.
  void Conclude(int exit_code, std::string ended) {
    if (concluded_) return;
    concluded_ = true;
    exit_code_ = exit_code;
    outcome_.ended = std::move(ended);
  }

  void Error(absl::string_view text) {
    display_.Close();
    std::fprintf(stderr, "foreshard run: %s\n", std::string(text).c_str());
    std::fflush(stderr);
  }

  double Seconds() const { return absl::ToDoubleSeconds(absl::Now() - training_since_); }

  absl::Status Prepare() {
    if (absl::Status status = PrepareFolder(options_.folder); !status.ok()) return status;
    absl::StatusOr<FolderLock> lock = FolderLock::Take(options_.folder);
    if (!lock.ok()) return lock.status();
    lock_.emplace(*std::move(lock));
    if (absl::Status status = PrepareFolder(logs_); !status.ok()) return status;
    // Those of an earlier run must not pass for this one's.
    for (const char* name : {"results.json", "report.html"}) {
      unlink(absl::StrCat(options_.folder, "/", name).c_str());
    }
    RemoveRecords(options_.folder);
    if (!options_.state_directory.empty()) {
      if (absl::Status status = PrepareFolder(options_.state_directory); !status.ok()) return status;
    }
    return WriteFileAtomically(absl::StrCat(options_.folder, "/job.textproto"),
                               PrintJobSpec(job_));
  }

  absl::Status StartAll() {
    const auto give_up = [this] { return interrupt_.requested(); };
    for (uint32_t shard = 0; shard < options_.servers; ++shard) {
      std::vector<std::string> arguments;
      if (options_.record) {
        arguments.push_back(
            absl::StrCat("--record-arrivals=", ArrivalsPath(options_.folder, shard)));
      }
      if (!options_.state_directory.empty()) {
        arguments.push_back(
            absl::StrCat("--state-directory=", options_.state_directory, "/shard-", shard));
      }
      if (absl::Status status = fleet_.StartServer(shard, arguments); !status.ok()) return status;
    }
    const absl::Duration bound = absl::Seconds(job_.timeouts().connect_seconds());
    if (absl::Status status = fleet_.WaitForServers(bound, give_up); !status.ok()) return status;
    addresses_ = fleet_.addresses();
    display_.Notice(absl::StrCat("servers: ", absl::StrJoin(addresses_, ",")));
    admin_.emplace(addresses_, credentials_);
    silent_since_.assign(addresses_.size(), absl::InfiniteFuture());
    next_notice_.assign(addresses_.size(), absl::InfiniteFuture());
    training_since_ = absl::Now();
    if (!options_.state_directory.empty()) {
      AskStatus();
      history_.GoOnFrom(history_.latest());
      if (history_.latest().finished) return StartForTrained();
    }
    for (uint32_t worker = 0; worker < options_.workers; ++worker) {
      std::vector<std::string> arguments = {absl::StrCat("--device=", options_.device)};
      if (worker < options_.slowdowns.size() && options_.slowdowns[worker] != 1) {
        arguments.push_back(absl::StrCat("--slowdown=", options_.slowdowns[worker]));
      }
      if (!options_.pace.empty()) arguments.push_back(absl::StrCat("--pace=", options_.pace));
      if (options_.record) {
        arguments.push_back(absl::StrCat("--record-batches=", WorkersBatches(worker)));
      }
      if (absl::Status status = fleet_.StartWorker(worker, arguments); !status.ok()) return status;
    }
    return StartEvaluator();
  }

  absl::Status StartEvaluator() {
    if (!options_.evaluator) return absl::OkStatus();
    return fleet_.StartEvaluator({absl::StrCat("--device=", options_.device)});
  }

  // An earlier run has left nothing for workers to do.
  absl::Status StartForTrained() {
    const RunFigures& figures = history_.latest();
    if (figures.batches < figures.total_tickets) return absl::OkStatus();  // it was stopped
    display_.Notice(absl::StrCat("the job is complete already: ", options_.state_directory, " has all ",
                                 FormatCount(figures.total_tickets), " batches of its ", figures.epochs,
                                 " epochs; no workers are started"));
    return StartEvaluator();
  }

  // Until the lead says that training is finished, or it can't go on.
  void Train() {
    absl::Time next_status = absl::Now();
    while (!concluded_ && !history_.latest().finished) {
      if (interrupt_.requested()) {
        Interrupted();
        return;
      }
      HandleExits();
      if (concluded_) break;
      if (absl::Now() >= next_status) {
        const bool young = absl::Now() - training_since_ < kYoung;
        next_status = absl::Now() + (young ? kFirstStatusInterval : kStatusInterval);
        AskStatus();
        display_.Show(history_, Seconds());
      }
      absl::SleepFor(kTick);
    }
    outcome_.seconds = Seconds();
    if (concluded_ || !history_.latest().finished) return;
    const RunFigures& figures = history_.latest();
    if (figures.batches < figures.total_tickets) {
      const std::string ended = absl::StrCat(
          "stopped: ", figures.finish_reason.empty() ? "no reason given" : figures.finish_reason);
      Error(ended);
      Conclude(kExitInterrupted, ended);
    }
  }

  void Interrupted() {
    outcome_.seconds = Seconds();
    SayInterrupted();
    Conclude(kExitInterrupted, kInterrupted);
  }

  void SayInterrupted() {
    display_.Close();
    std::fprintf(stderr, "foreshard run: interrupted; ending the job (again to kill it)\n");
  }

  // It reads from the servers, so that the end of one of them ends the wait.
  void AwaitEvaluator() {
    if (fleet_.Running(Role::kEvaluator) > 0) {
      display_.Notice("trained; waiting for the evaluation on all test examples");
    }
    const absl::Time deadline = absl::Now() + kFinalEvaluation;
    while (fleet_.Running(Role::kEvaluator) > 0) {
      if (interrupt_.requested()) {
        Conclude(kExitInterrupted, kInterrupted);
        SayInterrupted();
        return;
      }
      HandleExits();
      if (concluded_) return;
      if (absl::Now() >= deadline) {
        Conclude(kExitFailed, "the evaluator did not finish");
        Error(absl::StrCat("the evaluator did not finish its last evaluation within ",
                           absl::FormatDuration(kFinalEvaluation), "; its log: ",
                           fleet_.Find("evaluator")->log_path));
        return;
      }
      absl::SleepFor(kTick);
    }
    HandleExits();
  }

  // Ends whatever runs, politely first, and takes the last figures on the way.
  void EndAll() {
    const bool orderly = exit_code_ == kExitDone;
    const absl::Duration grace = orderly ? kGrace : kInterruptGrace;
    const int interrupts = interrupt_.count();
    const auto give_up = [&] { return interrupt_.count() > std::max(1, interrupts); };
    // A job whose state is kept is not stopped, which would be for good: the next run goes on.
    const bool goes_on = !orderly && !options_.state_directory.empty();
    if (goes_on) {
      for (const Role role : {Role::kEvaluator, Role::kWorker}) {
        fleet_.Terminate(role, give_up() ? absl::ZeroDuration() : kInterruptGrace);
      }
    } else if (!orderly && admin_.has_value() && fleet_.Running(Role::kServer) > 0) {
      // Answers of servers that are gone do not matter here.
      admin_->Stop(outcome_.ended, /*exit_process=*/false, kStatusTimeout);
      if (fleet_.Running(Role::kServer) < options_.servers) {
        // Workers would wait for the server that is gone.
        fleet_.Terminate(Role::kWorker, give_up() ? absl::ZeroDuration() : absl::Seconds(1));
      }
      fleet_.Terminate(Role::kEvaluator, absl::Seconds(1));
    }
    fleet_.WaitForExits(Role::kWorker, grace, give_up);
    HandleExits();
    AskStatus();
    if (orderly && fleet_.Running(Role::kWorker) > 0) {
      display_.Notice(absl::StrCat(fleet_.Running(Role::kWorker), " workers did not leave within ",
                                   absl::FormatDuration(grace), " and are killed"));
    }
    fleet_.Terminate(Role::kWorker, absl::Seconds(give_up() ? 0 : 1));
    fleet_.Terminate(Role::kEvaluator, absl::Seconds(give_up() ? 0 : 1));
    if (goes_on) {
      for (const Child& child : fleet_.children()) {
        if (child.role == Role::kServer) child.process->Signal(SIGTERM);
      }
      fleet_.WaitForExits(Role::kServer, kCheckpointGrace, give_up);
      display_.Notice(absl::StrCat("what the servers know is kept in ", options_.state_directory,
                                   ": run the job again with it to go on"));
    } else if (admin_.has_value() && fleet_.Running(Role::kServer) > 0) {
      admin_->Stop(outcome_.ended, /*exit_process=*/true, kStatusTimeout);
      fleet_.WaitForExits(Role::kServer, grace, give_up);
    }
    fleet_.Terminate(Role::kServer, absl::Seconds(give_up() ? 0 : 2));
    ending_ = true;
    HandleExits();
  }

  // News of children that have ended, each said once.
  void HandleExits() {
    for (const ChildExit& exit : fleet_.TakeExits()) {
      if (ending_ || (concluded_ && exit_code_ == kExitInterrupted)) continue;
      switch (exit.role) {
        case Role::kServer: ServerEnded(exit); break;
        case Role::kWorker: WorkerEnded(exit); break;
        case Role::kEvaluator: EvaluatorEnded(exit); break;
      }
    }
  }

  void ServerEnded(const ChildExit& exit) {
    const bool finished = history_.latest().finished;
    if (exit.exit.ok() && finished && fleet_.Running(Role::kEvaluator) == 0) return;
    // Ended well, so it was told to: with all others by an operator's stop, or alone.
    if (exit.exit.ok() && !concluded_ && fleet_.WaitForExits(Role::kServer, kOthersToo)) {
      Error(absl::StrCat(exit.Describe(), "\n  all servers were stopped, so the job ends"));
      Conclude(kExitInterrupted, "stopped: all servers were told to end");
      return;
    }
    Error(absl::StrCat(exit.Describe(), "\n  its part of the parameters is gone with it, so ",
                       finished ? "the last evaluation can't be finished" : "the job ends"));
    Conclude(kExitFailed, absl::StrCat(exit.name, " ", exit.exit.Describe()));
  }

  void WorkerEnded(const ChildExit& exit) {
    const size_t left = fleet_.Running(Role::kWorker);
    const bool told_to = exit.exit.signal == 0 && exit.exit.status == kExitTerminated;
    if (exit.exit.ok() || told_to) {
      if (left == 0) last_worker_ended_ = absl::Now();
      return;
    }
    if (history_.latest().finished) {
      display_.Notice(exit.Describe());
      return;
    }
    if (first_failure_ == kExitDone) {
      first_failure_ = exit.exit.signal == 0 ? exit.exit.status : kExitFailed;
    }
    const bool configuration =
        exit.exit.signal == 0 && exit.exit.status == kExitBadConfiguration;
    if (configuration) {
      // All workers have the same job and the same files.
      Error(exit.Describe());
      Conclude(kExitBadConfiguration, absl::StrCat(exit.name, " refused the configuration"));
    } else if (left > 0) {
      display_.Notice(absl::StrCat(exit.Describe(), "\n  training goes on with ", left,
                                   left == 1 ? " worker" : " workers"));
    } else {
      Error(absl::StrCat(exit.Describe(), "\n  no worker is left, so the job ends"));
      const bool known = first_failure_ == kExitDeviceLost || first_failure_ == kExitFenced;
      Conclude(known ? first_failure_ : kExitFailed, "no worker is left");
    }
  }

  void EvaluatorEnded(const ChildExit& exit) {
    if (exit.exit.ok()) return;
    if (exit.exit.signal == 0 && exit.exit.status == kExitBadConfiguration) {
      Error(exit.Describe());
      Conclude(kExitBadConfiguration, "the evaluator refused the configuration");
      return;
    }
    display_.Notice(absl::StrCat(exit.Describe(), history_.latest().finished
                                                      ? "\n  the last evaluation is missing"
                                                      : "\n  training goes on, but without test "
                                                        "accuracy"));
    evaluator_lost_ = true;
  }

  // Takes the figures of all servers, or notes who is silent.
  void AskStatus() {
    if (!admin_.has_value()) return;
    std::vector<v1::StatusReply> replies;
    const std::vector<absl::StatusOr<v1::StatusReply>> answers =
        admin_->GetStatus(kStatusTimeout);
    for (size_t i = 0; i < answers.size(); ++i) {
      if (answers[i].ok()) {
        silent_since_[i] = absl::InfiniteFuture();
        replies.push_back(*answers[i]);
        continue;
      }
      const absl::Time now = absl::Now();
      if (silent_since_[i] == absl::InfiniteFuture()) {
        silent_since_[i] = now;
        next_notice_[i] = now + kSilence;
      }
      if (now >= next_notice_[i]) {
        next_notice_[i] = now + kSilence;
        display_.Notice(absl::StrCat(
            "server-", i, " has not answered for ",
            absl::FormatDuration(absl::Trunc(now - silent_since_[i], absl::Seconds(1))),
            ", the figures are older: ", answers[i].status().message()));
      }
    }
    // Sums over some of the servers would be figures of something else.
    if (replies.size() == answers.size()) history_.Add(Seconds(), Combine(replies));
    if (!concluded_ && last_worker_ended_ != absl::InfiniteFuture() &&
        !history_.latest().finished && absl::Now() - last_worker_ended_ > kGrace) {
      Error("all workers have left although the job is not finished; see the logs");
      Conclude(kExitFailed, "all workers left early");
    }
  }

  // What one worker writes, until all of them are put together.
  std::string WorkersBatches(uint32_t worker) const {
    return absl::StrCat(logs_, "/worker-", worker, ".batches.csv");
  }

  void MergeRecords() {
    std::vector<std::string> parts;
    for (uint32_t worker = 0; worker < options_.workers; ++worker) {
      parts.push_back(WorkersBatches(worker));
    }
    const absl::Status merged = MergeBatches(parts, BatchesPath(options_.folder));
    if (!merged.ok()) display_.Notice(std::string(merged.message()));
  }

  int WriteAndSum() {
    if (options_.record) MergeRecords();
    const RunFigures& figures = history_.latest();
    outcome_.completed = figures.total_tickets > 0 && figures.batches >= figures.total_tickets;
    outcome_.servers = options_.servers;
    outcome_.workers = options_.workers;
    if (figures.diverged() && exit_code_ == kExitDone) {
      const std::string diverged = absl::StrCat("training diverged: ", FormatSkipped(figures));
      Error(absl::StrCat(diverged,
                         "; lower schedule.learning_rate or clip (training.clip_norm)"));
      Conclude(kExitFailed, diverged);
    }
    if (outcome_.completed && exit_code_ == kExitDone && options_.evaluator &&
        (evaluator_lost_ || history_.evaluations().empty())) {
      Error("the job is trained, but was not evaluated; see the evaluator's log");
      Conclude(kExitFailed, "was not evaluated");
    }
    display_.Close();
    const absl::Status written = WriteResults(options_.folder, job_, outcome_, history_);
    std::printf("\n%s", Summary(job_, history_, outcome_.completed, outcome_.ended,
                                outcome_.seconds, written.ok() ? options_.folder : "")
                            .c_str());
    std::fflush(stdout);
    if (!written.ok()) {
      Error(absl::StrCat("the results could not be written: ", written.message(),
                         "; free space or give another folder with --results"));
      return kExitFailed;
    }
    return exit_code_;
  }

  const v1::JobSpec& job_;
  const RunOptions& options_;
  std::string logs_;
  std::optional<FolderLock> lock_;
  Interrupt interrupt_;
  Fleet fleet_;
  ProgressDisplay display_;
  Credentials credentials_;
  std::optional<AdminClient> admin_;
  std::vector<std::string> addresses_;
  std::vector<absl::Time> silent_since_;  // by server
  std::vector<absl::Time> next_notice_;   // of its silence
  History history_;
  RunOutcome outcome_;
  absl::Time training_since_ = absl::Now();
  absl::Time last_worker_ended_ = absl::InfiniteFuture();
  int first_failure_ = kExitDone;
  bool evaluator_lost_ = false;
  bool ending_ = false;
  bool concluded_ = false;
  int exit_code_ = kExitDone;
};

absl::Status BadSlowdown(const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "--slowdown: ", text, ": ", why,
      "; give a factor a worker, as in 1,1,2.5, or name workers, as in 0=1,3=2.5"));
}

}  // namespace

absl::StatusOr<std::vector<double>> ParseSlowdowns(const std::string& text, uint32_t workers) {
  std::vector<double> slowdowns(workers, 1.0);
  if (text.empty()) return slowdowns;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  std::set<uint64_t> named;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string factor = parts[i];
    uint64_t worker = i;
    if (const size_t equals = factor.find('='); equals != std::string::npos) {
      if (!absl::SimpleAtoi(factor.substr(0, equals), &worker)) {
        return BadSlowdown(text, absl::StrCat("'", factor.substr(0, equals),
                                              "' is no worker's number"));
      }
      factor = factor.substr(equals + 1);
    } else if (text.find('=') != std::string::npos) {
      return BadSlowdown(text, absl::StrCat("'", factor, "' names no worker, but others do"));
    }
    double value = 0;
    if (!absl::SimpleAtod(factor, &value) || !std::isfinite(value) || value < 1) {
      return BadSlowdown(text, absl::StrCat("'", factor, "' is no factor of 1 or more"));
    }
    if (value > kMaxSlowdown) {
      return BadSlowdown(text, absl::StrCat("'", factor, "' is above ", kMaxSlowdown));
    }
    if (worker >= workers) {
      return BadSlowdown(text, absl::StrCat("there is no worker ", worker, " among ", workers));
    }
    if (!named.insert(worker).second) {
      return BadSlowdown(text, absl::StrCat("worker ", worker, " is named twice"));
    }
    slowdowns[worker] = value;
  }
  return slowdowns;
}

int RunJob(const v1::JobSpec& job, const RunOptions& options) {
  return Launcher(job, options).Run();
}

}  // namespace foreshard
