"""The CPU image made of the built programs, as deploy/docker/Dockerfile.cpu says, on a Debian base that
mmdebstrap makes; and podman as it runs on a machine without systemd or user namespaces.

    why = container_image.why_impossible()
    made = container_image.build(programs, folder)      # folder keeps base and image for the next time
    with container_image.Storage() as storage:
        storage.load(made.archive)
        storage.podman("run", "--rm", container_image.NAME, "foreshard", "--version")

All images and containers live in a storage of their own, which is gone afterwards.
"""

import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import found_tools

NAME = "localhost/foreshard:0.1.0"
BASE = "localhost/foreshard-base:bookworm"
PROGRAMS = ("foreshard", "foreshard-server", "foreshard-worker")
DOCKER = found_tools.SOURCE / "deploy/docker"
# Any moment will do, if it is always the same.
EPOCH = 1700000000
NEEDED = {"podman": "podman", "buildah": "buildah", "runc": "runc", "mmdebstrap": "mmdebstrap", "strip": "binutils"}
# Where root's PATH is not that of an administrator.
os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def why_impossible():
    """Why no containers can be made here; None: they can, as far as can be told without trying."""
    if os.geteuid() != 0:
        return "containers need root here"
    missing = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    return f"not installed: {', '.join(missing)} (tools/install-deploy-tools --containers)" if missing else None


class Failed(Exception):
    """A program for containers did not do what it should; its words are in it."""


class NoBase(Failed):
    """No Debian can be made here; most often no mirror is reached."""


def run(*command, timeout=300, **others):
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=timeout, check=False, **others)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command[:8]))} ...: status {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


class Storage:
    """Images and containers below a temporary folder."""

    def __init__(self):
        self._folder = None

    def __enter__(self):
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="foreshard-containers-"))
        return self

    def __exit__(self, *_):
        try:
            if (self._folder / "root").exists():
                run(*self.podman_command("rm", "--all", "--force", "--time=0"))
        finally:
            # podman leaves its folders mounted.
            mounts = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
            for place in sorted((m for m in mounts if m.startswith(f"{self._folder}/")), key=len, reverse=True):
                subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _where(self):
        return ["--root", self._folder / "root", "--runroot", self._folder / "run"]

    def podman_command(self, *arguments):
        return ["podman", *self._where(), "--tmpdir", self._folder / "tmp", "--runtime", shutil.which("runc"),
                "--cgroup-manager=cgroupfs", "--events-backend=file", *arguments]

    def podman(self, *arguments, **others):
        return run(*self.podman_command(*arguments), **others)

    def buildah(self, *arguments, **others):
        return run("buildah", *self._where(), *arguments, **others)

    def load(self, archive):
        self.podman("load", "--quiet", "--input", archive)


# Kept low, since the limits of the machine may be lower than podman's own.
LIMITS = ("--ulimit=nofile=10000:10000", "--ulimit=nproc=1000:1000")


@dataclasses.dataclass
class Made:
    archive: pathlib.Path  # of the image, as `podman load` takes it; compressed
    base: pathlib.Path     # the Debian it was made from, as `podman import` does
    fresh: bool            # made just now


def runtime_packages():
    text = (found_tools.SOURCE / "tools/install-dependencies").read_text()
    return re.search(r"^runtime=\(([^)]*)\)", text, re.M)[1].split()


def context(programs, folder):
    """What PROGRAMS=built asks for, and nothing else: the stripped programs, and scripts."""
    (folder / "stage/usr/bin").mkdir(parents=True)
    for program in PROGRAMS:
        run("strip", "-o", folder / "stage/usr/bin" / program, programs / program)
    for path in ["tools/install-dependencies", *(f"deploy/docker/{p.name}" for p in DOCKER.iterdir())]:
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(found_tools.SOURCE / path, place)


def _stamp(programs):
    digest = hashlib.sha256()
    paths = [programs / p for p in PROGRAMS] + sorted(DOCKER.iterdir()) + [found_tools.SOURCE / "tools/install-dependencies",
                                                                          pathlib.Path(__file__)]
    for path in paths:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def make_base(archive):
    """A Debian 12 with what the image takes from it; needs a Debian mirror."""
    try:
        _mmdebstrap(archive)
    except (Failed, subprocess.TimeoutExpired) as failed:
        raise NoBase(f"no Debian base: {failed}") from failed


def _mmdebstrap(archive):
    run("mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(runtime_packages())}",
        "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
        "bookworm", f"{archive}.part", "--format=tar", env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)})
    os.replace(f"{archive}.part", archive)


def bud(storage, here, dockerfile, tag, *arguments):
    storage.buildah("bud", "--isolation=chroot", "--layers=false", f"--timestamp={EPOCH}", "--build-arg", f"BASE={BASE}",
                    "--build-arg=PROGRAMS=built", "--build-arg", f"SOURCE_DATE_EPOCH={EPOCH}", *arguments,
                    "--file", here / "deploy/docker" / dockerfile, "--tag", tag, here)


def build(programs, folder):
    """Made, unless the same programs were made into one before; one process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Made(folder / "foreshard-cpu.tar", folder / "base.tar", False)
    with open(folder / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp, wanted = folder / "stamp", _stamp(programs)
        packages = folder / "base.packages"
        said = " ".join(runtime_packages())
        if not made.base.exists() or not packages.exists() or packages.read_text() != said:
            make_base(made.base)
            packages.write_text(said)
        if made.archive.exists() and stamp.exists() and stamp.read_text() == wanted:
            return made
        with Storage() as storage, tempfile.TemporaryDirectory(prefix="foreshard-context-") as here:
            here = pathlib.Path(here)
            context(programs, here)
            storage.podman("import", "--quiet", made.base, BASE)
            bud(storage, here, "Dockerfile.cpu", NAME)
            made.archive.unlink(missing_ok=True)
            storage.podman("save", "--quiet", "--format=oci-archive", "--output", made.archive, NAME)
        stamp.write_text(wanted)
        made.fresh = True
        return made


def inspect(storage, image):
    return json.loads(storage.podman("image", "inspect", image))[0]
