"""The environment of a trial: processor, system and versions, but nothing that identifies a machine or a person."""

from __future__ import annotations

import functools
import os
import platform
from importlib import metadata
from pathlib import Path

import msgspec

from anatune.resources import usable_cores
from anatune.version import __version__

_CPUINFO = Path("/proc/cpuinfo")
_CPU_KEYS = ("model name", "hardware", "cpu model", "model")
_VARIABLES = ("TVM_NUM_THREADS", "TVM_BIND_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The environment in which a trial ran. Immutable; JSON both ways.

    Attributes
    ----------
    cpu : str
        Model name of the processor.
    cores : int
        Number of cores that the process may use, within its quota.
    platform : str
        Operating system, its release and the instruction set: "Linux-6.1-x86_64".
    python, numpy, anatune : str
        Versions.
    tvm : str or None
        Version of the installed TVM; None if there is none.
    variables : dict of str to str
        The set environment variables that limit numbers of threads.
    """

    cpu: str
    cores: int
    platform: str
    python: str
    numpy: str
    anatune: str
    tvm: str | None = None
    variables: dict[str, str] = {}


@functools.cache
def environment() -> Environment:
    """Return the environment of this process, without importing packages; the result is cached."""
    return Environment(
        cpu=_cpu_model(),
        cores=usable_cores(),
        platform=f"{platform.system()}-{platform.release()}-{platform.machine()}",
        python=platform.python_version(),
        numpy=_version("numpy") or "",
        anatune=__version__,
        tvm=_version("apache-tvm") or _version("tvm"),
        # Recorded only; they do not change what anatune does.
        variables={name: os.environ[name] for name in sorted(_VARIABLES) if name in os.environ},
    )


def _version(distribution: str) -> str | None:
    """Return the version of an installed distribution without importing it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """Return the processor's model name, or its architecture if the system does not name it."""
    try:
        lines = _CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    values = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    named = next((values[key] for key in _CPU_KEYS if values.get(key)), "")
    return named or platform.processor() or platform.machine() or "unknown"
