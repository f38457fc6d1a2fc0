"""The division of the cores between timing and building, so that neither disturbs the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_MOST_BUILDERS = 4


class CorePlan(NamedTuple):
    """A division of the cores.

    Attributes
    ----------
    runner, builders : tuple of int
        Logical CPUs of the runner and of the builders; empty if not pinned.
    num_builders : int
        Number of builders on their own cores.
    overlap : bool
        Whether they build while a kernel is timed.
    num_guests : int
        Number of builders on the runner's cores, which pause while a kernel is timed.
    """

    runner: tuple[int, ...]
    builders: tuple[int, ...]
    num_builders: int
    overlap: bool
    num_guests: int = 0


def physical_cores(root: str | Path = "/", allowed: set[int] | None = None) -> dict[int, tuple[int, ...]]:
    """Return the physical cores that this process may use: first logical CPU -> its usable logical CPUs.

    Two threads of one core share its vector units, so that a build on one would slow down a kernel on the other. Empty
    if the system does not report the usable cores (macOS).
    """
    if allowed is None:
        allowed = set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()
    cores: dict[int, list[int]] = {}
    for cpu in sorted(allowed):
        path = Path(root) / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            first = int(path.read_text().replace(",", "-").split("-")[0])
        except (OSError, ValueError):
            first = cpu
        cores.setdefault(first, []).append(cpu)
    return {first: tuple(cpus) for first, cpus in cores.items()}


def plan_cores(threads: int, cores: Mapping[int, tuple[int, ...]]) -> CorePlan:
    """Divide the cores: the last `threads` cores time kernels (the first serve most interrupts), the others build.

    With fewer cores than `threads` + 1, building and timing take turns on all cores. If few cores build, the runner's
    cores, which are idle for most of a trial, help between runs.
    """
    ordered = [cores[first] for first in sorted(cores)]
    if not ordered:
        spare = (os.cpu_count() or 1) - threads
        return CorePlan((), (), max(1, min(_MOST_BUILDERS, spare)), spare > 0)
    everything = tuple(cpu for core in ordered for cpu in core)
    if len(ordered) <= threads:
        return CorePlan(everything, everything, min(_MOST_BUILDERS, len(ordered)), False)
    runner, builders = ordered[len(ordered) - threads :], ordered[: len(ordered) - threads]
    count = min(_MOST_BUILDERS, len(builders))
    return CorePlan(
        tuple(core[0] for core in runner),
        tuple(cpu for core in builders for cpu in core),
        count,
        True,
        min(_MOST_BUILDERS - count, threads) if hasattr(signal, "SIGSTOP") else 0,
    )
