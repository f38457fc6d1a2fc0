"""The library calls: model, space, plan, plan_range, predict and prune."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

import numpy as np

from anatune.arguments import check_flag, check_function, check_integer, check_seconds, is_iterable, quote
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule, check_schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.ranges import RangedWorkload, check_range_arguments
from anatune.errors import SpaceError
from anatune.measure.named_hardware import HardwareLike, hardware
from anatune.model import joint
from anatune.model.learned.corrections import AUTO, apply_correction
from anatune.model.plan import Plan, prediction_row
from anatune.model.ranges.plan import RangePlan
from anatune.model.rank import Constraints, rank
from anatune.templates import make_model
from anatune.templates.base.model import AnalyticalModel, Progress
from anatune.templates.base.space import Space
from anatune.templates.base.watch import Watch
from anatune.tuning.machine import choose_threads
from anatune.tuning.plans import Evidence, plan_with_evidence

if TYPE_CHECKING:
    import pandas as pd

    from anatune.model.pruning.subset import Subset
    from anatune.records.place import ServerAddress
    from anatune.templates.cpu.space import CpuSpace
    from anatune.templates.cuda.pipelined_space import PipelinedSpace
    from anatune.templates.cuda.space import GpuSpace

__all__ = ["Plan", "RangePlan", "hardware", "plan", "plan_range", "predict", "prune", "space"]

MOST_SCHEDULES = 10_000
"""Largest number of schedules that one plan returns."""
_DEFAULT_TEMPLATES = {"cpu": "cpu"}  # kind of device -> the only template that `prune` ranks there by default


def _find_device(workload: Workload, hw: HardwareLike, threads: int | None) -> HardwareSpec:
    """Return the spec of `hw`, limited to `threads` cores; raise SpaceError if the two arguments were swapped."""
    if not isinstance(workload, Workload):
        raise SpaceError(
            f"workload is {quote(workload)}, expected a Workload; make one with anatune.matmul(...) or "
            "anatune.conv2d(...)"
        )
    device = hardware(hw)
    return device if threads is None else device.with_threads(choose_threads(device, threads, usable=sys.maxsize))


def model(
    workload: Workload, hw: HardwareLike, template: str | None = None, threads: int | None = None
) -> AnalyticalModel:
    """Return the analytical model of `workload` on `hw`; its tile space is the attribute ``space``.

    Parameters
    ----------
    template : str, optional
        Name of the template, as in `plan`; by default the device's own, "cuda" (CUDA cores) or "cpu".
    threads : int, optional
        Number of threads that CPU kernels run with, from 1 to the number of cores (the default).

    Raises
    ------
    SpaceError
        The arguments were swapped or have a wrong type, or the template or `threads` does not apply.
    UnknownNameError, SpecError
        The hardware is unknown or its spec file is damaged, see `hardware`.
    """
    return make_model(workload, _find_device(workload, hw, threads), template)


@overload
def space(
    workload: Workload, hw: HardwareLike, *, template: Literal["pipelined"], threads: int | None = None
) -> PipelinedSpace: ...


@overload
def space(
    workload: Workload, hw: HardwareLike, *, template: Literal["cuda", "cpu"] | None = None, threads: int | None = None
) -> GpuSpace | CpuSpace: ...


@overload
def space(
    workload: Workload, hw: HardwareLike, *, template: str | None = None, threads: int | None = None
) -> Space: ...


def space(workload: Workload, hw: HardwareLike, *, template: str | None = None, threads: int | None = None) -> Space:
    """Return the tile space of `workload` on `hw`: all schedules of one template.

    Parameters
    ----------
    workload : Workload
        The computation.
    hw : str, Path, GpuSpec or CpuSpec
        The device: a name or path for `hardware`, or a spec.
    template : str, optional
        Name of the template, as in `plan`; by default the device's own, "cuda" (CUDA cores) or "cpu".
    threads : int, optional
        Number of threads that CPU kernels run with, from 1 to the number of cores (the default).

    Returns
    -------
    GpuSpace, CpuSpace, PipelinedSpace or Space
        ``size`` is the number of points, ``axes`` and ``extents`` describe the loops, ``sample(count, seed)`` draws
        legal schedules, ``schedule(tiles=..., ...)`` builds one.

    Raises
    ------
    SpaceError
        The arguments were swapped or have a wrong type, or the template or `threads` does not apply.
    UnknownNameError, SpecError
        The hardware is unknown or its spec file is damaged, see `hardware`.
    """
    return model(workload, hw, template, threads).space


def plan(
    workload: Workload,
    hw: HardwareLike,
    top_k: int = 10,
    *,
    template: str | None = None,
    accuracy: str | None = None,
    threads: int | None = None,
    time_limit_s: float | None = None,
    distinct: bool = False,
    compile: int = 0,
    correction: str | Path = AUTO,
    records: str | Path | ServerAddress | None = None,
    progress: Progress | None = None,
    compile_progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Rank the schedules of `workload` on `hw` with the analytical model; the device itself is not needed.

    Parameters
    ----------
    workload : Workload
        The computation.
    hw : str, Path, GpuSpec or CpuSpec
        The device: a name or path for `hardware`, or a spec.
    top_k : int
        Number of schedules to return, 1 to 10,000.
    template : str, optional
        Rank only the schedules of this template: "cuda", "pipelined", "thin", "triton", "cpu", "winograd",
        "scaled", "fp16_accumulation" or "amx". "triton" computes on matrix units in float16, bfloat16 or tf32
        (float32 operands are rounded). By default the device's own template and all that join it are ranked
        together: on GPUs "cuda", "thin" and "triton"; on CPUs "cpu", "winograd", "scaled", "amx" and
        "fp16_accumulation".
    accuracy : {"standard", "relaxed"}, optional
        How much the arithmetic may err. "standard" (the default) allows errors about as large as those of a plain
        sum of products; Winograd's F(2x2, 3x3) is among them. "relaxed" also allows arithmetic that errs several
        times as much: F(4x4, 3x3), sums in float16, float32 operands rounded to tf32. If it is left out and
        `template` is given, that template may round to tf32; "standard" forbids it.
    threads : int, optional
        Number of threads that CPU kernels run with, from 1 to the number of cores (the default). The best schedule
        for all cores is seldom the best for one.
    time_limit_s : float, optional
        Stop the search after this many seconds; the guarantee then states the largest possible gap to the optimum.
    distinct : bool
        Return only one schedule of each predicted time, as the command line does without ``--all``;
        ``Plan.num_alike`` counts the schedules that share it.
    compile : int
        Compile the first `compile` different kernels (no GPU is needed), correct registers, occupancy and time with
        the compiler's numbers, and rank them again; ``Plan.compilation`` tells what changed. Schedules that do not
        compile are left out. `time_limit_s` limits the compiling, too.
    correction : "auto", "none", or str or Path
        Learned correction of times and order. "auto" uses the one trained for this device (shipped, or made by
        ``anatune records train``), unless `compile` is given; a folder or the name of a shipped correction uses
        that one; "none" uses the analytical model alone. ``Plan.correction`` tells what was used.
    records : str or Path, optional
        Record file, or URL of a PostgreSQL server. ``Plan.measured`` is its fastest record of this workload,
        device, threads and template. With "auto", a correction (LightGBM) is also trained on its records of the
        device, and used if it ranks workloads better that it was not trained on.
    progress, compile_progress : callable, optional
        Functions to report progress to: `progress` is called with the finished share of a long search, in [0, 1],
        `compile_progress` with (kernels compiled, kernels to compile).

    Returns
    -------
    Plan
        The schedules with their predictions, best first, and what is proven about them.

    Raises
    ------
    SpaceError
        `top_k`, `time_limit_s`, `accuracy` or `compile` is out of range; `template` or `threads` does not apply;
        `compile` is given for a CPU.
    BuildError
        The compiler does not know the GPU's architecture.
    MissingDependencyError
        Compiling, or the given correction, needs packages that are not installed.
    UnknownNameError, ModelVersionError
        The correction does not exist, is damaged, or was made for another template or version.
    RecordError
        The records do not exist or cannot be read.

    Examples
    --------
    >>> import anatune
    >>> plan = anatune.plan(anatune.matmul(512, 4096, 1024), "rtx3090", top_k=3)
    >>> plan.guarantee.kind, plan.predictions[0].bound_by
    ('certified', 'issue')
    """
    top_k = check_integer("plan: top_k", top_k, 1, MOST_SCHEDULES)
    check_function("plan: progress", progress)
    constraints = Constraints(template=template, accuracy=accuracy, time_limit_s=time_limit_s, distinct=distinct)
    evidence = Evidence(compile=compile, records=records, compile_progress=compile_progress)
    device = _find_device(workload, hw, threads)
    if not evidence.compile and records is None:
        return rank(workload, device, top_k, constraints, correction, progress)
    return plan_with_evidence(workload, device, top_k, constraints, evidence, correction, progress)


def plan_range(
    workload: Workload | RangedWorkload | str,
    hw: HardwareLike,
    axis: str | None = None,
    extents: str | Iterable[int] | None = None,
    *,
    kernels: int | None = None,
    loss: float | None = None,
    weights: Mapping[int, float] | Sequence[float] | None = None,
    template: str | None = None,
    threads: int | None = None,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> RangePlan:
    """Choose few kernels that serve a range of extents, and prove how much time that loses; no device is needed.

    Each kernel takes the extent as an argument when it is called. Its loss at an extent is its predicted time over
    that of the best schedule for this single extent, minus 1; see `RangePlan.left_out`.

    Parameters
    ----------
    workload : str, Workload or RangedWorkload
        Text with a range ("matmul 1..8192x4096x4096"; "64..4096:64" takes steps of 64, "1,2,4,8" is a list), or a
        workload whose `axis` varies (its own extent of that axis does not matter).
    hw : str, Path, GpuSpec or CpuSpec
        The device, as in `plan`.
    axis : str, optional
        The axis that varies, for example "i"; only together with a Workload.
    extents : str or iterable of int, optional
        The extents of the axis: "1..8192", ``range(1, 8193)`` or a list; only together with a Workload.
    kernels : int, optional
        Largest number of kernels; they are chosen to minimise the worst loss.
    loss : float, optional
        Instead of `kernels`: choose the fewest kernels that lose no more than this share at any extent: 0.05
        is 5 %.
    weights : mapping or sequence, optional
        With `kernels`: the weight of each extent, as a mapping from extent to weight or as one weight for each
        extent. The weighted mean loss is then minimised instead of the worst loss.
    template, threads
        As in `plan`.
    time_limit_s : float, optional
        Stop the search after this many seconds and return the best choice found, with the loss proven for it.
    progress : callable, optional
        Function to call with the finished share of the work, in [0, 1].

    Raises
    ------
    WorkloadError
        There are no extents or too many, a range is reversed, or the axis cannot vary alone.
    SpaceError
        `kernels`, `loss`, `weights` or `time_limit_s` is out of range; no kernel is legal at every extent; the
        template has no kernels for a range.
    UnknownNameError, SpecError
        The hardware is unknown or its spec file is damaged, see `hardware`.
    """
    from anatune.model.ranges.planning import check_goal, find_families, plan_families

    check_function("plan_range: progress", progress)
    time_limit_s = check_seconds("plan_range: time_limit_s", time_limit_s)
    ranged_workload = check_range_arguments(workload, axis, extents)
    goal = check_goal(ranged_workload, kernels, loss, weights)
    device = _find_device(ranged_workload.largest, hw, threads)
    families, applicable = find_families(ranged_workload, device, template)
    return plan_families(families, goal, Watch(time_limit_s, progress), applicable)


def predict(
    workload: Workload,
    hw: HardwareLike,
    schedules: Iterable[Schedule],
    *,
    threads: int | None = None,
    correction: str | Path = AUTO,
) -> pd.DataFrame:
    """Predict the times of schedules with the analytical model, and with a learned correction if the device has one.

    Parameters
    ----------
    workload, hw
        The computation and the device, as in `plan`.
    schedules : iterable of Schedule
        Schedules of this workload. Those made for another device are predicted for `hw`.
    threads, correction
        As in `plan`. All times are for this number of threads, whatever a schedule was planned for.

    Returns
    -------
    pandas.DataFrame
        One row for each schedule, in the given order: time_s and its parts (s), the features, legal, and rule (the
        id of the first broken rule). With a correction three more columns: correction (its name), plain_s (the
        analytical time, s) and support (the share of the correction that was applied, in [0, 1]).

    Raises
    ------
    SpaceError
        A schedule belongs to another workload or to a template of another kind of device, `schedules` holds other
        objects, or `threads` does not apply.
    UnknownNameError, ModelVersionError, MissingDependencyError
        The given correction does not exist, does not fit, or needs a package that is not installed.
    """
    import pandas as pd

    device = _find_device(workload, hw, threads)
    if isinstance(schedules, Schedule) or not is_iterable(schedules):
        raise SpaceError(f"predict: schedules is {quote(schedules)}, expected a list of Schedule objects")
    schedules = list(schedules)
    for schedule in schedules:
        check_schedule("predict", schedule)
    rows = joint.predict_rows(workload, device, schedules, correction)
    if rows:
        return pd.DataFrame(rows)
    chosen = make_model(workload, device)  # no schedules: an empty table with all columns
    empty = np.array([chosen.space.point_of(chosen.space.schedule({}))], dtype=np.int64)
    return pd.DataFrame([prediction_row(prediction) for prediction in chosen.predictions(empty)]).iloc[:0]


def prune(
    workload: Workload,
    hw: HardwareLike,
    keep: float = 0.01,
    *,
    template: str | None = None,
    accuracy: str | None = None,
    threads: int | None = None,
    candidates: Iterable[Schedule] | None = None,
    time_limit_s: float | None = None,
    distinct: bool = False,
    diverse: bool = True,
    correction: str | Path = AUTO,
    progress: Progress | None = None,
) -> Subset:
    """Return the schedules that are worth measuring, in predicted order, for another tuner.

    Parameters
    ----------
    workload, hw
        The computation and the device, as in `plan`.
    keep : float or int
        A float above 0 and below 1: the share of the legal schedules to keep (on CPUs fewer come, because identical
        loop nests are listed once). An integer: the number of schedules to keep.
    template
        Name of the template. By default all templates that apply on GPUs, ranked together as in `plan`; on CPUs
        "cpu".
    accuracy, threads
        As in `plan`.
    candidates : iterable of Schedule, optional
        Rank only these schedules, of any templates, instead of a space.
    time_limit_s : float, optional
        Time limit of the search, s; at most 10,000 schedules are then ranked.
    distinct : bool
        Keep one schedule of each predicted time, because the model cannot tell the others apart. Only for an
        integer `keep`, and not together with `candidates`.
    diverse : bool
        Applies where at most 256 schedules are kept (template "cuda", no time limit). True: keep schedules that
        differ, so that they do not all share the model's errors. They are chosen from the best schedules of
        different predicted times and the fastest of 50,000 random ones (of `candidates`: from the first four times
        as many as are kept, at least 256). The larger `keep` is, the more of them are simply the first in predicted
        order. False: keep the first schedules; those with equal predictions then stay together.
    correction : "auto", "none", or str or Path
        As in `plan`. The correction reorders the first schedules of the analytical order, four times as many as are
        kept (at least 64). Above 20,000 kept schedules the analytical order decides which are kept, and the
        correction only changes their order.
    progress : callable, optional
        Function to call with the finished share of a long search, in [0, 1]. A subset that is read far searches
        several times, each time longer.

    Returns
    -------
    Subset
        An iterable of schedules, best first, that is computed while it is read: of a space of 10^10 points only the
        beginning is ever ranked. ``keeps(schedule)`` tells whether a schedule is kept, ``explain(schedule)`` why;
        above 20,000 kept schedules both compare with a limit that is estimated from a sample of the space.
        ``num_kept`` and ``num_legal`` are counts.

    Raises
    ------
        `keep` or `time_limit_s` is out of range, a candidate is not a Schedule of the workload, or the template or
        `threads` does not apply.
    UnknownNameError, ModelVersionError, MissingDependencyError
        The given correction does not exist, does not fit, or needs a package that is not installed.
    """
    from anatune.model.pruning.candidates import CandidateSubset
    from anatune.model.pruning.joined import make_subset  # numba: not where kernels are only measured

    check_function("prune: progress", progress)
    limits = Constraints(accuracy=accuracy, time_limit_s=time_limit_s, distinct=distinct, call="prune")
    diverse = check_flag("prune: diverse", diverse)
    device = _find_device(workload, hw, threads)
    if candidates is None:
        names = joint.choose_templates(workload, device, template or _DEFAULT_TEMPLATES.get(device.kind), accuracy)
        learned = joint.find_corrections(device, names, correction)
        models = [
            apply_correction(make_model(workload, device, name, limits.allowed_accuracy), learned[name])
            for name in names
        ]
        return make_subset(
            models, keep, limits.allowed_accuracy, limits.time_limit_s, limits.distinct, diverse, progress
        )
    if isinstance(candidates, Schedule) or not is_iterable(candidates):
        raise SpaceError(f"prune: candidates is {quote(candidates)}, expected a list of Schedule objects")
    model_of = partial(joint.make_corrected_model, workload, device, correction)
    return CandidateSubset(workload, device, keep, list(candidates), model_of, diverse=diverse)
