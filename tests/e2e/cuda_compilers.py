"""Compilers of CUDA C that a machine may have: NVIDIA's (from its packages or installed), clang with its headers."""

import functools
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

_EMPTY = "__global__ void empty(float *x) { x[threadIdx.x] = 0; }\n"


def run(*words, folder=None):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, cwd=folder)


@functools.cache
def nvcc():
    """Return nvcc's command, from NVIDIA's packages if they are installed; skip where there is none."""
    packages = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvcc"))
    found = str(packages[-1]) if packages else shutil.which("nvcc")
    if found is None:
        pytest.skip("no nvcc (pip install nvidia-cuda-nvcc)")
    if shutil.which("g++") is None:
        pytest.skip("nvcc needs a C++ compiler")
    return found, "-allow-unsupported-compiler"  # of the host: only the newest are missing


def cuda_include():
    """Return the folder of the cuda.h that belongs to `nvcc`."""
    said = run(*nvcc(), "--dryrun", "-x", "cu", "-E", os.devnull).stderr
    folders = [word.strip('"')[2:] for word in said.split() if word.strip('"').startswith("-I")]
    found = next((folder for folder in folders if (Path(folder) / "cuda.h").exists()), None)
    if found is None:
        pytest.skip("this nvcc has no cuda.h")
    return found


@functools.cache
def _clang(folder):
    """Return clang's command for CUDA files and None, or None and the reason why there is none."""
    names = ["clang", *(f"clang-{version}" for version in range(30, 13, -1))]
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        return None, "no clang"
    (folder / "empty.cu").write_text(_EMPTY)
    (folder / "curand_mtgp32_kernel.h").write_text("")  # clang includes it, of a package that is not needed
    places = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), *sorted(Path("/usr/local").glob("cuda*"))]
    places += sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*"))
    for place in filter(None, places):
        cuda = ("-x", "cuda", f"--cuda-path={place}", "-Wno-unknown-cuda-version")
        command = (found, *cuda, "-I", str(folder), "-fsyntax-only")
        if run(*command, "--cuda-gpu-arch=sm_75", folder / "empty.cu").returncode == 0:
            return command, None
    return None, "clang is older than the CUDA headers of this machine (CUDA_PATH names others)"


def clang(folder):
    """Return the words that check a CUDA file with clang; skip where it is missing, or too old for the headers."""
    command, reason = _clang(folder)
    if command is None:
        pytest.skip(reason)
    return command


STUB_OF_MODULES = r"""
#include <stdint.h>
#include <stdio.h>
CUresult cuModuleLoad(CUmodule *module, const char *path) { printf("load %s\n", path); *module = 0; return 0; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  (void)module; *function = (CUfunction)(uintptr_t)name; return 0;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  (void)attribute; printf("allow %s %d\n", (const char *)function, value); return 0;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz, unsigned shared, CUstream stream, void **arguments, void **extra) {"""
"""CUDA's driver as far as it loads modules, each function named by its text; the body of cuLaunchKernel follows."""
