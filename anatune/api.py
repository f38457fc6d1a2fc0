"""The library calls: hardware, space, plan, predict. Everything here is one step on top of the models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anatune.core.hardware import CpuSpec, GpuSpec
from anatune.core.hardware_files import hardware as _load_hardware
from anatune.core.schedule import Schedule
from anatune.core.space_cpu import CpuSpace
from anatune.core.space_gpu import GpuSpace
from anatune.core.workload import Workload
from anatune.errors import SpaceError, UnknownNameError
from anatune.model.evaluation import Progress
from anatune.model.plan import Plan, prediction_row

if TYPE_CHECKING:
    import pandas as pd

    from anatune.model.cpu_model import CpuModel
    from anatune.model.gpu_model import GpuModel

__all__ = ["Plan", "hardware", "plan", "predict", "space"]

MOST_SCHEDULES = 10_000
"""Most schedules that one plan returns."""


def hardware(name: str | Path) -> GpuSpec | CpuSpec:
    """Return the hardware spec called `name`, an alias of one, or the TOML file at a path.

    "host" is the present machine: the spec that ``anatune hw detect`` saved, else what detection finds now.

    Raises
    ------
    UnknownNameError
        No such name; the message lists close ones and says how to write a spec.
    SpecError
        The file is damaged or contradicts itself.
    """
    try:
        return _load_hardware(name)
    except UnknownNameError:
        if str(name).lower() != "host":
            raise
        from anatune.measure.detect import detect_cpu

        return detect_cpu()


def model(workload: Workload, hardware: GpuSpec | CpuSpec) -> GpuModel | CpuModel:
    """Return the analytical model of `workload` on `hardware` (with its tile space as ``.space``).

    Raises
    ------
    SpaceError
        An argument is of another type (a name instead of what `anatune.hardware` returns, swapped arguments).
    """
    if not isinstance(workload, Workload):
        raise SpaceError(
            f"workload is {workload!r:.60}, expected a Workload; make one with anatune.matmul(...), anatune.conv2d(...)"
        )
    if not isinstance(hardware, GpuSpec | CpuSpec):
        raise SpaceError(
            f"hardware is {hardware!r:.60}, expected a spec; get one with anatune.hardware('rtx3090') or a file's path"
        )
    if isinstance(hardware, GpuSpec):
        from anatune.model.gpu_model import GpuModel

        return GpuModel(workload, hardware)
    from anatune.model.cpu_model import CpuModel

    return CpuModel(workload, hardware)


def space(workload: Workload, hardware: GpuSpec | CpuSpec) -> GpuSpace | CpuSpace:
    """Return the tile space of `workload` on `hardware`: size, axes, extents, sample(), schedule()."""
    return model(workload, hardware).space


def plan(
    workload: Workload,
    hardware: GpuSpec | CpuSpec,
    top_k: int = 10,
    *,
    time_limit_s: float | None = None,
    distinct: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Rank every schedule of `workload` on `hardware` with the analytical model; no device is needed.

    Parameters
    ----------
    workload, hardware
        What is computed, where.
    top_k : int
        How many schedules to return, >= 1.
    time_limit_s : float, optional
        Stop the search after this many seconds; the guarantee then says how far from the optimum the answer can be.
    distinct : bool
        Return one schedule of each predicted time: schedules that the model cannot tell apart count as one.
    progress : callable, optional
        Called now and then with the share of a long search that is done, in [0, 1].

    Raises
    ------
    SpaceError
        `top_k` or `time_limit_s` is not positive.
    """
    if isinstance(top_k, bool) or not isinstance(top_k, int | np.integer) or not 1 <= top_k <= MOST_SCHEDULES:
        raise SpaceError(f"plan: top_k is {top_k!r}, expected an integer >= 1 (and at most {MOST_SCHEDULES})")
    if time_limit_s is not None:
        number = isinstance(time_limit_s, int | float) and not isinstance(time_limit_s, bool)
        if not number or not time_limit_s > 0:
            raise SpaceError(f"plan: time_limit_s is {time_limit_s!r}, expected a number > 0 or None")
    chosen = model(workload, hardware)
    ranking = chosen.rank(int(top_k), time_limit_s, distinct=distinct, progress=progress)
    return Plan(
        workload,
        hardware,
        [chosen.space.schedule_of(point) for point in ranking.points],
        chosen.predictions(ranking.points),
        ranking.guarantee,
        chosen.space.size,
        ranking.num_legal,
        ranking.rejected,
        chosen.rules,
    )


def predict(workload: Workload, hardware: GpuSpec | CpuSpec, schedules: Iterable[Schedule]) -> pd.DataFrame:
    """Score schedules with the analytical model.

    Returns
    -------
    pandas.DataFrame
        One row a schedule, in the order given: time_s, its parts, the features, legal, rule (the first broken one).

    Raises
    ------
    SpaceError
        A schedule belongs to another workload or template, or `schedules` holds something else. A schedule that was
        made for another device is scored on `hardware`: that is how a choice is carried over.
    """
    import pandas as pd

    chosen = model(workload, hardware)
    if isinstance(schedules, Schedule) or not isinstance(schedules, Iterable):
        raise SpaceError(f"predict: schedules is {schedules!r:.60}, expected a list of Schedule objects")
    schedules = list(schedules)
    for schedule in schedules:
        if not isinstance(schedule, Schedule):
            raise SpaceError(f"predict: got {schedule!r:.60}, expected a Schedule; build one with space.schedule(...)")
    points = [chosen.space.point_of(schedule) for schedule in schedules]
    table = np.array(points or [chosen.space.point_of(chosen.space.schedule({}))], dtype=np.int64)
    frame = pd.DataFrame([prediction_row(prediction) for prediction in chosen.predictions(table)])
    return frame.iloc[: len(points)]  # no schedules: no rows, but the columns
