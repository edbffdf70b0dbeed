"""systemd units and the installed tree.

  units_test.py --programs=build-release/bin --build=build-release
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import found_tools

UNITS = found_tools.SOURCE / "deploy/systemd"
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

    def test_the_grace_period_is_longer_than_the_drain(self):
        main = (found_tools.SOURCE / "server/main.cc").read_text()
        bound = int(re.search(r"kShutdownBound\{(\d+)\}", main)[1])
        stop = int(re.search(r"TimeoutStopSec=(\d+)s", (UNITS / "foreshard-server@.service").read_text())[1])
        self.assertGreater(stop, bound)


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

    def test_completion_offers_what_the_programs_have(self):
        script = self.root / "usr/share/bash-completion/completions/foreshard"

        def complete(*words):
            code = ("source " + str(script) + "; COMP_WORDS=(" + " ".join(f"'{w}'" for w in words) +
                    f"); COMP_CWORD={len(words) - 1}; _foreshard; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
            return subprocess.run(["bash", "-c", code], capture_output=True, text=True).stdout.split()

        bin_folder = self.root / "usr/bin"
        self.assertIn("status", complete(f"{bin_folder}/foreshard", "st"))
        self.assertIn("--servers", complete(f"{bin_folder}/foreshard", "status", "--se"))
        self.assertEqual(complete(f"{bin_folder}/foreshard-server", "--sha"), ["--shard"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True, type=pathlib.Path)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    PROGRAMS, BUILD = arguments.programs.resolve(), arguments.build.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
