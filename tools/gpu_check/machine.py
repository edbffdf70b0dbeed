"""What the machine has of what is needed: compiler, driver and GPU, PyTorch, the sanitizer."""

import glob
import json
import os
import shutil
import subprocess

from local_fleet.die_with_parent import die_with_parent

_TORCH_SECONDS = 240  # its first import, from a cold disk
_NVCC = "/usr/local/cuda/bin/nvcc"
_TORCH = """
import glob, json, os, sys
import torch
site = os.path.dirname(os.path.dirname(torch.__file__))
gpu = None
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    gpu = {"name": p.name, "capability": f"{p.major}.{p.minor}", "memory_mib": str(p.total_memory >> 20), "driver": "unknown"}
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda,
    "sees_gpu": gpu is not None, "gpu": gpu,
    "compiles": hasattr(torch, "compile"),
    "include": glob.glob(site + "/nvidia/*/include"),
    "lib": glob.glob(site + "/nvidia/*/lib") + [os.path.dirname(torch.__file__) + "/lib"]}))
"""


def output_of(command, timeout=60):
    """What it says and None, or None and why it said nothing."""
    parent = os.getpid()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False,
                              preexec_fn=lambda: die_with_parent(parent))
    except FileNotFoundError:
        return None, f"there is no {command[0]}"
    except subprocess.TimeoutExpired:
        return None, f"{command[0]} did not end within {timeout} s"
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        return None, f"{os.path.basename(command[0])} ended with {done.returncode}: {last}"
    return done.stdout, None


class Machine:
    """Looked at once."""

    def __init__(self, python):
        self.python = python
        self.nvcc = shutil.which("nvcc") or (_NVCC if os.access(_NVCC, os.X_OK) else None)
        self.cmake = shutil.which("cmake")
        self.ninja = shutil.which("ninja")
        self.toolkit = self._toolkit()
        self.gpu, self.no_gpu = self._gpu()
        self.torch, self.no_torch = self._torch()
        if self.gpu is None and self.torch and self.torch["gpu"]:
            self.gpu, self.no_gpu = self.torch["gpu"], None  # a machine without nvidia-smi
        self.sanitizer = shutil.which("compute-sanitizer")
        if self.sanitizer is None and self.nvcc:
            beside = os.path.join(os.path.dirname(self.nvcc), "compute-sanitizer")
            self.sanitizer = beside if os.access(beside, os.X_OK) else None

    def missing(self):
        """Why nothing can be built, or None."""
        for what, path in (("nvcc", self.nvcc), ("cmake", self.cmake)):
            if path is None:
                return f"there is no {what} on this machine: it must be on the PATH"
        return None

    def _toolkit(self):
        if self.nvcc is None:
            return None
        said, _ = output_of([self.nvcc, "--version"])
        for line in (said or "").splitlines():
            if "release" in line:
                return line.split("release")[1].split(",")[0].strip()
        return None

    @staticmethod
    def _gpu():
        fields = "name,compute_cap,memory.total,driver_version"
        said, why = output_of(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"])
        if said is None:
            return None, f"no GPU: {why}"
        lines = [line for line in said.splitlines() if line.strip()]
        if not lines:
            return None, "no GPU: nvidia-smi shows none"
        values = [value.strip() for value in lines[0].split(",")]
        if len(values) != 4:
            return None, f"no GPU: nvidia-smi says '{lines[0]}'"
        return dict(zip(("name", "capability", "memory_mib", "driver"), values)), None

    def _torch(self):
        said, why = output_of([self.python, "-c", _TORCH], timeout=_TORCH_SECONDS)
        if said is None:
            return None, f"no PyTorch in {self.python}: {why} (--python names another)"
        try:
            return json.loads(said.splitlines()[-1]), None
        except (ValueError, IndexError):
            return None, f"no PyTorch in {self.python}: it said '{said.strip()[-80:]}'"

    def no_cuda_in_torch(self):
        """Why PyTorch cannot be compared with, or None."""
        if self.torch is None:
            return self.no_torch
        return None if self.torch["sees_gpu"] else f"PyTorch {self.torch['version']} sees no GPU"

    def architecture(self):
        """For CMAKE_CUDA_ARCHITECTURES."""
        return self.gpu["capability"].replace(".", "") if self.gpu else "75"

    def headers(self):
        """PyTorch's folders with headers of NVIDIA's libraries, which CMake would not look into."""
        return [folder for folder in (self.torch or {}).get("include", [])
                if any(os.path.exists(os.path.join(folder, name)) for name in ("cudnn.h", "cublasLt.h"))]

    def library_path(self):
        """LD_LIBRARY_PATH for our programs: PyTorch's cuDNN and cuBLAS behind what is set."""
        folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
        for folder in (self.torch or {}).get("lib", []):
            if glob.glob(os.path.join(folder, "libcudnn.so.9*")) or glob.glob(
                    os.path.join(folder, "libcublasLt.so*")) or glob.glob(
                    os.path.join(folder, "libnvrtc.so*")):
                folders.append(folder)
        return ":".join(folders)

    def facts(self):
        """For the results."""
        return {"gpu": self.gpu, "no_gpu": self.no_gpu, "toolkit": self.toolkit,
                "pytorch": self.torch and {k: self.torch[k] for k in ("version", "cuda", "sees_gpu")},
                "no_pytorch": self.no_torch, "compute_sanitizer": self.sanitizer is not None}
