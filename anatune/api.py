"""The library calls: hardware, space, plan, predict. Everything here is one step on top of the models."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from msgspec.structs import replace as replace_fields

from anatune.arguments import checked_flag, checked_function, checked_integer, checked_seconds, is_iterable, shown
from anatune.core.accuracy import RELAXED, STANDARD, checked_accuracy
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule, checked_schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.ranges import RangedWorkload, parse_ranged, ranged
from anatune.errors import BuildError, SpaceError
from anatune.measure.named_hardware import HardwareLike, hardware
from anatune.model.joint import asked_templates, find_corrections, merged, rank_templates
from anatune.model.learned.corrected import CorrectedModel
from anatune.model.learned.corrections import AUTO, NONE, find_correction, named_correction
from anatune.model.plan import MeasuredSchedule, Plan, prediction_row
from anatune.model.ranges.plan import RangePlan
from anatune.templates import make_model, template_named
from anatune.templates.base.model import AnalyticalModel, Model, Progress
from anatune.templates.base.space import Space
from anatune.templates.base.watch import Watch
from anatune.templates.cpu.space import CpuSpace
from anatune.templates.cuda.pipelined_space import PipelinedSpace
from anatune.templates.cuda.space import GpuSpace
from anatune.templates.tensorcore.space import TensorCoreSpace
from anatune.tuning.machine import choose_threads

if TYPE_CHECKING:
    import pandas as pd

    from anatune.model.pruning.subset import Subset
    from anatune.records.place import ServerAddress
    from anatune.records.schema import Record
    from anatune.report.alternatives import Alternative

__all__ = ["Plan", "RangePlan", "hardware", "plan", "plan_range", "predict", "prune", "space"]

MOST_SCHEDULES = 10_000
"""Most schedules that one plan returns."""
MOST_COMPILED = 1_000
"""Most programs that one plan compiles."""
SCHEDULES_A_PROGRAM = 8
"""Schedules that are ranked for each program to compile: unroll depths and fetch widths often make no difference."""


def _checked(workload: Workload, hw: HardwareLike, threads: int | None) -> GpuSpec | CpuSpec:
    """Return the hardware that is meant, with so many of its cores.

    Raises
    ------
    SpaceError
        `workload` or `hw` is of another type (swapped arguments); `threads` is no number of the CPU's cores, or the
        hardware is a GPU.
    UnknownNameError, SpecError
        As `hardware`.
    """
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
    template : {"cuda", "pipelined", "tensorcore", "thin", "cpu"}, optional
        What the schedules look like; left out: "cuda" (CUDA cores) for GPUs, "cpu" for CPUs.
    threads : int, optional
        Of CPUs: threads that kernels run with, from 1 to the number of cores (the default).

    Raises
    ------
    SpaceError
        An argument is of another type (swapped arguments), the template does not apply to the workload or the
        hardware, or `threads` does not apply to the hardware.
    UnknownNameError, SpecError
        As `hardware`.
    """
    return make_model(workload, _checked(workload, hw, threads), template)


@overload
def space(
    workload: Workload, hw: HardwareLike, *, template: Literal["tensorcore"], threads: int | None = None
) -> TensorCoreSpace: ...


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
    """Return the tile space of `workload` on `hw`: size, axes, extents, sample(), schedule().

    Parameters
    ----------
    template, threads
        As in `model`.
    """
    return model(workload, hw, template, threads).space


def plan(
    workload: Workload,
    hw: HardwareLike,
    top_k: int = 10,
    *,
    template: str | None = None,
    accuracy: str = STANDARD,
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
    template : {"cuda", "pipelined", "tensorcore", "thin", "cpu"}, optional
        Rank the schedules of one template alone: "tensorcore" for float16, bfloat16 and tf32 (float32 operands are
        rounded) on tensor cores. Left out: "cuda" (CUDA cores) for GPUs; for CPUs all that apply, in one order.
    accuracy : {"standard", "relaxed"}
        What arithmetic is admitted. "standard": what errs about as much as a plain sum of the products, which includes
        Winograd's F(2x2, 3x3). "relaxed": F(4x4, 3x3), too, which errs several times as much, and sums in float16.
    threads : int, optional
        Of CPUs: threads that kernels run with, from 1 to the number of cores (the default). A schedule for all cores is
        seldom the best for one.
    time_limit_s : float, optional
        Stop the search after this many seconds; the guarantee then says how far from the optimum the answer can be.
    distinct : bool
        Return one schedule of each predicted time: schedules that the model cannot tell apart count as one, and
        ``Plan.num_alike`` says how many they are. False: the first `top_k` of all schedules. The command line answers
        with True unless it is asked for ``--all``.
    compile : int
        Generate and compile the first so many different programs (no GPU is needed), correct registers, occupancy and
        time by what the compiler says, and order them anew; ``Plan.compilation`` tells what changed. What fails to
        compile is left out. Compiling stops after `time_limit_s`, too.
    correction : "auto", "none", or str or Path
        Learned correction of times and order: "auto" uses one that was made for this device (shipped, or by
        ``anatune records train``), unless something is compiled; a folder or a shipped one's name uses that;
        "none" is the analytical model as it is. ``Plan.correction`` tells what was used.
    records : str or Path, optional
        Record file, or URL of a PostgreSQL server: ``Plan.measured`` is the best that it has of this workload, device,
        number of threads and template. The order of the plan stays that of the model.
    progress : callable, optional
        Called now and then with the share of a long search that is done, in [0, 1].
    compile_progress : callable, optional
        Called with (programs compiled, programs to compile).

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
    time_limit_s = checked_seconds("plan: time_limit_s", time_limit_s)
    compile = checked_integer("plan: compile", compile, 0, MOST_COMPILED)
    distinct = checked_flag("plan: distinct", distinct)
    checked_function("plan: progress", progress)
    checked_function("plan: compile_progress", compile_progress)
    accuracy = checked_accuracy("plan: accuracy", accuracy)
    device = _checked(workload, hw, threads)
    known = None if records is None else _recorded(workload, device, template, accuracy, records)
    if compile:
        _check_compiler(device)
        if str(correction) not in (AUTO, NONE):
            raise SpaceError("plan: compile and correction both change the order; leave one out")
        correction = NONE
    count = max(top_k, SCHEDULES_A_PROGRAM * compile)
    names = asked_templates(workload, device, template, accuracy)
    saved = find_corrections(device, names, correction)
    ranked = rank_templates(
        workload, device, names, count, accuracy, saved, time_limit_s, distinct=distinct, progress=progress
    )
    answer = merged([one.plan for one in ranked], count)
    if compile:
        models = {one.plan.template: one.model for one in ranked}
        answer = _compiled(answer, models, compile, time_limit_s, compile_progress)
    if known is not None:
        answer = replace(answer, measured=_measured(known, device, {one.plan.template: one.model for one in ranked}))
    return answer.first(top_k)


def _recorded(
    workload: Workload, device: GpuSpec | CpuSpec, template: str | None, accuracy: str, records: Any
) -> tuple[Record, str] | None:
    """Return the best record of what is planned, and where it is."""
    from anatune.records.store import RecordStore
    from anatune.tuning.reuse import recorded_leaders

    with RecordStore(records, read_only=True) as store:
        threads = device.most_threads or 1
        found = recorded_leaders(store, workload, device, threads, 1, template=template, accuracy=accuracy)
        return (found[0], str(store.path)) if found else None


def _measured(known: tuple[Record, str], device: GpuSpec | CpuSpec, models: Mapping[str, Model]) -> MeasuredSchedule:
    """Return what a plan tells of a record."""
    record, place = known
    trial = record.trial
    schedule = replace_fields(trial.schedule, hardware=device)
    predicted_s = None
    if schedule.template in models:
        model = models[schedule.template]
        with contextlib.suppress(SpaceError):  # no point of the space, which may have changed since
            seconds = float(model.times(model.space.point_of(schedule)[None, :])[0][0])
            predicted_s = seconds if np.isfinite(seconds) else None
    time_s = trial.measurement.time_s
    assert time_s is not None
    return MeasuredSchedule(
        schedule, time_s, predicted_s, record.created_utc, record.session.id, trial.measurement.worker, place
    )


def plan_range(
    workload: Workload | RangedWorkload | str,
    hw: HardwareLike,
    axis: str | None = None,
    extents: str | Iterable[int] | None = None,
    *,
    kernels: int | None = None,
    loss: float | None = None,
    weights: Any = None,
    template: str | None = None,
    threads: int | None = None,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> RangePlan:
    """Choose few programs that serve a range of extents, and prove what that loses; no device is needed.

    A program is one compiled kernel that takes the extent when it is called. What it loses at an extent is its
    predicted time over that of the best program of the single shape, less 1.

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
    many = _ranged(workload, axis, extents)
    goal = checked_goal(many, kernels, loss, weights)
    device = _checked(many.largest, hw, threads)
    names = asked_templates(many.largest, device, template, STANDARD)
    families = families_of(many, device, [template_named(name) for name in names])
    return plan_families(families, goal, Watch(time_limit_s, progress))


def _ranged(workload: object, axis: object, extents: object) -> RangedWorkload:
    """Return the workload whose extent varies; arguments as of `plan_range`."""
    if isinstance(workload, Workload) and (axis is None or extents is None):
        raise SpaceError("plan_range: a workload needs axis= and extents= besides, such as axis='i', extents='1..8192'")
    if isinstance(workload, Workload):
        return ranged(workload, axis, extents)
    if axis is not None or extents is not None:
        raise SpaceError("plan_range: axis and extents are for a workload without a range; leave them out")
    if isinstance(workload, str):
        return parse_ranged(workload.split())
    if not isinstance(workload, RangedWorkload):
        raise SpaceError(
            f"plan_range: workload is {shown(workload)}, expected words such as 'matmul 1..8192x4096x4096', or a "
            "Workload with axis and extents"
        )
    return workload


def model_of(answer: Plan) -> Model:
    """Return the model that ordered a plan: the analytical one, with the plan's correction if it has one."""
    chosen = make_model(answer.workload, answer.hardware, answer.template, answer.accuracy)
    if answer.correction is None:
        return chosen
    return CorrectedModel(chosen, named_correction(answer.correction.folder).model)


def explain(answer: Plan) -> str:
    """Return why the best schedule of a plan is the best; see `Plan.explain`."""
    from anatune.report.explain import explanation

    return "\n".join(explanation(answer, steps_from(answer)))


def steps_from(answer: Plan) -> list[Alternative]:
    """Return what the model says of the schedules one step away from a plan's best."""
    from anatune.report.alternatives import alternatives
    from anatune.report.explain import MATERIAL_SHARE

    return alternatives(model_of(answer), answer.schedules[0], MATERIAL_SHARE) if answer.schedules else []


def _check_compiler(hardware: GpuSpec | CpuSpec) -> None:
    """Raise an error if nothing can be compiled for `hardware`: better before a search than after it."""
    from anatune.codegen.compat import import_tvm
    from anatune.codegen.cuda.nvrtc import check_arch

    if not isinstance(hardware, GpuSpec):
        raise SpaceError(
            f"plan: compile is for GPUs, and {hardware.name} is none; anatune.inspect(schedule) asks the compiler here"
        )
    check_arch(hardware.arch)
    import_tvm()


def _compiled(
    answer: Plan,
    models: Mapping[str, Any],
    count: int,
    time_limit_s: float | None,
    progress: Callable[[int, int], None] | None,
) -> Plan:
    """Return the plan with its first programs compiled: ordered by corrected times, the others behind them."""
    from anatune.measure.cuda.compiler import compile_ranking

    result = compile_ranking(models, answer.schedules, count, time_limit_s=time_limit_s, progress=progress)
    ranked = result.ranked
    behind = [place - 1 for place in result.left] + list(range(result.num_considered, len(answer.schedules)))
    if result.failed and not ranked and not behind:
        raise BuildError(
            f"plan: none of the first {len(result.failed)} programs compiles; the first says: "
            f"{result.failed[0].message}; plan without compile, or compile more"
        )
    return replace(
        answer,
        schedules=[entry.schedule for entry in ranked] + [answer.schedules[at] for at in behind],
        predictions=[entry.after for entry in ranked if entry.after] + [answer.predictions[at] for at in behind],
        template=ranked[0].schedule.template if ranked else answer.template,
        compilation=result,
        num_alike=None,
    )


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
        apply. A schedule that was
        made for another device is scored on `hw`: that is how a choice is carried over.
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
    rows: list[dict[str, Any]] = [{} for _ in schedules]
    for template in dict.fromkeys(schedule.template for schedule in schedules):
        chosen = make_model(workload, device, template)
        places = [place for place, schedule in enumerate(schedules) if schedule.template == template]
        points = np.array([chosen.space.point_of(schedules[place]) for place in places], dtype=np.int64)
        predictions = chosen.predictions(points)
        more: list[dict[str, Any]] = [{} for _ in places]
        saved = find_correction(device, template, correction)
        if saved is not None:
            corrected = CorrectedModel(chosen, saved.model)
            support = corrected.correction(points).support.tolist()
            plain_s = [prediction.time_s for prediction in predictions]
            predictions = corrected.predictions(points)
            more = [
                {"correction": saved.card.name, "plain_s": time_s, "support": share}
                for time_s, share in zip(plain_s, support, strict=True)
            ]
        for place, prediction, columns in zip(places, predictions, more, strict=True):
            rows[place] = prediction_row(prediction) | columns
    if rows:
        return pd.DataFrame(rows)
    chosen = make_model(workload, device)  # no schedules: no rows, but the columns
    empty = np.array([chosen.space.point_of(chosen.space.schedule({}))], dtype=np.int64)
    return pd.DataFrame([prediction_row(prediction) for prediction in chosen.predictions(empty)]).iloc[:0]


def _corrected_model(
    workload: Workload, hw: GpuSpec | CpuSpec, correction: str | Path, template: str | None, accuracy: str = RELAXED
) -> Model:
    """Return the model of a template, corrected where there is a correction."""
    chosen = make_model(workload, hw, template, accuracy)
    saved = find_correction(hw, chosen.space.template, correction)
    return chosen if saved is None else CorrectedModel(chosen, saved.model)


def prune(
    workload: Workload,
    hw: HardwareLike,
    keep: float = 0.01,
    *,
    template: str | None = None,
    accuracy: str = STANDARD,
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
        A float: share of the legal schedules, above 0 and below 1. An integer: how many. CPU schedules that describe
        the same loop nest are listed once, so fewer than that share of all come.
    template
        Whose schedules: one template's, as tuners walk one space; left out, the device's default, "cuda" or "cpu".
    accuracy, threads
        As in `plan`.
    candidates : iterable of Schedule, optional
        Rank only these, of any templates, instead of a space.
    time_limit_s : float, optional
        Of the search; the order then ends after at most 10,000 schedules.
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
        The correction that was named does not exist, does not fit, or needs a package that is not installed.
    """
    from anatune.model.pruning.candidates import CandidateSubset
    from anatune.model.pruning.subset import SpaceSubset  # numba: not where kernels are only measured

    time_limit_s = checked_seconds("prune: time_limit_s", time_limit_s)
    distinct, diverse = checked_flag("prune: distinct", distinct), checked_flag("prune: diverse", diverse)
    accuracy = checked_accuracy("prune: accuracy", accuracy)
    checked_function("prune: progress", progress)

    device = _checked(workload, hw, threads)
    model_of = partial(_corrected_model, workload, device, correction)
    if candidates is None:
        return SpaceSubset(
            model_of(template, accuracy),
            keep,
            time_limit_s=time_limit_s,
            distinct=distinct,
            diverse=diverse,
            progress=progress,
        )
    if isinstance(candidates, Schedule) or not is_iterable(candidates):
        raise SpaceError(f"prune: candidates is {shown(candidates)}, expected a list of Schedule objects")
    return CandidateSubset(workload, device, keep, list(candidates), model_of, diverse=diverse)
