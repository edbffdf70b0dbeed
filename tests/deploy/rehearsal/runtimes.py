"""What starts a pod's containers: podman, from an image; or, where there is none, this machine's own
programs in namespaces (network, mounts, host name, processes), on a root of their own that is read-only.

    process = runtime.start(pod, container, log)      # pods.Pod, pods.Container
    process.status()                                  # None: running; 137: SIGKILL
    process.kill(signal.SIGTERM)
    process.execute(["foreshard", "status", ...])     # as kubectl exec does: (status, output)
"""

import contextlib
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import time

import container_image

_KILLED = 128


def _status(code):
    """As a container's: 128 and the signal's number."""
    return code if code is None or code >= 0 else _KILLED - code


class _Process:
    def __init__(self, command, log):
        with open(log, "w", encoding="utf-8") as output:
            self._process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=output,
                                             stderr=subprocess.STDOUT, start_new_session=True)
        self.log = pathlib.Path(log)

    def status(self):
        return _status(self._process.poll())

    def wait(self, seconds):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.status()


class Podman:
    name = "podman"

    def __init__(self, images, roots):
        """images: archives that podman loads; roots: archives of a whole root, by the name they get."""
        self._storage = container_image.Storage()
        self._images = images
        self._roots = roots
        self._count = 0

    def __enter__(self):
        self._storage.__enter__()
        try:
            for archive in self._images:
                self._storage.load(archive)
            for name, archive in self._roots.items():
                self._storage.podman("import", "--quiet", archive, name)
        except BaseException:
            self._storage.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._storage.__exit__()

    def start(self, pod, container, log):
        self._count += 1
        name = f"{pod.name}-{container.name}-{self._count}"
        hosts, resolver = pod.resolver
        command = ["run", "--rm", "--pull=never", f"--name={name}", f"--network=ns:{pod.address.path}", f"--hostname={pod.name}",
                   "--no-hosts", f"--volume={hosts}:/etc/hosts:ro", f"--volume={resolver}:/etc/resolv.conf:ro",
                   f"--user={container.user}:{container.group}", "--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL",
                   "--security-opt=no-new-privileges", f"--memory={container.memory_bytes}", f"--workdir={container.folder}",
                   "--entrypoint=", *container_image.LIMITS]
        command += [f"--group-add={group}" for group in container.more_groups]
        command += [f"--env={key}={value}" for key, value in container.environment.items()]
        for mount in container.mounts:
            flags = "ro" if mount.read_only else "rw"
            command.append(f"--tmpfs={mount.target}:{flags},size={mount.bytes},mode=1777" if mount.source is None
                           else f"--volume={mount.source}:{mount.target}:{flags}")
        return _PodmanProcess(self._storage, name, self._storage.podman_command(*command, container.image, *container.command), log)


class _PodmanProcess(_Process):
    def __init__(self, storage, name, command, log):
        super().__init__(command, log)
        self._storage = storage
        self._container = name

    def kill(self, number):
        with contextlib.suppress(container_image.Failed):  # it has ended
            self._storage.podman("kill", f"--signal={int(number)}", self._container)

    def execute(self, command):
        done = subprocess.run([str(c) for c in self._storage.podman_command("exec", self._container, *command)], capture_output=True,
                              timeout=60, check=False)
        return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


# Arguments: root, host name, then shell commands that mount; then user, group, groups, folder and the program.
_ENTER = """
set -e
PATH=/usr/sbin:/usr/bin
root=$1 name=$2 mounts=$3; shift 3
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$root"
mkdir -p "$root"/usr "$root"/etc "$root"/proc "$root"/dev "$root"/opt/programs
for folder in bin sbin lib lib64; do ln -s usr/$folder "$root/$folder"; done
mount --bind /usr "$root/usr"
mount -o remount,bind,ro "$root/usr"
cp /etc/ld.so.cache /etc/nsswitch.conf "$root/etc"
for device in null zero random urandom; do : >"$root/dev/$device"; mount --bind /dev/$device "$root/dev/$device"; done
mount -t proc proc "$root/proc"
eval "$mounts"
mount -o remount,ro "$root"
hostname "$name"
user=$1 group=$2 groups=$3 folder=$4; shift 4
export PATH=/opt/programs:/usr/bin:/usr/sbin
exec chroot "$root" /usr/bin/env -C "$folder" setpriv --reuid="$user" --regid="$group" --groups="$groups" \
  --bounding-set=-all --inh-caps=-all --no-new-privs -- "$@"
"""


class Namespaces:
    name = "namespaces"

    def __init__(self, programs, folder):
        self._programs = programs
        self._folder = pathlib.Path(folder)
        self._count = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def start(self, pod, container, log):
        self._count += 1
        root = self._folder / f"root-{self._count}"
        root.mkdir(parents=True)
        hosts, resolver = pod.resolver
        mounts = [f"mount --bind {shlex.quote(str(self._programs))} {root}/opt/programs"]
        for source, target in ((hosts, "hosts"), (resolver, "resolv.conf")):
            mounts.append(f": >{root}/etc/{target}; mount --bind {source} {root}/etc/{target}")
        for mount in container.mounts:
            place = shlex.quote(f"{root}{mount.target}")
            mounts.append(f"mkdir -p {place}")
            mounts.append(f"mount -t tmpfs -o mode=1777,size={mount.bytes} tmpfs {place}" if mount.source is None
                          else f"mount --bind {shlex.quote(str(mount.source))} {place}")
            if mount.read_only:
                mounts.append(f"mount -o remount,bind,ro {place}")
        environment = {"PATH": "/opt/programs:/usr/bin", "HOME": "/", "HOSTNAME": pod.name, **container.environment}
        command = ["env", "-i", *(f"{k}={v}" for k, v in environment.items()),
                   "/usr/bin/nsenter", f"--net={pod.address.path}",
                   "/usr/bin/unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child",
                   "/bin/sh", "-c", _ENTER,
                   "enter", root, pod.name, "\n".join(mounts), container.user, container.group,
                   ",".join(map(str, container.more_groups)), container.folder, *container.command]
        return _NamespacesProcess(container, command, log)


class _NamespacesProcess(_Process):
    def __init__(self, container, command, log):
        super().__init__(command, log)
        self._container = container
        self._killed = False

    def status(self):
        # unshare ends as its child did, but for SIGKILL, of which it makes 1.
        status = super().status()
        return _KILLED + signal.SIGKILL if status == 1 and self._killed else status

    def _inner(self):
        """The pod's first process; None: it has ended."""
        pid = self._process.pid
        with contextlib.suppress(OSError, IndexError):
            return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return None

    def kill(self, number):
        # Just started, it may not be there yet.
        for _ in range(100):
            if self._inner() is not None or self.status() is not None:
                break
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(self._inner(), number)
            self._killed = self._killed or number == signal.SIGKILL

    def execute(self, command):
        done = subprocess.run(
            ["nsenter", f"--target={self._inner()}", "--mount", "--uts", "--pid", "--net", "--root", "--wd", "/usr/bin/env",
             "PATH=/opt/programs:/usr/bin", "setpriv", f"--reuid={self._container.user}", f"--regid={self._container.group}",
             f"--groups={','.join(map(str, self._container.more_groups))}", "--no-new-privs", "--", *command],
            capture_output=True, timeout=60, check=False)
        return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def why_no_namespaces():
    """Why pods cannot be made of namespaces here; None: they can."""
    for program in ("unshare", "nsenter", "setpriv", "ip"):
        if shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin") is None:
            return f"no program {program}"
    done = subprocess.run(["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip()


def describe(status):
    return f"signal {signal.Signals(status - _KILLED).name}" if status > _KILLED else f"status {status}"
