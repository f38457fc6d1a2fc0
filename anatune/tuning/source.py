"""Where a session's schedules come from: a model and a strategy, or a manifest of kernels that were built elsewhere."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.templates import template_named
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.search.base import Strategy, make_strategy
from anatune.tuning.machine import with_threads
from anatune.tuning.manifest import Manifest, ManifestStrategy

__all__ = ["Source", "source_of_manifest", "source_of_model"]

_RANKED = 16
"""Points of the ranking that strategies start from."""


class Source(NamedTuple):
    """What a session asks.

    Attributes
    ----------
    strategy : Strategy
        Who proposes schedules.
    first : Schedule
        The plan's own first choice.
    hardware : CpuSpec or GpuSpec
        Of the schedules.
    predicted : callable
        Schedule -> the model's time, s, or None.
    program_key : callable
        Schedule -> key of the program it is lowered to: schedules of equal keys are measured once.
    measurer : callable
        Makes the measurer, (workload, hardware, threads=, limits=, seed=, ...).
    """

    strategy: Strategy
    first: Schedule
    hardware: CpuSpec | GpuSpec
    predicted: Callable[[Schedule], float | None]
    program_key: Callable[[Schedule], Hashable]
    measurer: Callable[..., Any]


def source_of_model(
    workload: Workload,
    hardware: CpuSpec | GpuSpec,
    threads: int,
    template: str | None,
    strategy: str,
    seed: int,
    start: str = "model",
) -> Source:
    """Rank and start a strategy.

    Raises
    ------
    SpaceError
        No schedule is legal; the template does not apply.
    """
    from anatune.model.learned.corrected import CorrectedModel
    from anatune.model.learned.corrections import find_correction
    from anatune.model.templates import make_model

    here = with_threads(hardware, threads) if isinstance(hardware, CpuSpec) else hardware
    model: Any = make_model(workload, here, template)
    # CPUs: the default strategy's own correction is made for CpuModel, and learns from the first trial on.
    saved = find_correction(here, model.space.template) if isinstance(here, GpuSpec) else None
    if saved is not None:
        model = CorrectedModel(model, saved.model)
    ranked = model.rank(_RANKED).points
    if not len(ranked):
        raise SpaceError(
            f"{workload.describe()} on {hardware.name}: no schedule is legal; "
            f"`anatune plan` says which limits are in the way"
        )

    def predicted(schedule: Schedule) -> float | None:
        seconds = float(model.times(model.space.point_of(schedule)[None, :])[0][0])
        return seconds if math.isfinite(seconds) else None

    kind = template_named(model.space.template)
    made = make_strategy(strategy, model, seed=seed, start=start, ranked=ranked)
    return Source(
        made,
        model.space.schedule_of(ranked[0]),
        here,
        predicted,
        kind.part("program_key"),
        kind.device.part("measurer"),
    )


def source_of_manifest(manifest: Manifest) -> Source:
    """Go through a manifest in its order; no model is needed."""
    from anatune.measure.cuda.measurer import ManifestMeasurer

    schedules, predictions = manifest.schedules(), manifest.predictions()
    measurer = functools.partial(ManifestMeasurer, built=manifest.built(), reference=manifest.reference)
    return Source(
        ManifestStrategy(schedules),
        schedules[0],
        manifest.hardware,
        lambda schedule: predictions.get(schedule.key),
        lambda schedule: schedule.key,
        measurer,
    )
