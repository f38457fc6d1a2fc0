"""Checks, before a search, whether the tensors of a workload fit into the memory of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from anatune.core.generation import check_generation
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import RunError
from anatune.measure.run.kernel_references import IN_PARTS

_GIB = 1 << 30
_MEMORY = Path("/proc/meminfo")
_GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_runs_here(workload: Workload, hardware: CpuSpec | GpuSpec, templates: Iterable[str]) -> None:
    """Raise an error if no kernel of the workload can be generated, or checking one needs more than the free memory.

    `templates` are those of the schedules, as for `core.generation.generation_limit`.

    Raises
    ------
    BuildError
        Generated kernels cannot address a tensor, or are not for that device.
    RunError
        There is too little memory.
    """
    check_generation(workload, hardware, templates)
    check_memory(workload, checked=True)


def check_memory(workload: Workload, *, checked: bool) -> None:
    """Raise an error if the tensors of a workload do not fit into the free memory.

    Parameters
    ----------
    checked : bool
        Whether the result is compared with a float64 reference, which needs memory as well.

    Raises
    ------
    RunError
        The tensors do not fit.
    """
    tensors = sum(access.num_bytes for access in workload.tensors)
    advice = "use a smaller workload or a machine with more memory (planning does not need it)"
    needed = needed_bytes(workload, checked=checked)
    check_fits(f"{workload.describe()}: its operands and result", tensors, needed, advice)


def check_fits(what: str, tensors: int, needed: int, advice: str) -> None:
    """Raise RunError if `needed` bytes are not free, of which the tensors take `tensors`."""
    free = free_bytes()
    if free is not None and needed > free:
        more = f", {_gib(needed)} with the float64 reference" if needed > tensors else ""
        raise RunError(f"{what} take {_gib(tensors)}{more}, but only {_gib(free)} of memory are free; {advice}")


def needed_bytes(workload: Workload, *, checked: bool) -> int:
    """Return the bytes of memory that running a kernel needs: operands, result, and float64 values of them."""
    values = sum(a.num_elements for a in workload.tensors if (workload.body, a.tensor) not in IN_PARTS)
    return sum(access.num_bytes for access in workload.tensors) + 8 * checked * values


def free_bytes() -> int | None:
    """Return the bytes of memory that this process may still use; None if the system does not report it."""
    limits = [limit for path in _GROUPS if (limit := _number(path)) is not None]
    try:
        lines = _MEMORY.read_text().splitlines()
        limits += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
            limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def _number(path: Path) -> int | None:
    """Return a limit of a control group; None if there is none ("max")."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:,.1f} GiB"
