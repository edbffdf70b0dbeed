"""One run: a method, a rate and a seed, trained to its end by real daemons."""

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass

from local_fleet import daemons, network as networks, scrape

from . import measure

PORT = 7000
_TICK_SECONDS = 0.02
_SAMPLE_SECONDS = 0.25
# While a run is young, so that short ones are seen at all.
_YOUNG_SECONDS = 3
_YOUNG_SAMPLE_SECONDS = 0.04
_STATUS_SECONDS = 1.0
_STATUS_TIMEOUT_SECONDS = 5
_READY_SECONDS = 90
# What the first parameters may take at most on a slow link, beyond that: more than any
# job that is sensible here.
_FIRST_PULL_BYTES = 64e6
_GRACE_SECONDS = 10
# For the lead to say that training is over, once the workers have left.
_LEAVE_SECONDS = 10
_EVALUATOR_SECONDS = 600
# Training that makes no step for so long has failed: servers expire silent workers much sooner.
_STALLED_SECONDS = 300
_EVALUATOR_NICENESS = 10


class RunError(Exception):
    """The run did not come to its end."""


@dataclass
class Job:
    """The job of one run as the daemons are given it."""
    path: str
    overrides: list
    servers: int
    workers: int
    two_phases: bool = False

    def arguments(self):
        return [f"--job={self.path}", *(f"--set={override}" for override in self.overrides)]


def check(programs, job, folder, interrupt):
    """What a real server says against the job; None where it takes it."""
    os.makedirs(folder, exist_ok=True)
    daemon = daemons.start(
        "server", [programs.path("foreshard-server"), *job.arguments(), "--shard=0",
                   "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0"],
        os.path.join(folder, "check.log"), ready_path=os.path.join(folder, "check.ready.json"))
    try:
        daemons.await_ready([daemon], _READY_SECONDS, interrupt)
        return None
    except daemons.DaemonError:
        lines = daemons.last_lines(daemon.log_path)
        return "\n".join(lines) if lines else daemon.describe_end()
    finally:
        daemons.end([daemon], _GRACE_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def _mean(values):
    known = [value for value in values if value is not None and value == value]
    return sum(known) / len(known) if known else None


class Run:
    """Trains once. `progress(seconds, batches, total_batches, loss)` is called now and then.
    With `only_steps` it is ended after so many and measured, but not evaluated."""

    def __init__(self, programs, job, rate, folder, interrupt, progress, only_steps=None):
        self._only_steps = only_steps
        self._programs = programs
        self._job = job
        self._rate = rate
        self._folder = folder
        self._interrupt = interrupt
        self._progress = progress
        self._servers = [f"server-{i}" for i in range(job.servers)]
        self._workers = [f"worker-{i}" for i in range(job.workers)]
        self._all = []  # every daemon started
        self._metrics = {}  # node: address inside its namespace
        self._network = None
        self._links_before = {}
        self._samples = []
        self._seen = {}  # node: last Metrics
        self._evaluations = {}  # (parameters, epoch, final): record
        self._status = {}

    def run(self):
        """The record of the run, without what identifies it."""
        os.makedirs(self._folder, exist_ok=True)
        with networks.Network(self._servers, self._workers, self._rate) as self._network:
            try:
                trained = self._train()
                if self._only_steps is not None:
                    return self._whole()
                self._await_evaluation(trained)
                record = self._record(trained)
                # The evaluator and the workers have left; the servers alone are told to.
                daemons.end(self._all, _GRACE_SECONDS)
                return record
            finally:
                daemons.end(self._all, 0)

    def _start(self, name, program, arguments, node, niceness=0):
        daemon = daemons.start(
            name, [self._programs.path(program), *self._job.arguments(), *arguments],
            os.path.join(self._folder, f"{name}.log"), self._network, node,
            os.path.join(self._folder, f"{name}.ready.json"), niceness)
        self._all.append(daemon)
        return daemon

    def _train(self):
        """Starts everything and watches it until the workers have left; the seconds that
        training took."""
        addresses = [f"{self._network.address(node)}:{PORT}" for node in self._servers]
        self._address_list = ",".join(addresses)
        servers = [self._start(node, "foreshard-server",
                               [f"--shard={i}", f"--listen={addresses[i]}", "--insecure",
                                "--metrics-listen=127.0.0.1:0"], node)
                   for i, node in enumerate(self._servers)]
        daemons.await_ready(servers, _READY_SECONDS, self._interrupt)
        self._links_before = self._network.link_bytes()
        workers = [self._start(node, "foreshard-worker",
                               [f"--servers={self._address_list}", "--insecure",
                                "--role=worker", f"--name={node}", "--device=cpu",
                                "--metrics-listen=127.0.0.1:0"],
                               node)
                   for node in self._workers]
        self._evaluator = self._start(
            "evaluator", "foreshard-worker",
            [f"--servers={self._address_list}", "--insecure", "--role=evaluator",
             "--name=evaluator", "--device=cpu"], networks.OBSERVER, _EVALUATOR_NICENESS)
        first_pull = 0 if self._rate is None else 8 * _FIRST_PULL_BYTES / self._rate
        daemons.await_ready(workers, _READY_SECONDS + first_pull, self._interrupt, servers)
        for daemon in servers + workers:
            ready, _ = daemon.ready()
            self._metrics[daemon.name] = ready["metrics_address"]
        # Training begins when the first worker has its parameters; the pull is no step.
        began = min(daemon.ready()[1] for daemon in workers)
        self._began = time.monotonic() - (time.time() - began)
        self._links_before = self._network.link_bytes()
        return self._watch(servers, workers)

    def _watch(self, servers, workers):
        # At first nothing has moved; how long the first round has been open is not known.
        self._samples = [measure.Sample(
            seconds=0.0, links=dict.fromkeys(self._network.nodes, (0, 0)),
            phase=1 if self._job.two_phases else None)]
        next_sample = next_status = 0
        moved, moved_at = -1, time.monotonic()
        while True:
            self._interrupt.check()
            now = time.monotonic()
            self._look_after(servers, workers)
            if all(not worker.running for worker in workers) or self._seen_enough():
                return now - self._began
            if now >= next_sample:
                young = now - self._began < _YOUNG_SECONDS
                next_sample = now + (_YOUNG_SAMPLE_SECONDS if young else _SAMPLE_SECONDS)
                self._sample()
                batches = self._samples[-1].batches
                if batches > moved:
                    moved, moved_at = batches, now
                elif now - moved_at > _STALLED_SECONDS:
                    raise RunError(f"no step for {_STALLED_SECONDS} s; the lead waits for: "
                                   f"{self._status.get('waiting_for') or 'nothing it knows of'}")
            if now >= next_status:
                next_status = now + _STATUS_SECONDS
                self._ask_status(now - self._began)
            time.sleep(_TICK_SECONDS)

    def _seen_enough(self):
        return (self._only_steps is not None and self._samples and
                self._samples[-1].batches >= self._only_steps * self._job.workers)

    def _look_after(self, servers, workers):
        for daemon in servers:
            if not daemon.running:
                raise RunError(daemon.describe_end())
        for daemon in workers:
            if not daemon.running and not daemon.ended_well:
                raise RunError(daemon.describe_end())
        if not self._evaluator.running and not self._evaluator.ended_well:
            raise RunError(self._evaluator.describe_end())

    def _fetch_all(self, nodes):
        for node in nodes:
            try:
                with self._network.inside(node):
                    self._seen[node] = scrape.fetch(self._metrics[node])
            except OSError:
                pass  # it has left, or is busy: what it said last stands

    def _sample(self):
        """What workers and servers say now. All counts of a worker are of one moment."""
        links = self._network.link_bytes()
        self._fetch_all([*self._servers, *self._workers])
        sample = measure.Sample(seconds=time.monotonic() - self._began)
        losses = []
        for node in self._workers:
            metrics = self._seen.get(node)
            if metrics is None:
                continue
            steps = metrics.get("steps_total", 0)
            sample.batches += steps
            if steps > metrics.get("skipped_steps_total", 0):
                losses.append(metrics.get("loss"))
            sample.compute_seconds += metrics.get("step_duration_seconds_sum", 0, phase="compute")
            sample.compute_batches += metrics.get("step_duration_seconds_count", 0,
                                                  phase="compute")
            sample.push_bytes += metrics.get("push_bytes_total", 0)
            sample.pull_bytes += metrics.get("pull_bytes_total", 0)
            sample.push_plain_bytes += metrics.get("push_uncompressed_bytes_total", 0)
            sample.pull_plain_bytes += metrics.get("pull_uncompressed_bytes_total", 0)
        sample.loss = _mean(losses)
        self._add(sample, links)

    def _last_sample(self, trained):
        """Workers have left; what they said at last, the lead knows."""
        self._fetch_all(self._servers)
        sample = measure.Sample(seconds=trained)
        before = self._samples[-1]
        sample.compute_seconds = before.compute_seconds
        sample.compute_batches = before.compute_batches
        # One that was through before another came has left its slot to that one.
        said = [worker.get("figures") or {} for key in ("workers", "past_workers")
                for worker in self._status.get(key, [])]
        for name, field in (("batches", "steps"), ("push_bytes", "push_bytes"),
                            ("pull_bytes", "pull_bytes"),
                            ("push_plain_bytes", "push_uncompressed_bytes"),
                            ("pull_plain_bytes", "pull_uncompressed_bytes")):
            setattr(sample, name, sum(figures.get(field, 0) for figures in said))
        sample.loss = _mean(
            [figures.get("loss") for figures in said if figures.get("steps", 0) > 0])
        self._add(sample)

    def _add(self, sample, earlier=None):
        """Completes it by the servers' clocks and the links' counters: with `earlier`, those
        before the workers were asked, which takes a moment, by the middle of both."""
        sample.rounds = sample.round_seconds = 0
        for node in self._servers:
            metrics = self._seen.get(node)
            if metrics is None:
                continue
            sample.rounds += metrics.get("round_duration_seconds_count", 0)
            sample.round_seconds += metrics.get("round_duration_seconds_sum", 0)
        if self._job.two_phases and (lead := self._seen.get(self._servers[0])) is not None:
            sample.phase = 2 if lead.get("compressed_phase", 0) else 1
        now = self._network.link_bytes()
        for node, counts in now.items():
            counts = zip(counts, (earlier or now)[node], self._links_before[node])
            sample.links[node] = tuple((late + early) / 2 - before for late, early, before in counts)
        self._samples.append(sample)

    def _ask_status(self, seconds):
        """What the lead says, over the links that are not measured. False: no answer, so
        that what it said before stands."""
        command = [self._programs.path("foreshard"), "status", "--json", "--insecure",
                   f"--servers={self._address_list}", f"--timeout={_STATUS_TIMEOUT_SECONDS}"]
        with self._network.inside(networks.OBSERVER):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True, check=False,
                                  start_new_session=True)
        try:
            servers = json.loads(done.stdout)["servers"]
        except (ValueError, KeyError):
            return False
        lead = next((server for server in servers if server.get("lead")), None)
        if lead is None:
            return False
        self._status = lead
        for evaluation in lead.get("evaluations", []):
            key = (evaluation["parameters"], evaluation["epoch"], evaluation["final"])
            if key in self._evaluations:
                continue
            # Those are the parameters that were pulled when the evaluation began.
            at = max(0.0, seconds - evaluation.get("seconds", 0.0))
            self._evaluations[key] = {
                "parameters": evaluation["parameters"], "epoch": evaluation["epoch"],
                "seconds": at, "accuracy": evaluation["accuracy"], "loss": evaluation["loss"],
                "examples": evaluation["examples"], "final": evaluation["final"]}
        if self._samples:
            last = self._samples[-1]
            self._progress(last.seconds, last.batches, lead.get("total_tickets", 0), last.loss)
        return True

    def _await_evaluation(self, trained):
        deadline = time.monotonic() + _LEAVE_SECONDS
        while True:
            # What it said before the workers left lacks what they said last.
            answered = self._ask_status(trained)
            total, made = (self._status.get(key, 0)
                           for key in ("total_tickets", "completed_tickets"))
            if answered and self._status.get("finished") and made >= total:
                break
            if time.monotonic() >= deadline:
                raise RunError(f"the workers left after {made} of {total} batches: "
                               f"{self._status.get('finish_reason') or 'no reason given'}")
            self._interrupt.sleep(0.2)
        self._last_sample(trained)
        deadline = time.monotonic() + _EVALUATOR_SECONDS
        while self._evaluator.running:
            self._interrupt.check()
            if time.monotonic() >= deadline:
                raise RunError(f"no evaluation of the last parameters within "
                               f"{_EVALUATOR_SECONDS} s; log: {self._evaluator.log_path}")
            time.sleep(_TICK_SECONDS)
        if not self._evaluator.ended_well:
            raise RunError(self._evaluator.describe_end())
        self._ask_status(trained)

    def _whole(self):
        whole = measure.stretch(self._samples, self._job.workers) if self._samples else None
        if whole is None:
            raise RunError("the run had no whole step; give it more batches")
        return whole

    def _record(self, trained):
        workers = self._job.workers
        evaluations = sorted(self._evaluations.values(),
                             key=lambda e: (e["epoch"], e["final"], e["parameters"]))
        for evaluation in evaluations:
            if evaluation["final"]:
                evaluation["seconds"] = trained
        final = next((e for e in evaluations if e["final"] and e["parameters"] == "master"), None)
        parts = measure.stretches(self._samples, workers)
        whole = self._whole()
        return {
            "seconds": trained,
            "steps": whole["steps"],
            "epochs": self._status.get("completed_epochs"),
            "batches": self._status.get("completed_tickets"),
            "examples_per_batch": self._status.get("batch_size"),
            "skipped_pushes": self._status.get("pushes_skipped"),
            "total": whole,
            "phases": parts,
            "final_accuracy": final["accuracy"] if final else None,
            "final_loss": final["loss"] if final else None,
            "evaluations": evaluations,
            "curve": measure.curve(self._samples, workers),
        }
