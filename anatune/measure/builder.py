"""What builder processes run: schedules and probes to shared libraries."""

from __future__ import annotations

from pathlib import Path

from anatune.codegen.artifact import Artifact
from anatune.codegen.compat import import_tvm
from anatune.core.hardware import CpuSpec
from anatune.core.schedule import Schedule
from anatune.measure.worker import resolve

__all__ = ["build", "build_reference", "set_up"]


def set_up() -> None:
    """Import what every build needs, once."""
    import_tvm()


def build(entry: str, schedule: Schedule, folder: str, threads: int) -> Artifact:
    """Build `schedule` into `folder`, which is made, with the function called `entry`."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    artifact: Artifact = resolve(entry)(schedule, Path(folder), threads=threads)
    return artifact


def build_reference(entry: str, hardware: CpuSpec, folder: str) -> Artifact:
    """Build the reference kernel into `folder`, which is made, with the function called `entry`."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    artifact: Artifact = resolve(entry)("gemm", hardware, Path(folder))
    return artifact
