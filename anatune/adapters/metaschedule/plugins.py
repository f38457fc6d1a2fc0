"""Arguments of `tune_tir` and `tune_relax`: a space, a strategy, a builder, or all of them at once."""

from __future__ import annotations

import math

from anatune.adapters.metaschedule.classes import search_strategy, space_generator
from anatune.adapters.metaschedule.cost import cost_model
from anatune.adapters.metaschedule.database import meta_schedule
from anatune.adapters.metaschedule.tasks import Settings, device_spec
from anatune.arguments import check_integer, quote
from anatune.codegen.compat import build_measured
from anatune.errors import SpaceError
from anatune.measure.named_hardware import HardwareLike
from anatune.search.base import DEFAULT_STRATEGY, check_start, check_strategy
from anatune.untyped import ms

__all__ = ["builder", "space", "strategy", "tuning_options"]

BATCH = 8
"""The candidates between two updates of the strategy. With MetaSchedule's own 64, a run of 64 trials has no update."""


def tuning_options(
    hw: HardwareLike = "host", *, strategy_name: str = DEFAULT_STRATEGY, seed: int = 0, build_timeout_s: float = 60.0
) -> dict[str, object]:
    """Return keyword arguments for ``tune_tir`` and ``tune_relax``: space, strategy, cost model and builder.

    Parameters
    ----------
    hw, strategy_name, seed
        The same as in `strategy`.
    build_timeout_s : float
        The time limit in seconds for building one candidate.

    Raises
    ------
    SpaceError
        `hw` is a GPU that is not NVIDIA's, or `build_timeout_s` is not a positive number.
    UnknownNameError, SpecError
        The device or the strategy is unknown.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported. The message contains the pip command.
    """
    return {
        "space": space(hw),
        "strategy": strategy(hw, name=strategy_name, seed=seed),
        "cost_model": cost_model(hw),
        "builder": builder(build_timeout_s),
    }


def space(hw: HardwareLike = "host", *, designs: int = 1) -> ms.SpaceGenerator:
    """Return a ``SpaceGenerator`` of anatune's best predicted schedules, each a design space without choices.

    One schedule is enough together with `strategy`, which asks for others as it learns. With MetaSchedule's own
    "replay-trace", exactly the best `designs` schedules are measured.

    Parameters
    ----------
    hw
        The same as in `strategy`.
    designs : int
        The number of schedules, at least 1.
    """
    return space_generator(device_spec(hw), check_integer("designs", designs, 1))


def strategy(
    hw: HardwareLike = "host", *, name: str = DEFAULT_STRATEGY, seed: int = 0, start: str = "model", batch: int = BATCH
) -> ms.SearchStrategy:
    """Return a ``SearchStrategy`` that asks a strategy of anatune for functions that anatune knows.

    Other functions get MetaSchedule's evolutionary search over its own space.

    Parameters
    ----------
    hw : str, Path, CpuSpec or GpuSpec
        The device of the target: a spec, its name, "host" (this CPU), or a TOML file. GPUs have to be NVIDIA's.
    name, seed, start
        The same as in `anatune.search.base.make_strategy`.
    batch : int
        The most candidates that are measured before the strategy learns from them.

    Raises
    ------
    UnknownNameError
        The device, strategy or start is unknown.
    SpaceError
        `hw` is a GPU that is not NVIDIA's, or `batch` is not an integer >= 1.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported.
    """
    batch = check_integer("batch", batch, 1)
    settings: Settings = {"name": check_strategy(name), "seed": seed, "start": check_start(start)}
    return search_strategy(device_spec(hw), settings, batch)


def builder(timeout_s: float = 60.0, max_workers: int | None = None) -> ms.Builder:
    """Return a ``LocalBuilder`` whose workers do not import modules that x86 and ARM kernels do not need.

    MetaSchedule's own build function imports TVM's tensor intrinsics for all devices in every worker. That takes 25 s
    of its default limit of 30 s.

    Parameters
    ----------
    timeout_s : float
        The time limit in seconds for one candidate.
    max_workers : int, optional
        The number of processes. The default is one for each CPU.

    Raises
    ------
    SpaceError
        An argument is not a number, or too small.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf:
        raise SpaceError(f"timeout_s is {quote(timeout_s)}, expected a number of seconds > 0")
    if max_workers is not None:
        max_workers = check_integer("max_workers", max_workers, 1)
    local = meta_schedule().builder.LocalBuilder
    return local(timeout_sec=timeout_s, max_workers=max_workers, f_build=build_measured)
