"""The images: Dockerfiles by our own rules, each of which is shown to fail on what it is for; every shell script by
shellcheck; the CPU image really built from the built programs, looked into, and run as a pod would.

  images_test.py --programs=build-release/bin --build=build-release
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import container_image
import found_tools
import lint_dockerfile

DOCKERFILES = sorted((found_tools.SOURCE / "deploy/docker").glob("Dockerfile.*"))
MOST_BYTES = 150_000_000
LABELS = {"title", "description", "version", "revision", "base.name"}

# Of each rule: a change to Dockerfile.cpu that it, at least, finds.
BREAK = {
    "pinned_base": lambda t: t.replace(":bookworm-slim", ":latest"),
    "stages_exist": lambda t: t.replace("--from=root", "--from=rot"),
    "not_root": lambda t: t.replace("USER 10001:10001", "USER root"),
    "labels": lambda t: t.replace("org.opencontainers.image.revision", "revision"),
    "last_stage_only_copies": lambda t: t.replace("ENV PATH", "RUN apt-get update\nENV PATH"),
    "exec_form": lambda t: t.replace('CMD ["foreshard", "--help"]', "CMD foreshard --help"),
    "one_command": lambda t: t + 'CMD ["foreshard"]\n',
    "absolute_folders": lambda t: t.replace("WORKDIR /source", "WORKDIR source"),
    "copy_not_add": lambda t: t.replace("COPY . .", "ADD . ."),
    "no_cd": lambda t: t.replace("RUN tools/build", "RUN cd /source && tools/build"),
    "no_sudo": lambda t: t.replace("RUN tools/install-dependencies\n", "RUN sudo tools/install-dependencies\n"),
    "apt_is_lean": lambda t: t.replace("RUN tools/install-dependencies\n", "RUN apt-get update && apt-get install -y g++\n"),
    "no_secrets": lambda t: t.replace("ARG SNAPSHOT=", "ARG MIRROR_TOKEN="),
    "known_instructions": lambda t: t + "MAINTAINER somebody\n",
    "ports_of_the_chart": lambda t: t.replace("EXPOSE 50051 8086 9090", "EXPOSE 50052"),
    "sources_exist": lambda t: t.replace("COPY tools/install-dependencies", "COPY tools/dependencies"),
    "pipes_fail": lambda t: t.replace("RUN tools/build", "RUN true | tools/build"),
    "variables_are_declared": lambda t: t.replace("ARG SNAPSHOT=\n", ""),
}


class Dockerfiles(unittest.TestCase):
    def test_they_keep_every_rule(self):
        self.assertEqual(len(DOCKERFILES), 2)
        for path in DOCKERFILES:
            self.assertEqual(lint_dockerfile.lint(path.read_text(), path.name), [])

    def test_each_rule_finds_what_it_is_for(self):
        self.assertEqual(set(BREAK), set(lint_dockerfile.RULES), "a rule without its fixture")
        whole = (found_tools.SOURCE / "deploy/docker/Dockerfile.cpu").read_text()
        for title, damage in BREAK.items():
            with self.subTest(title):
                self.assertNotEqual(damage(whole), whole)
                self.assertNotEqual(lint_dockerfile.lint(damage(whole), "Dockerfile.cpu", only={title}), [], f"{title} found nothing")

    def test_hadolint_finds_nothing(self):
        hadolint = found_tools.find("hadolint")
        if hadolint is None:
            self.skipTest("no hadolint: tools/install-deploy-tools")
        done = subprocess.run([hadolint, "--failure-threshold=style", *DOCKERFILES], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertNotIn("hadolint ignore", "".join(p.read_text() for p in DOCKERFILES), "nothing is silenced")
        broken = BREAK["copy_not_add"](DOCKERFILES[0].read_text())
        done = subprocess.run([hadolint, "-"], input=broken, capture_output=True, text=True, check=False)
        self.assertIn("DL3020", done.stdout, "it does find what is wrong")

    def test_both_are_labelled_alike(self):
        for path in DOCKERFILES:
            said = set(re.findall(r"org\.opencontainers\.image\.([\w.]+)=", path.read_text()))
            self.assertEqual(said, LABELS, path.name)


class Scripts(unittest.TestCase):
    """Of the whole tree: what shellcheck finds has a written reason beside it (a directive with a comment), or is mended."""

    def scripts(self):
        paths = (path for folder in (".ci", "deploy", "tools", "tests")
                 for path in sorted((found_tools.SOURCE / folder).rglob("*")) if path.is_file())
        for path in paths:
            with open(path, "rb") as file:
                first = file.readline(200)
            if path.suffix in (".sh", ".bash") or re.match(rb"#!.*\b(ba|da)?sh\b", first):
                yield path

    def test_shellcheck_finds_nothing(self):
        if shutil.which("shellcheck") is None:
            self.skipTest("no shellcheck (Debian package shellcheck)")
        paths = list(self.scripts())
        self.assertGreaterEqual(len(paths), 8, paths)
        done = subprocess.run(["shellcheck", *paths], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_shellcheck_finds_nothing_in_dockerfiles(self):
        if shutil.which("shellcheck") is None:
            self.skipTest("no shellcheck (Debian package shellcheck)")
        for path in DOCKERFILES:
            for command in lint_dockerfile.commands(path.read_text()):
                done = subprocess.run(["shellcheck", "--shell=sh", "-"], input=command + "\n", capture_output=True, text=True, check=False)
                # Variables are the build's arguments.
                found = [line for line in re.findall(r"SC\d+.*", done.stdout) if not line.startswith("SC2154")]
                self.assertEqual(found, [], command)

    def test_directives_have_reasons(self):
        for path in self.scripts():
            lines = path.read_text().splitlines()
            for number, line in enumerate(lines):
                if re.match(r"\s*# shellcheck disable=", line):
                    self.assertRegex(lines[number - 1] if number else "", r"^\s*# \w", f"{path}:{number + 1}: no reason above it")


class Built(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        why = container_image.why_impossible()
        if why:
            raise unittest.SkipTest(why)
        start = time.monotonic()
        try:
            cls.made = container_image.build(PROGRAMS, BUILD / "images")
        except container_image.NoBase as none:
            raise unittest.SkipTest(str(none)) from none
        cls.storage = container_image.Storage()
        cls.storage.__enter__()
        cls.addClassCleanup(cls.storage.__exit__)
        cls.storage.load(cls.made.archive)
        cls.details = container_image.inspect(cls.storage, container_image.NAME)
        print(f"CPU image: {cls.details['Size'] / 1e6:.1f} MB, {cls.made.archive.stat().st_size / 1e6:.1f} MB compressed; "
              f"{'made' if cls.made.fresh else 'there already'}, {time.monotonic() - start:.0f} s", flush=True)

    def run_in(self, *command, options=()):
        return subprocess.run([str(c) for c in self.storage.podman_command(
            "run", "--rm", "--pull=never", "--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges",
            *container_image.LIMITS, *options, container_image.NAME, *command)], capture_output=True, text=True, timeout=60, check=False)

    def test_it_is_small(self):
        self.assertLessEqual(self.details["Size"], MOST_BYTES)
        self.assertLess(self.made.archive.stat().st_size, self.details["Size"])

    def test_it_says_what_it_is_and_runs_as_nobody(self):
        config = self.details["Config"]
        self.assertEqual(config["User"], "10001:10001")
        self.assertEqual({k.removeprefix("org.opencontainers.image.") for k in config["Labels"]
                          if k.startswith("org.opencontainers.image.")}, LABELS)
        self.assertEqual(set(config["ExposedPorts"]), {"50051/tcp", "8086/tcp", "9090/tcp"})

    def test_its_programs_run_locked_in(self):
        for program in container_image.PROGRAMS:
            done = self.run_in(program, "--version")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("0.1.0", done.stdout)
        self.assertIn("Subcommands", self.run_in().stdout, "without a command it says what there is")

    def test_it_trains(self):
        """A whole job in one container: servers, workers and evaluator as its processes."""
        with tempfile.TemporaryDirectory(prefix="foreshard-image-") as folder:
            job = pathlib.Path(folder) / "job.textproto"
            job.write_text('name: "in_a_container" seed: 1 model { name: "quadratic" elements: 4096 }\n'
                           'data { format: "synthetic" examples: 1280 } training { epochs: 1 batch_size: 64 workers: 2 }\n'
                           'update { rule: "dana_slim" momentum: 0.9 } schedule { learning_rate: 0.01 }\n')
            pathlib.Path(folder).chmod(0o755)
            done = self.run_in("foreshard", "run", "--job=/job.textproto", "--servers=2", "--workers=2", "--results=/tmp/results",
                               options=(f"--volume={job}:/job.textproto:ro", "--tmpfs=/tmp:rw,mode=1777"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_it_holds_what_programs_load_and_little_else(self):
        with tempfile.TemporaryDirectory(prefix="foreshard-image-") as folder:
            archive = pathlib.Path(folder) / "root.tar"
            name = self.storage.podman("create", "--pull=never", container_image.NAME).strip()
            self.storage.podman("export", "--output", archive, name)
            self.storage.podman("rm", name)
            with tarfile.open(archive) as root:
                entries = {e.name: e for e in root.getmembers()}
                packages = [n for n in entries if n.startswith("var/lib/dpkg/status.d/") and entries[n].isfile()]
                said = root.extractfile(packages[0]).read().decode()
        self.assertEqual({n.removeprefix("usr/bin/") for n in entries if n.startswith("usr/bin/")}, {*container_image.PROGRAMS, "tar"})
        for absent in ("bin/sh", "usr/bin/apt-get", "usr/bin/dpkg", "usr/share/man", "root"):
            self.assertNotIn(absent, entries)
        self.assertIn("Status: install ok installed", said, "scanners find the packages' versions")
        for package in packages:
            self.assertIn(f"usr/share/doc/{pathlib.Path(package).name}/copyright", entries)
        writable = [e.name for e in entries.values() if e.isdir() and e.mode & 0o002]
        self.assertEqual(writable, ["tmp"])
        self.assertEqual([e.name for e in entries.values() if e.mode & 0o6000], [], "no set-uid programs")
        self.assertEqual(entries["var/lib/foreshard"].uid, 10001)
        for program in container_image.PROGRAMS:
            self.assertLess(entries[f"usr/bin/{program}"].size, (PROGRAMS / program).stat().st_size, "stripped")

    def test_the_same_programs_make_the_same_image(self):
        """And the CUDA image's last stage, on Debian for NVIDIA's, takes the libraries from their own folder."""
        with container_image.Storage() as storage, tempfile.TemporaryDirectory(prefix="foreshard-context-") as here:
            here = pathlib.Path(here)
            container_image.context(PROGRAMS, here)
            storage.podman("import", "--quiet", self.made.base, container_image.BASE)
            container_image.bud(storage, here, "Dockerfile.cpu", "localhost/again:1")
            again = container_image.inspect(storage, "localhost/again:1")
            self.assertEqual(again["RootFS"], self.details["RootFS"])
            self.assertEqual(again["Id"], self.details["Id"])
            container_image.bud(storage, here, "Dockerfile.cuda", "localhost/cuda:1", f"--build-arg=CUDA_RUNTIME={container_image.BASE}")
            details = container_image.inspect(storage, "localhost/cuda:1")
            self.assertEqual(details["Config"]["User"], "10001:10001")
            mapped = storage.podman("run", "--rm", "--pull=never", "--network=none", *container_image.LIMITS, "--env=LD_TRACE_LOADED_OBJECTS=1",
                                    "localhost/cuda:1", "foreshard-worker")
            self.assertRegex(mapped, r"libgrpc\.so\S* => /opt/foreshard/lib/libgrpc\.so")
            self.assertRegex(mapped, r"libc\.so\.6 => /(usr/)?lib/")
            self.assertNotIn("not found", mapped)
            self.assertIn("0.1.0", storage.podman("run", "--rm", "--pull=never", "--network=none", *container_image.LIMITS,
                                                  "localhost/cuda:1", "foreshard-worker", "--version"))


    def test_where_nvidia_s_base_says_its_libraries_lie_is_kept(self):
        text = (found_tools.SOURCE / "deploy/docker/Dockerfile.cuda").read_text()
        own = re.search(r"^ENV LD_LIBRARY_PATH=.*$", text, re.M)[0]
        with container_image.Storage() as storage, tempfile.TemporaryDirectory(prefix="foreshard-path-") as here:
            here = pathlib.Path(here)
            for base, kept in (("", ""), ("ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64", ":/usr/local/nvidia/lib:/usr/local/nvidia/lib64")):
                (here / "Dockerfile").write_text("\n".join(["FROM scratch AS base", base, "FROM base", own]) + "\n")
                storage.buildah("bud", "--isolation=chroot", "--layers=false", "--tag=localhost/path:1", "--file", here / "Dockerfile", here)
                self.assertIn(f"LD_LIBRARY_PATH=/opt/foreshard/lib{kept}", container_image.inspect(storage, "localhost/path:1")["Config"]["Env"])

    def test_toolkit_and_cudnn_are_taken_from_where_nvidia_s_packages_put_them(self):
        """Of Dockerfile.cuda what takes them, from a stand-in of the image for developers: a folder with links inside, and
        headers that are links of update-alternatives to where nothing is in another image."""
        text = (found_tools.SOURCE / "deploy/docker/Dockerfile.cuda").read_text()
        taken = re.findall(r"^COPY --from=toolkit .*$", text, re.M)
        self.assertEqual(len(taken), 2)
        with container_image.Storage() as storage, tempfile.TemporaryDirectory(prefix="foreshard-toolkit-") as here:
            here = pathlib.Path(here)
            root = here / "root"
            files = {"usr/local/cuda-13.0/targets/x86_64-linux/include/cuda.h": "cuda", "usr/local/cuda-13.0/bin/nvcc": "nvcc",
                     "usr/include/x86_64-linux-gnu/cudnn_v9.h": "cudnn", "usr/include/x86_64-linux-gnu/cudnn_version_v9.h": "version"}
            links = {"usr/local/cuda-13.0/include": "targets/x86_64-linux/include",
                     "usr/include/x86_64-linux-gnu/cudnn.h": "/etc/alternatives/libcudnn", "etc/alternatives/libcudnn":
                     "/usr/include/x86_64-linux-gnu/cudnn_v9.h", "usr/include/x86_64-linux-gnu/cudnn_version.h": "/etc/alternatives/cudnn_version_h",
                     "etc/alternatives/cudnn_version_h": "/usr/include/x86_64-linux-gnu/cudnn_version_v9.h"}
            for name, content in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content)
            for name, target in links.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).symlink_to(target)
            container_image.run("tar", "-C", root, "-cf", here / "toolkit.tar", ".")
            storage.podman("import", "--quiet", here / "toolkit.tar", "localhost/toolkit:1")
            (here / "Dockerfile").write_text("\n".join(
                ["FROM localhost/toolkit:1 AS toolkit", "FROM scratch", re.search(r"^ARG CUDA_RELEASE=.*$", text, re.M)[0], *taken]) + "\n")
            storage.buildah("bud", "--isolation=chroot", "--layers=false", "--tag=localhost/taken:1", "--file", here / "Dockerfile", here)
            name = storage.podman("create", "--pull=never", "localhost/taken:1", "nothing").strip()
            storage.podman("export", "--output", here / "taken.tar", name)
            storage.podman("rm", name)
            with tarfile.open(here / "taken.tar") as archive:
                for path, content in {"bin/nvcc": "nvcc", "targets/x86_64-linux/include/cuda.h": "cuda",
                                      "targets/x86_64-linux/include/cudnn.h": "cudnn", "targets/x86_64-linux/include/cudnn_version.h": "version"}.items():
                    self.assertEqual(archive.extractfile(f"usr/local/cuda/{path}").read().decode(), content)


class Refused(unittest.TestCase):
    def script(self, name, *arguments):
        return subprocess.run([found_tools.SOURCE / "deploy/docker" / name, *arguments], capture_output=True, text=True, check=False)

    def test_a_moment_that_is_none(self):
        done = self.script("pin-suite", "yesterday")
        self.assertEqual(done.returncode, 2)
        self.assertIn("20250520T000000Z", done.stderr)

    def test_a_root_without_programs(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.script("make-root", folder)
        self.assertEqual(done.returncode, 2)
        self.assertIn("programs", done.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True, type=pathlib.Path)
    parser.add_argument("--build", required=True, type=pathlib.Path, help="the image is kept below this, in images/")
    arguments, rest = parser.parse_known_args()
    PROGRAMS, BUILD = arguments.programs.resolve(), arguments.build.resolve()
    result = unittest.main(argv=[sys.argv[0], *rest], exit=False).result
    if result.wasSuccessful() and result.skipped:
        found_tools.skip("; ".join(sorted({why for _, why in result.skipped})))
    sys.exit(not result.wasSuccessful())
