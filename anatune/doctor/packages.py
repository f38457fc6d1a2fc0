"""Checks of installed packages against anatune's requirements by their metadata, without importing them."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import NamedTuple

from anatune.requirements import Need
from anatune.version import __version__


class Serves(NamedTuple):
    """The purpose of an extra."""

    what: str
    """A short description for reports."""
    commands: str


EXTRAS = {
    "tvm": Serves("kernels for CPUs and GPUs", "tune, compile, run, export, hw calibrate, anatune.build, verify"),
    "cuda": Serves("kernels for NVIDIA GPUs, no GPU needed", "plan --compile, tune, compile and export for GPUs"),
    "hip": Serves("compiled networks on AMD GPUs", "run, compile --check, hw detect"),
    "pycuda": Serves("launches on NVIDIA GPUs instead of cuda-bindings", "tune --backend pycuda, run, hw calibrate"),
    "learn": Serves("learned corrections", "plan --model, tune, records train"),
    "onnx": Serves("ONNX models", "compile MODEL.onnx"),
    "onnxruntime": Serves("nodes of ONNX models that cannot be read", "compile --fallback onnxruntime"),
    "report": Serves("reports as pages", "--html, anatune.plots"),
    "cluster": Serves("many machines", "worker, cluster, tune --cluster"),
    "boards": Serves("boards behind TVM's tracker", "tune --tracker, hw detect --tracker"),
    "postgres": Serves("records on a PostgreSQL server", "--records postgresql://..."),
    "triton": Serves("GPU kernels on matrix units", "--template triton, anatune.adapters.triton"),
    "kernel-tuner": Serves("pruning for Kernel Tuner", "prune --for kernel-tuner, anatune.adapters.kernel_tuner"),
    "metaschedule": Serves("TVM's MetaSchedule", "prune --for metaschedule, anatune.adapters.metaschedule"),
    "optuna": Serves("pruning for Optuna", "its studies (anatune.adapters.optuna)"),
}
"""Extra -> its purpose; those for developers (dev, docs) are left out."""

_MODULES = {
    "apache-tvm": "tvm",
    "apache-tvm-ffi": "tvm_ffi",
    "cuda-bindings": "cuda.bindings.nvrtc",
    "hip-python": "hip",
    "nvidia-cuda-nvrtc-cu12": "",  # a library; `doctor.trials` loads it
    "nvidia-ml-py": "pynvml",
    "scikit-learn": "sklearn",
}
_WHY = {
    "apache-tvm-ffi": "0.1.15.post2 crashes in tvm.ir.save_json",
    "cuda-bindings": "the compiler of 13 has dropped sm_70 and older",
    "nvidia-cuda-nvrtc-cu12": "the compiler of 13 has dropped sm_70 and older",
}
"""Package -> reason for its pinned version."""

_TOLD = (
    *("numpy", "numba", "llvmlite", "scipy", "msgspec", "pandas", "SQLAlchemy", "apache-tvm", "apache-tvm-ffi"),
    *(
        "cuda-bindings",
        "nvidia-cuda-nvrtc-cu12",
        "hip-python",
        "pycuda",
        "lightgbm",
        "scikit-learn",
        "onnx",
        "onnxruntime",
        "torch",
        "triton",
        "optuna",
    ),
    *("kernel-tuner", "distributed", "psycopg", "plotly"),
)
"""Packages whose versions `anatune --version` prints."""


def version_of(name: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed or its metadata are damaged."""
    try:
        return metadata.version(name) or None
    except (metadata.PackageNotFoundError, KeyError, TypeError, OSError):
        return None


def version_lines() -> list[str]:
    """Return lines with the versions of anatune, Python, the system and the installed packages that matter."""
    lines = [
        f"anatune {__version__}",
        f"Python {platform.python_version()} on {platform.system()} {platform.machine()}",
    ]
    installed = {name: version_of(name) for name in _TOLD}
    lines += [f"{name} {version}" for name, version in installed.items() if version is not None]
    missing = [name for name, version in installed.items() if version is None]
    return [*lines, *([f"not installed: {', '.join(missing)}"] if missing else [])]


def problem(need: Need) -> str:
    """Return the problem of the installed version of a package; "" if there is none."""
    version = version_of(need.name)
    if version is None:
        return f"{need.name} is not installed"
    try:
        from packaging.specifiers import SpecifierSet

        fits = SpecifierSet(need.specifier).contains(version, prereleases=True)
    except Exception:  # noqa: BLE001 - as in `requirements`; and versions that are none
        return ""
    why = f" ({_WHY[need.name]})" if need.name in _WHY else ""
    return "" if fits else f"{need.name} {version} is installed, but {need.specifier} is required{why}"


def module_of(name: str) -> str:
    """Return the module of a distribution; "" if it has none, or if that is missing."""
    module = _MODULES.get(name, name.replace("-", "_"))
    root = module.partition(".")[0]
    if not root or root in sys.modules:
        return module
    try:
        return module if find_spec(root) else ""
    except (ImportError, ValueError):
        return module  # the package is damaged, which the trial reports
