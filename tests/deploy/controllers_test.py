"""The rehearsal's Job controller against the chart's own failure policy: what each end of a pod means. Pods are
pretended; the rehearsal has real ones.

  controllers_test.py --programs=build-release/bin
"""

import argparse
import pathlib
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import found_tools

try:
    import yaml
except ImportError as missing:
    found_tools.skip(f"{missing}: install python3-yaml")
from rehearsal import controllers, kubelet

HELM = found_tools.find("helm")


class PretendedPod:
    """Ends when it is told to; `grace` is what it was given."""

    def __init__(self, name):
        self.name = name
        self.phase = "Running"
        self.exit_status = None
        self.disrupted = False
        self.deletions = []

    @property
    def ended(self):
        return self.phase in ("Succeeded", "Failed")

    def step(self, now):
        pass

    def delete(self, now, grace_seconds=None):
        self.deletions.append(grace_seconds)

    def ends(self, status):
        """None: before its container ran."""
        self.exit_status = status
        self.phase = "Succeeded" if status == 0 else "Failed"


class PretendedCluster:
    def make(self, name, template, objects, claims):
        return PretendedPod(name)


def jobs():
    done = subprocess.run([HELM, "template", "demo", found_tools.SOURCE / "deploy/helm/foreshard", "--set", "tls.mode=none"],
                          capture_output=True, text=True, check=True)
    return [o for o in yaml.safe_load_all(done.stdout) if o and o["kind"] == "Job"]


class Judgement(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.things = jobs()

    def job(self, component="worker", rules=None):
        thing = next(o for o in self.things if o["metadata"]["labels"]["app.kubernetes.io/component"] == component)
        if rules is not None:
            thing = {**thing, "spec": {**thing["spec"], "podFailurePolicy": {"rules": rules}}}
        made = controllers.Job(PretendedCluster(), thing)
        made.change(thing, self.things)
        made.step(0)
        return made

    def test_what_each_end_of_a_pod_means(self):
        for component in ("worker", "evaluator"):
            for status, meaning in ((0, "done"), (1, "failure"), (2, "the Job fails"), (3, "failure"), (4, "nothing"),
                                    (130, "failure"), (137, "failure"), (143, "nothing")):
                with self.subTest(f"{component}: {status}"):
                    job = self.job(component)
                    old = job.running[0]
                    old.ends(status)
                    job.step(0)
                    self.assertEqual({"done": job.succeeded == {0}, "failure": job.failures == {0: 1},
                                      "the Job fails": job.failed_because is not None, "nothing": job.ignored == [status]},
                                     {each: each == meaning for each in ("done", "failure", "the Job fails", "nothing")})
                    self.assertEqual(0 in job.running and job.running[0] is not old, meaning == "nothing", "made good at once")

    def test_an_eviction_has_its_grace_period_and_replaces_only_what_has_ended(self):
        job = self.job()
        old = job.evict(1)
        job.step(0)
        self.assertEqual(old.deletions, [None], "the pod's own grace period")
        self.assertIs(job.running[1], old)
        old.ends(137)
        job.step(0)
        self.assertEqual((job.failures, job.ignored), ({}, [137]), "its condition says why it was killed")
        self.assertIsNot(job.running[1], old)
        done = job.evict(2)
        done.ends(0)
        job.step(0)
        self.assertEqual(job.succeeded, {2})
        self.assertNotIn(2, job.running, "an index that is done is not made again")

    def test_an_eviction_before_the_container_runs(self):
        job = self.job()
        job.evict(1).ends(None)
        job.step(0)
        self.assertEqual((job.failures, job.ignored), ({}, [None]))

    def test_a_rule_is_read_whole(self):
        everything_else = [{"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [1]}}]
        for rules, status, ignored in ((everything_else, 1, False), (everything_else, 5, True),
                                       ([{"action": "Count", "onExitCodes": {"operator": "In", "values": [5]}}, *everything_else], 5, False)):
            job = self.job(rules=rules)
            job.running[0].ends(status)
            job.step(0)
            self.assertEqual(bool(job.ignored), ignored, f"{status} under {rules}")
        job = self.job(rules=[{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}])
        job.evict(0).ends(137)
        job.step(0)
        self.assertEqual(job.failures, {0: 1})
        job = self.job(rules=[{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [5]}}])
        job.running[0].ends(5)
        self.assertRaises(ValueError, job.step, 0)


class Probes(unittest.TestCase):
    def test_a_grpc_probe_asks_for_its_service(self):
        for spec, message in (({"port": 8086, "service": "liveness"}, b"\x00\x00\x00\x00\x0a\x0a\x08liveness"),
                              ({"port": 8086}, b"\x00\x00\x00\x00\x00")):
            for answer, result in ((b"\x08\x01", True), (b"\x08\x02", False)):
                ours, theirs = socket.socketpair()
                # DATA that ends stream 1.
                theirs.sendall(bytes([0, 0, 5 + len(answer), 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, len(answer)]) + answer)
                with theirs:
                    probe = kubelet.Probe({"grpc": spec})
                    probe.step(0, lambda port, timeout: ours)
                    self.assertEqual(probe.result, result)
                    self.assertTrue(theirs.recv(4096).endswith(message))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path)
    _, rest = parser.parse_known_args()
    if HELM is None:
        found_tools.skip("no helm: tools/install-deploy-tools")
    unittest.main(argv=[sys.argv[0], *rest])
