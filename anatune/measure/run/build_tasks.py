"""What builder processes run: schedules and probes to shared libraries or cubins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anatune.codegen.compat import import_tvm
from anatune.codegen.cuda.nvrtc import compiler_version
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.named import resolve

__all__ = ["build", "build_reference", "set_up", "set_up_gpu"]


def set_up() -> None:
    """Import what every build needs, once."""
    import_tvm()


def set_up_gpu() -> None:
    """Import what every build for GPUs needs, once."""
    import_tvm()
    compiler_version()


def build(entry: str, schedule: Schedule, folder: str, threads: int) -> Any:
    """Build `schedule` into `folder`, which is made, with the function called `entry`; return its artifact."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return resolve(entry)(schedule, Path(folder), threads=threads)


def build_reference(entry: str, hardware: CpuSpec | GpuSpec, folder: str) -> Any:
    """Build the reference kernel into `folder`, which is made, with the function called `entry`."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return resolve(entry)("gemm", hardware, Path(folder))
