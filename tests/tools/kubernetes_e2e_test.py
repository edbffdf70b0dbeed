#!/usr/bin/python3
"""The steps of tools/kubernetes-e2e and how each can fail, against a kubectl and a helm that only pretend
(fake_cluster.py). It shows that the logic holds, and nothing about a real cluster."""

import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tools/kubernetes-e2e"
sys.path[:0] = [str(ROOT / "tools"), str(pathlib.Path(__file__).parent)]

import fake_cluster
from kubernetes_e2e import main, release


class Done:
    def __init__(self, returncode, stdout, stderr):
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr


class KubernetesE2e(unittest.TestCase):
    def run_it(self, *arguments, faults=()):
        """The command line's main function, with the calls of kubectl and helm answered here."""
        cluster = fake_cluster.FakeCluster(faults)
        self.cluster = cluster.state

        class Programs(release.Programs):
            def _run(self, command, seconds):
                return cluster.call(command)

        with tempfile.TemporaryDirectory(prefix="foreshard-e2e-") as folder:
            for name in ("kubectl", "helm"):
                (pathlib.Path(folder) / name).touch(0o755)
            out, errors = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
                status = main.main(["--image=registry/foreshard", f"--kubectl={folder}/kubectl", f"--helm={folder}/helm",
                                    "--poll-seconds=0", "--namespace=e2e", *arguments], programs=Programs)
        return Done(status, out.getvalue(), errors.getvalue())

    def test_all_of_it(self):
        done = self.run_it("--set", "tls.mode=none")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for said in ("2 servers are ready", "3 workers train", "its slot trains again after", "from what its volume keeps",
                     "a worker's pod deleted", "a worker's pod killed", "scaled from 3 to 5", "rolled one by one",
                     "the Jobs are complete", "nothing is left", "namespace e2e is gone", "All of it held."):
            self.assertIn(said, done.stdout)
        self.assertEqual(self.cluster["namespaces"], ["default"])
        self.assertIn("tls.mode=none", self.cluster["installed_with"])
        self.assertEqual(self.cluster["ended"], [("worker", False), ("worker", True), ("server", True)])

    def test_what_goes_wrong_is_said_and_cleaned_up(self):
        for fault, said in {
                "worker-stays-away": "a killed worker is replaced: not within 1 s",
                "deleted-ends-well": "a deleted worker is replaced: its pod ended with 0",
                "forced-ends-well": "a killed worker is replaced: its pod ended with 0",
                "state-lost": "its volume did not keep its state",
                "job-fails": "a Job failed: demo-foreshard-workers-0123: Pod ended with 2",
                "ends-early": "give it more --epochs",
                "left-behind": "left secret/left",
                "install-refused": "helm install: Error: values don't meet"}.items():
            with self.subTest(fault):
                done = self.run_it(*(["--wait-seconds=1"] if fault in ("worker-stays-away", "left-behind") else []), faults={fault})
                self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                self.assertIn(said, done.stderr)
                self.assertIn("diagnosis of logs", done.stderr)
                self.assertNotIn("All of it held", done.stdout)
                self.assertEqual(self.cluster["namespaces"], ["default"], "the namespace is deleted all the same")

    def test_what_does_not_happen_is_missed(self):
        for fault, said in {
                "not-training": "workers train: not within 1 s",
                "worker-lives-on": "a deleted worker is replaced: not within 1 s",
                "server-lives-on": "a killed server is replaced: not within 1 s",
                "stands-still": "a replaced server applies updates: not within 1 s",
                "not-scaled": "more workers train: not within 1 s",
                "not-rolled": "the servers are rolled: not within 1 s"}.items():
            with self.subTest(fault):
                done = self.run_it("--wait-seconds=1", faults={fault, "goes-on"})
                self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                self.assertIn(said, done.stderr)
                self.assertEqual(self.cluster["namespaces"], ["default"])

    def test_pods_that_a_lost_node_never_lets_go_do_not_count(self):
        done = self.run_it(faults={"node-gone"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_job_that_never_ends(self):
        done = self.run_it("--complete-seconds=1", faults={"goes-on"})
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("the Jobs complete: not within 1 s", done.stderr)

    def test_a_namespace_that_cannot_be_deleted_is_named(self):
        done = self.run_it(faults={"namespace-stays"})
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("remove the namespace e2e by hand", done.stderr)
        self.assertNotIn("All of it held", done.stdout)

    def test_no_cluster(self):
        done = self.run_it(faults={"no-cluster"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("connection to the server localhost:8080 was refused", done.stderr)
        self.assertIn("--context", done.stderr)

    def test_a_cluster_that_is_too_old(self):
        done = self.run_it(faults={"old-cluster"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("1.29; the chart needs 1.31", done.stderr)

    def test_the_program_itself_without_kubectl_helm_or_a_cluster(self):
        with tempfile.TemporaryDirectory(prefix="foreshard-e2e-") as folder:
            unreached = pathlib.Path(folder) / "kubectl"
            unreached.write_text("#!/bin/sh\necho 'Unable to connect to the server: no route' >&2\nexit 1\n")
            unreached.chmod(0o755)
            for arguments, said in ((["--kubectl=/nowhere/kubectl"], "install kubectl"),
                                    ([f"--kubectl={unreached}", "--helm=/nowhere/helm"], "install helm"),
                                    ([f"--kubectl={unreached}", f"--helm={unreached}"], "no route")):
                done = subprocess.run([PROGRAM, "--image=registry/foreshard", *arguments], capture_output=True, text=True, check=False,
                                      env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(said, done.stderr)
                self.assertNotIn("Traceback", done.stderr)

    def test_a_namespace_that_is_there_is_left_alone(self):
        done = self.run_it("--namespace=default")
        self.assertEqual(done.returncode, 2)
        self.assertIn("name another one", done.stderr)
        self.assertEqual(self.cluster["namespaces"], ["default"])

    def test_kept_if_so_asked(self):
        done = self.run_it("--keep")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("kubectl delete namespace e2e", done.stdout)
        self.assertEqual(self.cluster["namespaces"], ["default", "e2e"])

    def test_arguments(self):
        for wrong in ("--workers=1", "--epochs=0", "--wait-seconds=0", "--no-such"):
            with self.assertRaises(SystemExit) as ended:
                self.run_it(wrong)
            self.assertEqual(ended.exception.code, 2, wrong)
        help_text = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=False)
        self.assertEqual(help_text.returncode, 0)
        self.assertIn("Exit status", help_text.stdout)


if __name__ == "__main__":
    unittest.main()
