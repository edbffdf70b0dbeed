"""One pod's life as the kubelet leads it: init containers one after the other, the container with its probes,
restarts, the end. Nothing happens between two calls of step().

    life = PodLife(pod, runtime, network, folder)
    life.step(time.monotonic())
    life.phase          # Pending, Running, Succeeded, Failed
    life.ready          # what its readiness probe says
"""

import signal

from . import grpc_health

# The kubelet's back-off of restarts in place.
_FIRST_RESTART_SECONDS = 10
_LONGEST_RESTART_SECONDS = 300


class Probe:
    def __init__(self, spec):
        self._spec = spec
        self._failures = 0
        self._due = None
        self.result = None       # of the last; None before it
        self.succeeded_at = None

    def step(self, now, connect):
        """Runs it if it is due; True: it has failed as often as it may."""
        if self._due is None:
            self._due = now + self._spec.get("initialDelaySeconds", 0)
        if now < self._due:
            return False
        self._due = now + self._spec.get("periodSeconds", 10)
        self.result = self._ask(connect)
        if self.result and self.succeeded_at is None:
            self.succeeded_at = now
        self._failures = 0 if self.result else self._failures + 1
        return self._failures >= self._spec.get("failureThreshold", 3)

    def _ask(self, connect):
        timeout = self._spec.get("timeoutSeconds", 1)
        try:
            if "grpc" in self._spec:
                with connect(self._spec["grpc"]["port"], timeout) as connection:
                    return grpc_health.serving(connection, self._spec["grpc"].get("service", ""))
            with connect(self._spec["tcpSocket"]["port"], timeout):
                return True
        except OSError:
            return False


class PodLife:
    def __init__(self, pod, runtime, network, folder):
        self.pod = pod
        self._runtime = runtime
        self._network = network
        self._folder = folder
        self._inits = list(pod.init_containers)
        (self._container,) = pod.containers
        self._process = None
        self._running_init = False
        self._starts = 0
        self._restart_at = None
        self._probes = {}
        self._kill_at = None
        self._ends_at = None      # its deletion: SIGKILL then
        self.phase = "Pending"
        self.exit_status = None   # of the container's last end; init containers have none
        self.restarts = 0
        self.liveness_kills = 0
        self.disrupted = False    # its condition DisruptionTarget
        self.ready = False
        self.ready_at = None
        self.logs = []

    @property
    def name(self):
        return self.pod.name

    @property
    def deleted(self):
        return self._ends_at is not None

    @property
    def ended(self):
        """Nothing of it runs, or will again."""
        return self.phase in ("Succeeded", "Failed")

    def _start(self, container):
        self._starts += 1
        log = self._folder / f"{self.name}.{container.name}.{self._starts}.log"
        self.logs.append(log)
        self._process = self._runtime.start(self.pod, container, log)

    def step(self, now):
        if self.ended:
            return
        if self._process is None:
            if self._restart_at is not None and now < self._restart_at:
                return
            self._running_init = bool(self._inits)
            self._start(self._inits.pop(0) if self._running_init else self._container)
            if not self._running_init:
                self.phase = "Running"
                self._probes = {kind: Probe(spec) for kind, spec in self._container.probes.items()}
            return
        status = self._process.status()
        if status is not None:
            self._has_ended(status, now)
        elif self._kill_at is not None and now >= self._kill_at:
            self._process.kill(signal.SIGKILL)
        elif self.deleted and now >= self._ends_at:
            self._process.kill(signal.SIGKILL)
        elif not self._running_init and not self.deleted:
            self._probe(now)

    def _has_ended(self, status, now):
        self._process = None
        self._kill_at = None
        self.ready = False
        if self._running_init:
            if status != 0 or self.deleted:
                self._end("Failed")
            return
        self.exit_status = status
        if self.deleted or self.pod.restart_policy == "Never":
            self._end("Succeeded" if status == 0 else "Failed")
        else:
            self.restarts += 1
            # The first at once.
            wait = 0 if self.restarts == 1 else min(_FIRST_RESTART_SECONDS * 2 ** (self.restarts - 2), _LONGEST_RESTART_SECONDS)
            self._restart_at = now + wait

    def _end(self, phase):
        """Its address is nobody's then: what is sent there gets no answer."""
        if not self.ended:
            self.phase = phase
            self._network.remove(self.pod.address)

    def _probe(self, now):
        def connect(port, timeout):
            return self._network.connect(self.pod.address.address, port, timeout)

        startup = self._probes.get("startupProbe")
        if startup is not None and not startup.result:
            if startup.step(now, connect):
                self._kill(now)
            return
        readiness = self._probes.get("readinessProbe")
        if readiness is None:
            self.ready = True
        else:
            failed = readiness.step(now, connect)
            self.ready = bool(readiness.result) or (self.ready and not failed)
        if self.ready and self.ready_at is None:
            self.ready_at = now
        liveness = self._probes.get("livenessProbe")
        if liveness is not None and liveness.step(now, connect):
            self.liveness_kills += 1
            self._kill(now)

    def _kill(self, now):
        if self._kill_at is None:
            self._process.kill(signal.SIGTERM)
            self._kill_at = now + self.pod.grace_seconds

    def crash(self):
        """The container is killed from outside, as by the kernel for memory."""
        self._process.kill(signal.SIGKILL)

    def delete(self, now, grace_seconds=None):
        """SIGTERM, and SIGKILL after the grace period; no restarts any more."""
        if self.deleted:
            return
        grace = self.pod.grace_seconds if grace_seconds is None else grace_seconds
        self._ends_at = now + grace
        if self._process is None:
            self._end("Failed")
        elif grace > 0:
            self._process.kill(signal.SIGTERM)

    def execute(self, command):
        return self._process.execute(command)

    def log(self):
        return "".join(f"--- {path.name}\n{path.read_text('utf-8', 'replace')}" for path in self.logs)
