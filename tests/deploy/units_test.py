"""systemd units and the installed tree.

  units_test.py --programs=build-release/bin --build=build-release
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import found_tools
import real_fleet
import server_bounds

JOB = """
name: "on_metal" seed: 1
model { name: "quadratic" elements: 4096 }
data { format: "synthetic" examples: 6400 }
training { epochs: 1 batch_size: 64 workers: 1 }
update { rule: "dana_slim" momentum: 0.9 }
schedule { learning_rate: 0.01 }
servers { shards: 1 }
"""
UNITS = found_tools.SOURCE / "deploy/systemd"
# Beside daemons that this machine may really have.
OFFSET = 20000
HARDENED = ("NoNewPrivileges=yes", "CapabilityBoundingSet=", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes",
            "ProtectKernelModules=yes", "ProtectKernelTunables=yes", "ProtectControlGroups=yes", "RestrictSUIDSGID=yes",
            "RestrictNamespaces=yes", "SystemCallFilter=@system-service", "User=foreshard", "UMask=0027")


def flags_of(program):
    text = subprocess.run([PROGRAMS / program, "--help"], capture_output=True, text=True).stdout
    return set(re.findall(r"(--[a-z][a-z-]*)", text))


class Units(unittest.TestCase):
    def test_they_are_hardened_and_do_not_repeat_what_cannot_succeed(self):
        for path in UNITS.glob("*.service"):
            lines = path.read_text().splitlines()
            for line in HARDENED:
                self.assertIn(line, lines, path.name)
            self.assertTrue(any(re.match(r"RestartPreventExitStatus=.*\b2\b", l) for l in lines), path.name)

    def test_a_worker_that_was_told_to_end_has_not_failed(self):
        for path in UNITS.glob("*.service"):
            self.assertEqual("SuccessExitStatus=143" in path.read_text().splitlines(), "server" not in path.name, path.name)

    def test_their_command_lines_are_the_programs_(self):
        for path in UNITS.glob("*.service"):
            command = re.search(r"^ExecStart=/usr/bin/(\S+) (.*)$", path.read_text(), re.M)
            have = flags_of(command[1])
            for word in command[2].split():
                if word.startswith("--"):
                    self.assertIn(word.partition("=")[0], have, path.name)
            settings = (UNITS / re.search(r"^EnvironmentFile=/etc/foreshard/(\S+)$", path.read_text(), re.M)[1]).read_text()
            for variable in re.findall(r"\$\{?(FORESHARD_\w+)", command[2]):
                self.assertRegex(settings, rf"(?m)^{variable}=", f"{path.name}: {variable} is set nowhere")
            for flag in re.findall(r"(?<![\w-])--[a-z-]+", settings.replace("`tools/make-certificates`; --insecure", "")):
                self.assertIn(flag, have, f"{path.name}'s settings")

    def test_the_grace_period_is_longer_than_the_drain_and_the_last_checkpoint(self):
        unit = (UNITS / "foreshard-server@.service").read_text()
        stop = int(re.search(r"TimeoutStopSec=(\d+)s", unit)[1])
        self.assertIn("--state-directory=", unit)
        self.assertGreaterEqual(stop, server_bounds.stop_seconds(state=True) + server_bounds.MARGIN_SECONDS)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="foreshard-install-")
        cls.root = pathlib.Path(cls.folder.name)
        done = subprocess.run(["cmake", "--install", BUILD, "--prefix", "/usr"], capture_output=True, text=True,
                              env={**os.environ, "DESTDIR": str(cls.root)})
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_files_lie_where_they_belong(self):
        for path in ("bin/foreshard", "bin/foreshard-server", "bin/foreshard-worker", "bin/foreshard-make-certificates",
                     "share/foreshard/jobs/fashion_mnist.textproto", "share/foreshard/prometheus/rules.yaml",
                     "share/foreshard/grafana/foreshard-fleet.json", "lib/systemd/system/foreshard-server@.service",
                     "lib/sysusers.d/foreshard.conf", "lib/tmpfiles.d/foreshard.conf", "share/foreshard/systemd/server.env",
                     "share/bash-completion/completions/foreshard"):
            self.assertTrue((self.root / "usr" / path).is_file(), path)
        self.assertFalse(list(self.root.glob("usr/**/*.svg")))

    def test_an_installed_program_runs(self):
        done = subprocess.run([self.root / "usr/bin/foreshard-server", "--version"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_systemd_takes_the_units(self):
        analyze = found_tools.find("systemd-analyze")
        if analyze is None:
            self.skipTest("no systemd-analyze: apt-get install systemd")
        system = self.root / "usr/lib/systemd/system"
        for unit in ("foreshard-server@0.service", "foreshard-worker@0.service", "foreshard-evaluator.service"):
            template = system / unit.replace("@0", "@")
            text = template.read_text().replace("/usr/bin/", f"{self.root}/usr/bin/")
            with tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder) / unit
                file.write_text(text)
                done = subprocess.run([analyze, "verify", "--man=no", "--recursive-errors=no", file], capture_output=True, text=True)
                said = [l for l in done.stderr.splitlines() if "foreshard" in l]
                self.assertEqual(said, [], unit)
                self.assertEqual(done.returncode, 0, done.stderr)

    def command(self, unit, instance, places, settings):
        """What systemd would start: ExecStart with the installed settings, of which the commented trust is taken, and `settings`
        goes before; files elsewhere by `places`."""
        text = (self.root / "usr/lib/systemd/system" / unit).read_text()
        file = re.search(r"^EnvironmentFile=/etc/foreshard/(\S+)$", text, re.M)[1]
        lines = (self.root / "usr/share/foreshard/systemd" / file).read_text().splitlines()
        have = dict(line.split("=", 1) for line in lines if re.match(r"FORESHARD_\w+=", line))
        have["FORESHARD_TRUST"] = next(line for line in lines if line.startswith("# FORESHARD_TRUST=")).split("=", 1)[1]
        have.update(settings)
        words = []
        for word in shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M)[1]):
            if re.fullmatch(r"\$\w+", word):
                words += have[word[1:]].split()
            else:
                words.append(re.sub(r"\$\{(\w+)\}", lambda m: have[m[1]], word).replace("%i", instance).replace("%H", "host"))
        for old, new in {"/usr/bin": self.root / "usr/bin", **places}.items():
            words = [word.replace(old, str(new)) for word in words]
        return words

    def test_what_the_units_start_trains_with_the_installed_settings_and_certificates(self):
        with tempfile.TemporaryDirectory(prefix="foreshard-metal-") as folder:
            folder = pathlib.Path(folder)
            (folder / "job.textproto").write_text(JOB)
            made = subprocess.run([self.root / "usr/bin/foreshard-make-certificates", "--server=localhost", "--worker=gamma", folder / "trust"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(made.returncode, 0, made.stderr)
            places = {"/etc/foreshard/job.textproto": folder / "job.textproto", "/var/lib/foreshard": folder / "state"}
            ready = folder / "ready"
            (folder / "state").mkdir()
            processes = []

            def start(title, command):
                with open(folder / f"{title}.log", "w") as log:
                    processes.append(subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT))
                return processes[-1]

            try:
                server = start("server", [*self.command(
                    "foreshard-server@.service", "0", {**places, "/etc/foreshard/trust": folder / "trust/localhost"},
                    {"FORESHARD_LISTEN": "localhost:0", "FORESHARD_METRICS_LISTEN": "127.0.0.1:0"}), f"--ready-file={ready}"])
                real_fleet.wait_until(lambda: ready.exists() or server.poll() is not None, "the server is ready")
                self.assertTrue(ready.exists(), (folder / "server.log").read_text())
                port = json.loads(ready.read_text())["address"].rpartition(":")[2]
                worker = start("worker", self.command(
                    "foreshard-worker@.service", "0", {**places, "/etc/foreshard/trust": folder / "trust/gamma"},
                    {"FORESHARD_SERVERS": f"localhost:{port}", "FORESHARD_DEVICE": "cpu"}))
                evaluator = start("evaluator", self.command(
                    "foreshard-evaluator.service", "", {**places, "/etc/foreshard/trust": folder / "trust/gamma"},
                    {"FORESHARD_SERVERS": f"localhost:{port}"}))
                self.assertEqual(worker.wait(timeout=90), 0, (folder / "worker.log").read_text())
                self.assertEqual(evaluator.wait(timeout=90), 0, (folder / "evaluator.log").read_text())
                server.terminate()
                self.assertEqual(server.wait(timeout=60), 0, (folder / "server.log").read_text())
                self.assertTrue(list((folder / "state/server-0").glob("checkpoint.*")), "its last checkpoint")
            finally:
                real_fleet.end(processes)

    def test_the_guide_s_daemons_run_beside_each_other_and_are_all_scraped(self):
        """Every unit that the guide starts, on its machine (an address of loopback each) and with its settings; ports moved by OFFSET."""
        text = (found_tools.SOURCE / "deploy/README.md").read_text()
        text = text[text.index("## From zero to a training cluster: machines with systemd"):text.index("## Watching it")]
        settings = {}  # by (host, file)
        for hosts, file, lines in re.findall(r"^\| ([\w, ]+) \| `([\w-]+\.env)` \| (.*) \|$", text, re.M):
            for host in hosts.split(", "):
                settings[host, file] = dict(line.split("=", 1) for line in re.findall(r"`(FORESHARD_\w+=[^`]*)`", lines))
        servers = re.search(r"`FORESHARD_SERVERS=([\w:,]+)`", text)[1]
        started = [(host, unit) for host, units in re.findall(r"(\w+)\$ +systemctl enable --now ((?:foreshard-[\w@-]+ ?)+)", text)
                   for unit in units.split()]
        second = dict(re.findall(r"`(FORESHARD_METRICS_LISTEN)=([\d.:]+)`, for a second one of delta", text))
        settings["delta", "worker-2.env"] = second
        self.assertEqual(len(started), 5, started)
        started.append(("delta", "foreshard-worker@2"))
        places = {host: f"127.0.77.{number + 1}" for number, host in enumerate(sorted({host for host, _ in started}))}

        def moved(address):
            host, _, port = address.rpartition(":")
            return f"{host}:{int(port) + OFFSET}"

        def own(host, address):
            return moved(address.replace("0.0.0.0", places[host]))

        with tempfile.TemporaryDirectory(prefix="foreshard-guide-") as folder:
            folder = pathlib.Path(folder)
            (folder / "job.textproto").write_text(JOB.replace("shards: 1", "shards: 2").replace("examples: 6400", "examples: 640000")
                                                  .replace("epochs: 1", "epochs: 1000"))
            names = [f"--server={places[host]}" for host in ("alpha", "beta")] + ["--worker=gamma", "--worker=delta"]
            made = subprocess.run([self.root / "usr/bin/foreshard-make-certificates", *names, folder / "trust"], capture_output=True, text=True,
                                  check=False)
            self.assertEqual(made.returncode, 0, made.stderr)
            processes, metrics = {}, {}
            try:
                for host, unit in started:
                    title, _, instance = unit.removeprefix("foreshard-").partition("@")
                    file = f"{title}-{instance}.env" if title == "worker" else f"{title}.env"
                    have = settings[host, file]
                    metrics[host, unit] = have["FORESHARD_METRICS_LISTEN"]
                    given = {key: own(host, value) for key, value in have.items()}
                    if title != "server":
                        given["FORESHARD_SERVERS"] = ",".join(moved(a.replace(a.partition(":")[0], places[a.partition(":")[0]]))
                                                              for a in servers.split(","))
                        given["FORESHARD_DEVICE"] = "cpu"
                    state = folder / f"state-{host}"
                    state.mkdir(exist_ok=True)
                    trust = folder / "trust" / (places[host] if title == "server" else host)
                    command = self.command(f"foreshard-{title}@.service" if instance else f"foreshard-{title}.service", instance, {
                        "/etc/foreshard/job.textproto": folder / "job.textproto", "/var/lib/foreshard": state, "/etc/foreshard/trust": trust}, given)
                    with open(folder / f"{host}-{unit}.log", "w") as log:
                        processes[host, unit] = subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT)

                def all_answer():
                    for (host, unit), process in processes.items():
                        self.assertIsNone(process.poll(), f"{host}: {unit}: {(folder / f'{host}-{unit}.log').read_text()}")
                    return all("foreshard_build_info" in real_fleet.fetch(own(host, address)) for (host, _), address in metrics.items())

                real_fleet.wait_until(all_answer, "every daemon's metrics answer")
            finally:
                real_fleet.end(processes.values())
        self.assertEqual({f"{host}:{address.rpartition(':')[2]}" for (host, unit), address in metrics.items() if unit != "foreshard-worker@2"},
                         set(re.search(r"targets: \[(.*)\]", (found_tools.SOURCE / "deploy/prometheus/prometheus.yml").read_text())[1].split(", ")))

    def test_completion_offers_what_the_programs_have(self):
        script = self.root / "usr/share/bash-completion/completions/foreshard"

        def complete(*words):
            code = ("source " + str(script) + "; COMP_WORDS=(" + " ".join(f"'{w}'" for w in words) +
                    f"); COMP_CWORD={len(words) - 1}; _foreshard; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
            return subprocess.run(["bash", "-c", code], capture_output=True, text=True).stdout.split()

        bin_folder = self.root / "usr/bin"
        self.assertIn("status", complete(f"{bin_folder}/foreshard", "st"))
        self.assertEqual(complete(f"{bin_folder}/foreshard", "to"), ["top"])
        self.assertIn("--servers", complete(f"{bin_folder}/foreshard", "status", "--se"))
        self.assertEqual(complete(f"{bin_folder}/foreshard", "top", "--so"), ["--sort"])
        self.assertEqual(complete(f"{bin_folder}/foreshard-server", "--sha"), ["--shard"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True, type=pathlib.Path)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    PROGRAMS, BUILD = arguments.programs.resolve(), arguments.build.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
