"""The tree that gpu-check needs and the libraries beside it, as one tar: for a machine without
packages and without a network."""

import glob
import io
import os
import subprocess
import tarfile

# Of the tree. What of it is compiled, CMakeLists.txt says.
TREE = ("tools/gpu-check", "tools/gpu_check", "tools/local_fleet/__init__.py",
        "tools/local_fleet/command_line.py", "tools/local_fleet/die_with_parent.py",
        "tools/bench/pytorch_models.py", "tools/bench/pytorch_bert.py", "common/core",
        "kernels", "worker/models", "worker/data/random_text.h", "worker/data/random_text.cc", "tests/kernels",
        "tests/pytorch/dump_step.cc", "tests/pytorch/bert_parity_test.py", "README.md")
# Where gpu-check looks for them, in the tree.
LIBRARIES = "libraries"
_TOP = "foreshard"
_SUFFIXES = (".h", ".cc", ".cu", ".inc", ".py", ".md", ".txt", "gpu-check")


class CannotBundle(Exception):
    """Names what is missing, and where it comes from."""


def tree_files(root):
    """Paths in the tree, sorted; what a build or an editor left beside them is not counted."""
    found = []
    for name in TREE:
        path = os.path.join(root, name)
        if os.path.isfile(path):
            found.append(name)
        for folder, folders, files in os.walk(path):
            folders[:] = [f for f in folders if f != "__pycache__"]
            found += [os.path.relpath(os.path.join(folder, f), root) for f in files
                      if f.endswith(_SUFFIXES)]
    return sorted(found)


def _only(patterns, what, package):
    found = sorted({path for pattern in patterns for path in glob.glob(pattern)})
    if not found:
        raise CannotBundle(f"no {what} on this machine (Debian: {package})")
    return found


def library_files(prefix="/usr"):
    """(place below `libraries/`, file) of headers and archives."""
    include, lib = prefix + "/include", prefix + "/lib"
    files = []
    for header, package in (("absl", "libabsl-dev"), ("gtest", "libgtest-dev"),
                            ("gmock", "libgmock-dev"), ("nlohmann", "nlohmann-json3-dev"),
                            ("CLI", "libcli11-dev")):
        if not os.path.isdir(os.path.join(include, header)):
            raise CannotBundle(f"no {include}/{header} on this machine (Debian: {package})")
        for folder, _, names in os.walk(os.path.join(include, header)):
            for name in names:
                path = os.path.join(folder, name)
                files.append(("include/" + os.path.relpath(path, include), path))
    for path in _only([include + "/xxhash.h"], "xxhash.h", "libxxhash-dev") + glob.glob(
            include + "/xxh3.h"):
        files.append(("include/" + os.path.basename(path), path))
    for name, package in (("libabsl_*.a", "libabsl-dev"), ("libgtest*.a", "libgtest-dev"),
                          ("libgmock.a", "libgmock-dev")):
        for path in _only([f"{lib}/{name}", f"{lib}/*-linux-gnu/{name}"], name, package):
            # Command-line flags of abseil's would be a second main's business.
            if "libabsl_flags" not in path:
                files.append(("lib/" + os.path.basename(path), path))
    return files


def write(root, path):
    """Makes the tar; what it says of it."""
    libraries = library_files()
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True,
                              check=False).stdout.splitlines()[:1]
    note = (f"Libraries for tools/gpu-check, built by {compiler[0] if compiler else 'an unknown compiler'}.\n"
            "abseil (Apache 2.0), xxHash (BSD 2-clause), GoogleTest and CLI11 (BSD 3-clause) and JSON for\n"
            "Modern C++ (MIT), as packaged by the system that this was made on.\n").encode()
    temporary = path + ".new"
    with tarfile.open(temporary, "w") as tar:
        for name in tree_files(root):
            tar.add(os.path.join(root, name), f"{_TOP}/{name}", recursive=False)
        for place, source in libraries:
            tar.add(os.path.realpath(source), f"{_TOP}/{LIBRARIES}/{place}", recursive=False)
        info = tarfile.TarInfo(f"{_TOP}/{LIBRARIES}/ABOUT")
        info.size = len(note)
        tar.addfile(info, io.BytesIO(note))
    os.replace(temporary, path)
    size = os.path.getsize(path) / 2**20
    return (f"{path}: {size:.1f} MiB, {len(libraries)} files of libraries. On the GPU machine:\n"
            f"  tar xf {os.path.basename(path)} && {_TOP}/tools/gpu-check")
