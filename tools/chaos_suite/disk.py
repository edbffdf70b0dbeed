"""A small disk that can be filled up: a tmpfs in a mount namespace of this process, so that
nothing of it is left when the process ends, however it ends."""

import contextlib
import ctypes
import errno
import os
import subprocess

_CLONE_NEWNS = 0x00020000
_MEBIBYTES = 96
_FILLER = ".filler"

_libc = ctypes.CDLL(None, use_errno=True)


class DiskError(Exception):
    """The kernel refused."""


def own_mounts():
    """From now on mounts of this process are its own and its children's. DiskError."""
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise DiskError(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
    _run("mount", "--make-rslave", "/")


def _run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, start_new_session=True, check=False)
    if done.returncode != 0:
        raise DiskError(f"'{' '.join(command)}' failed: {' '.join(done.stdout.split())}")


def why_impossible():
    """Why no disk can be mounted here; None where it can. Tries it, in a child."""
    child = os.fork()
    if child == 0:
        try:
            own_mounts()
            _run("mount", "-t", "tmpfs", "tmpfs", "/mnt")
            os._exit(0)
        except (DiskError, OSError):
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return None if status == 0 else "mounting a tmpfs needs root (CAP_SYS_ADMIN)"


class SmallDisk:
    """Mounted on entry over a folder, which is made; unmounted on exit."""

    def __init__(self, folder):
        self._folder = folder
        self._filler = os.path.join(folder, _FILLER)

    def __enter__(self):
        os.makedirs(self._folder, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={_MEBIBYTES}m", "foreshard-chaos", self._folder)
        return self

    def __exit__(self, *_):
        # Lazily: a process that does not die must not keep the others' folders.
        _run("umount", "-l", self._folder)

    def fill(self):
        """Until nothing fits any more; again where something has been freed meanwhile."""
        file = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # A large piece may not fit where a page still does.
            for size in (1 << 20, 4096):
                piece = bytes(size)
                self._write_all(file, piece)
        finally:
            os.close(file)

    @staticmethod
    def _write_all(file, piece):
        while True:
            try:
                os.write(file, piece)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    return
                raise

    def free(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._filler)
