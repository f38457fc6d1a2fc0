"""What `tune_tir` and `tune_relax` take: a space, a strategy, a builder, or all of it at once."""

from __future__ import annotations

import math

from anatune.adapters.metaschedule.classes import search_strategy, space_generator
from anatune.adapters.metaschedule.cost import cost_model
from anatune.adapters.metaschedule.database import meta_schedule
from anatune.adapters.metaschedule.tasks import Settings, device_spec
from anatune.arguments import checked_integer, shown
from anatune.codegen.compat import build_measured
from anatune.errors import SpaceError
from anatune.measure.named_hardware import HardwareLike
from anatune.search.base import DEFAULT_STRATEGY, check_start, check_strategy
from anatune.untyped import ms

__all__ = ["builder", "space", "strategy", "tuning_options"]

BATCH = 8
"""Candidates between two lessons: MetaSchedule's own 64 would leave a run of 64 trials without any."""


def tuning_options(
    hw: HardwareLike = "host",
    *,
    strategy_name: str = DEFAULT_STRATEGY,
    seed: int = 0,
    build_timeout_s: float = 60.0,
) -> dict[str, object]:
    """Return keyword arguments for ``tune_tir`` and ``tune_relax``: space, strategy, cost model and builder.

    Parameters
    ----------
    hw, strategy_name, seed
        As for `strategy`.
    build_timeout_s : float
        Seconds that one candidate may take to build.

    Raises
    ------
    SpaceError
        `hw` is a GPU of another vendor, or `build_timeout_s` no number of seconds.
    UnknownNameError, SpecError
        There is no such hardware or strategy.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported; the message has the pip command.
    """
    return {
        "space": space(hw),
        "strategy": strategy(hw, name=strategy_name, seed=seed),
        "cost_model": cost_model(hw),
        "builder": builder(build_timeout_s),
    }


def space(hw: HardwareLike = "host", *, designs: int = 1) -> ms.SpaceGenerator:
    """Return a ``SpaceGenerator``: the first schedules of anatune's ranking, each a design space without choices.

    With `strategy` one is enough: it asks for others as it learns. With MetaSchedule's own "replay-trace" it is a plan:
    the first `designs` of the ranking are what is measured.

    Parameters
    ----------
    hw
        As for `strategy`.
    designs : int
        Schedules, at least 1.
    """
    return space_generator(device_spec(hw), checked_integer("designs", designs, 1))


def strategy(
    hw: HardwareLike = "host",
    *,
    name: str = DEFAULT_STRATEGY,
    seed: int = 0,
    start: str = "model",
    batch: int = BATCH,
) -> ms.SearchStrategy:
    """Return a ``SearchStrategy`` that asks a strategy of anatune's, on functions that anatune understands.

    Other functions get MetaSchedule's evolutionary search over its own space.

    Parameters
    ----------
    hw : str, Path, CpuSpec or GpuSpec
        The device that the target names: a spec, its name, "host" (this CPU), or a file. GPUs are NVIDIA's.
    name, seed, start
        As for `anatune.search.base.make_strategy`.
    batch : int
        Candidates that are measured before the strategy learns from them, at most.

    Raises
    ------
    UnknownNameError
        There is no such hardware, strategy or start.
    SpaceError
        `hw` is a GPU of another vendor, or `batch` no integer >= 1.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported.
    """
    batch = checked_integer("batch", batch, 1)
    settings: Settings = {"name": check_strategy(name), "seed": seed, "start": check_start(start)}
    return search_strategy(device_spec(hw), settings, batch)


def builder(timeout_s: float = 60.0, max_workers: int | None = None) -> ms.Builder:
    """Return a ``LocalBuilder`` whose workers leave out what x86 and ARM kernels do not need.

    MetaSchedule's own build function imports TVM's tensor intrinsics of all devices in every worker, which takes 25 s
    of the 30 s that it allows by default.

    Parameters
    ----------
    timeout_s : float
        Seconds that one candidate may take.
    max_workers : int, optional
        Processes; by default one a CPU.

    Raises
    ------
    SpaceError
        A number is none, or too small.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf:
        raise SpaceError(f"timeout_s is {shown(timeout_s)}, expected seconds > 0")
    if max_workers is not None:
        max_workers = checked_integer("max_workers", max_workers, 1)
    local = meta_schedule().builder.LocalBuilder
    return local(timeout_sec=timeout_s, max_workers=max_workers, f_build=build_measured)
