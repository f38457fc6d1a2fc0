"""The library calls: hardware, space, plan, predict. Everything here is one step on top of the models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

import numpy as np

from anatune.arguments import checked_flag, checked_function, checked_integer, checked_seconds, is_iterable, shown
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule, checked_schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.ranges import RangedWorkload, asked_range
from anatune.errors import SpaceError
from anatune.measure.named_hardware import HardwareLike, hardware
from anatune.model import joint
from anatune.model.learned.corrections import AUTO, corrected
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
"""Most schedules that one plan returns."""
_WALKED = {"cpu": "cpu"}  # kind of device -> the one template that `prune` ranks


def _checked(workload: Workload, hw: HardwareLike, threads: int | None) -> HardwareSpec:
    """Return the hardware that is meant, with so many of its cores; arguments that were swapped are a SpaceError."""
    if not isinstance(workload, Workload):
        raise SpaceError(
            f"workload is {shown(workload)}, expected a Workload; make one with anatune.matmul(...) or "
            "anatune.conv2d(...)"
        )
    device = hardware(hw)
    return device if threads is None else device.with_threads(choose_threads(device, threads, usable=sys.maxsize))


def model(
    workload: Workload, hw: HardwareLike, template: str | None = None, threads: int | None = None
) -> AnalyticalModel:
    """Return the analytical model of `workload` on `hw` (with its tile space as ``.space``).

    Parameters
    ----------
    template : str, optional
        As `plan`: what the schedules look like; left out: the device's default, "cuda" (CUDA cores) or "cpu".
    threads : int, optional
        Of CPUs: threads that kernels run with, from 1 to the number of cores (the default).

    Raises
    ------
    SpaceError
        An argument is of another type (swapped arguments); the template or `threads` do not apply.
    UnknownNameError, SpecError
        As `hardware`.
    """
    return make_model(workload, _checked(workload, hw, threads), template)


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
    """Return the tile space of `workload` on `hw`: size, axes, extents, sample(), schedule(); options as `model`'s."""
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
    """Rank every schedule of `workload` on `hw` with the analytical model; no device is needed.

    Parameters
    ----------
    workload, hw
        What is computed, where: a spec, or a name or path for `hardware`.
    top_k : int
        How many schedules to return, >= 1.
    template : str, optional
        "cuda", "pipelined", "thin", "triton", "cpu", "winograd", "scaled", "fp16_accumulation" or "amx".
        Rank the schedules of one template alone: "triton" for float16, bfloat16 and tf32 (float32 operands are
        rounded) on matrix units. Left out: the device's default and those that join it where they apply, in one order
        (GPUs: "cuda", "thin" and "triton"; CPUs: "cpu", "winograd", "scaled", "amx" and "fp16_accumulation").
    accuracy : {"standard", "relaxed"}, optional
        What arithmetic is admitted. "standard", the default: what errs about as much as a plain sum of the products,
        which includes Winograd's F(2x2, 3x3). "relaxed": F(4x4, 3x3), too, which errs several times as much, sums in
        float16, and float32 rounded to tf32. Left out, a named template may round to tf32; "standard" refuses that.
    threads : int, optional
        Of CPUs: threads that kernels run with, from 1 to all cores, the default, whose best is seldom the best for one.
    time_limit_s : float, optional
        Stop the search after this many seconds; the guarantee then says how far from the optimum the answer can be.
    distinct : bool
        One schedule of each predicted time, as the command line without ``--all``; ``Plan.num_alike`` counts the alike.
    compile : int
        Compile the first so many different programs (no GPU is needed), correct registers, occupancy and time by what
        the compiler says, and order them anew; ``Plan.compilation`` tells what changed. What fails to compile is left
        out. Compiling stops after `time_limit_s`, too.
    correction : "auto", "none", or str or Path
        Learned correction of times and order: "auto" uses one that was made for this device (shipped, or by
        ``anatune records train``), unless something is compiled; a folder or a shipped one's name uses that;
        "none" is the analytical model as it is. ``Plan.correction`` tells what was used.
    records : str or Path, optional
        Record file, or URL of a PostgreSQL server: ``Plan.measured`` is its best of this workload, device, threads and
        template; "auto" corrects by what it teaches of the device (LightGBM) where that helps on workloads left out.
    progress, compile_progress : callable, optional
        Called with the share of a long search that is done, in [0, 1]; with (programs compiled, programs to compile).

    Raises
    ------
    SpaceError
        `top_k` or `time_limit_s` is not positive; there is no such accuracy; the template or `threads` does not apply;
        `compile` is no number of programs, or the hardware is no GPU.
    BuildError
        The compiler does not know the GPU's architecture.
    MissingDependencyError
        Compiling, or the correction that was named, needs packages that are not installed.
    UnknownNameError, ModelVersionError
        There is no such correction; it is damaged, or for another template or version.
    RecordError
        There are no such records, or they cannot be read.
    """
    top_k = checked_integer("plan: top_k", top_k, 1, MOST_SCHEDULES)
    checked_function("plan: progress", progress)
    constraints = Constraints(template=template, accuracy=accuracy, time_limit_s=time_limit_s, distinct=distinct)
    evidence = Evidence(compile=compile, records=records, compile_progress=compile_progress)
    device = _checked(workload, hw, threads)
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
    """Choose few programs that serve a range of extents, and prove what that loses; no device is needed.

    A program is one compiled kernel that takes the extent when it is called, of any template that has some. What it
    loses is its predicted time over that of the best schedule of the single shape, less 1; see `RangePlan.left_out`.

    Parameters
    ----------
    workload
        Words with a range ("matmul 1..8192x4096x4096"; "64..4096:64" takes steps, "1,2,4,8" is a list), or a workload
        at any extent of the axis that varies.
    hw
        As in `plan`.
    axis : str, optional
        Of a workload: the axis that varies: "i".
    extents : str or iterable of int, optional
        Of a workload: "1..8192", ``range(1, 8193)`` or a list.
    kernels : int, optional
        At most so many programs: chosen so that the worst loss is least.
    loss : float, optional
        In their place: the fewest programs that lose no more than this share; 0.05 is 5 %.
    weights : mapping or sequence, optional
        With `kernels`: how much each extent counts, extent -> weight or one an extent. The mean loss is then made least
        in place of the worst one.
    template, threads
        As in `plan`.
    time_limit_s : float, optional
        Stop after this many seconds: the best choice that was found then, and the loss that was proven.
    progress : callable, optional
        Called with the share that is done, in [0, 1].

    Raises
    ------
    WorkloadError
        The extents are none, reversed, too many, or of an axis that cannot vary alone.
    SpaceError
        `kernels`, `loss`, `weights` or `time_limit_s` is none; no program is legal at every extent; the template has no
        programs for a range.
    UnknownNameError, SpecError
        As `hardware`.
    """
    from anatune.model.ranges.planning import checked_goal, families_of, plan_families

    checked_function("plan_range: progress", progress)
    time_limit_s = checked_seconds("plan_range: time_limit_s", time_limit_s)
    many = asked_range(workload, axis, extents)
    goal = checked_goal(many, kernels, loss, weights)
    device = _checked(many.largest, hw, threads)
    families, applying = families_of(many, device, template)
    return plan_families(families, goal, Watch(time_limit_s, progress), applying)


def predict(
    workload: Workload,
    hw: HardwareLike,
    schedules: Iterable[Schedule],
    *,
    threads: int | None = None,
    correction: str | Path = AUTO,
) -> pd.DataFrame:
    """Score schedules with the analytical model, and a learned correction where one was made for the device.

    Parameters
    ----------
    threads, correction
        As in `plan`. Times are for so many threads, whatever a schedule was planned for.

    Returns
    -------
    pandas.DataFrame
        One row a schedule, in the order given: time_s, its parts, the features, legal, rule (the first broken one).
        Where a correction was used, there are three more columns: correction (its name), plain_s (the analytical time)
        and support (the share of the correction that was used, in [0, 1]).

    Raises
    ------
    SpaceError
        A schedule belongs to another workload or template, `schedules` holds something else, or `threads` does not
        apply. A schedule that was made for another device is scored on `hw`: that is how a choice is carried over.
    UnknownNameError, ModelVersionError, MissingDependencyError
        The correction that was named does not exist, does not fit, or needs a package that is not installed.
    """
    import pandas as pd

    device = _checked(workload, hw, threads)
    if isinstance(schedules, Schedule) or not is_iterable(schedules):
        raise SpaceError(f"predict: schedules is {shown(schedules)}, expected a list of Schedule objects")
    schedules = list(schedules)
    for schedule in schedules:
        checked_schedule("predict", schedule)
    rows = joint.prediction_rows(workload, device, schedules, correction)
    if rows:
        return pd.DataFrame(rows)
    chosen = make_model(workload, device)  # no schedules: no rows, but the columns
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
    """Return the schedules that deserve a run: the first of the predicted order, for a tuner of one's own.

    Parameters
    ----------
    workload, hw
        What is computed, where: a spec, or a name or path for `hardware`.
    keep : float or int
        A float: share of the legal schedules, above 0 and below 1 (CPUs: loop nests that are the same are listed once,
        so fewer come). An integer: how many.
    template
        Whose schedules: one template's. Left out: on GPUs all that apply, in one order, as in `plan`; else "cpu".
    accuracy, threads
        As in `plan`.
    candidates : iterable of Schedule, optional
        Rank only these, of any templates, instead of a space.
    time_limit_s : float, optional
        Of the search; the order then has at most 10,000 schedules.
    distinct : bool
        Keep one schedule of each predicted time: schedules that the model cannot tell apart count as one. For a count,
        and for a space.
    diverse : bool
        Where at most 256 are kept (template "cuda", no time limit): choose them so that they do not share what the
        model gets wrong, from the best schedules of different predicted times and the fastest of 50,000 drawn ones
        (of candidates: from the first ones, four times as many as are kept, at least 256); the more are kept, the
        more of them are the first of the order. They still come in predicted order, the best predicted first. False:
        keep the first ones; schedules predicted alike then stay together.
    correction : "auto", "none", or str or Path
        As in `plan`. It chooses among the first of the analytical order, four times as many as are kept (at least 64).
        Beyond 20,000 kept schedules the analytical order says which, and the correction orders them as they are read.
    progress : callable, optional
        Called now and then with the share of a long search that is done, in [0, 1]; a subset that is read far makes
        several, each longer than the last.

    Returns
    -------
    Subset
        An iterable of schedules, best first, computed as it is read: of a space of 10^10 points only the beginning is
        ever ranked. ``explain(schedule)`` says why one is kept or not, ``keeps(schedule)`` whether; beyond 20,000 kept
        schedules both go by the time that a sample of the space suggests for the last one. ``num_kept``, ``num_legal``.

    Raises
    ------
    SpaceError
        `keep` or `time_limit_s` is no such number, a candidate is no Schedule of the workload, the template or
        `threads` does not apply.
    UnknownNameError, ModelVersionError, MissingDependencyError
        As `predict`.
    """
    from anatune.model.pruning.candidates import CandidateSubset
    from anatune.model.pruning.joined import subset_of  # numba: not where kernels are only measured

    checked_function("prune: progress", progress)
    asked = Constraints(accuracy=accuracy, time_limit_s=time_limit_s, distinct=distinct, call="prune")
    diverse = checked_flag("prune: diverse", diverse)
    device = _checked(workload, hw, threads)
    if candidates is None:
        names = joint.asked_templates(workload, device, template or _WALKED.get(device.kind), accuracy)
        saved = joint.find_corrections(device, names, correction)
        models = [corrected(make_model(workload, device, name, asked.admitted), saved[name]) for name in names]
        return subset_of(models, keep, asked.admitted, asked.time_limit_s, asked.distinct, diverse, progress)
    if isinstance(candidates, Schedule) or not is_iterable(candidates):
        raise SpaceError(f"prune: candidates is {shown(candidates)}, expected a list of Schedule objects")
    model_of = partial(joint.corrected_model, workload, device, correction)
    return CandidateSubset(workload, device, keep, list(candidates), model_of, diverse=diverse)
