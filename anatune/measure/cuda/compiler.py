"""Compiling many GPU schedules at once in separate processes; a failure is an `Outcome` and raises no exception."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from anatune.codegen.toolchains import describe_compilers, entry_of, find_toolchain
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule, check_schedule
from anatune.core.trial import Outcome
from anatune.errors import BuildError, MissingDependencyError, RunError, SpaceError
from anatune.files import scratch_folder
from anatune.measure.run.build_processes import BuildJob, BuildProcesses, Limits
from anatune.measure.run.cores import physical_cores
from anatune.model.compilation import Compilation, CompiledSchedule
from anatune.model.plan import Plan
from anatune.named import check_all
from anatune.resources import usable_cores
from anatune.templates import get_template
from anatune.templates.gpu.model import BaseGpuModel
from anatune.templates.gpu.rules import gpu_of

COMPILE_LIMITS = Limits(build_s=30.0)
"""Limits for generating and compiling one schedule. Kernels of many thousand statements take longer, but are not fast.
Triton's conversions of emulated 8-bit floats take 17 s (e4m3fn on gfx942)."""
_MOST_PROCESSES = 8
_ENTRY = "anatune.codegen.toolchains:compile_entry"


class CompileResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of compiling one schedule. Immutable; JSON both ways.

    Attributes
    ----------
    outcome : Outcome
        OK, INVALID, BUILD_ERROR or BUILD_TIMEOUT.
    facts : CompilerFacts or None
        The compiler's report, if it is OK.
    message : str
        Reason of a failure, in one line.
    seconds : float
        Wall time.
    """

    outcome: Outcome
    facts: CompilerFacts | None = None
    message: str = ""
    seconds: float = 0.0


def compile_schedules(
    schedules: Sequence[Schedule],
    *,
    limits: Limits = COMPILE_LIMITS,
    time_limit_s: float | None = None,
    num_processes: int | None = None,
    entry: str = _ENTRY,
) -> Iterator[tuple[int, CompileResult]]:
    """Generate and compile schedules and yield each result as soon as it is ready; no GPU is needed.

    The processes end with the iterator, also after an error or Ctrl-C.

    Parameters
    ----------
    schedules
        Schedules for GPUs.
    limits
        Limits on the time and memory of one schedule.
    time_limit_s : float, optional
        Seconds after which the remaining schedules are left out.
    num_processes : int, optional
        Number of processes; by default one for each core.
    entry : str
        ``module:function`` that compiles one schedule, (schedule, folder, threads=) -> CompilerFacts.

    Yields
    ------
    (int, CompileResult)
        Position in `schedules`, and the result.

    Raises
    ------
    BuildError
        No schedule can be compiled, because no compiler supports its architecture. The others yield an
        outcome.
    MissingDependencyError
        A package is missing.
    RunError
        The processes cannot be started.
    SpaceError
        An element of `schedules` is no schedule.
    """
    for schedule in schedules:
        check_schedule("compile", schedule)
    if not schedules:
        return
    refused = _find_refused(schedules)
    for position, why in refused.items():
        yield position, CompileResult(Outcome.BUILD_ERROR, message=why)
    count = num_processes or min(_MOST_PROCESSES, len(physical_cores()) or os.cpu_count() or 1, usable_cores())
    deadline = float("inf") if time_limit_s is None else time.monotonic() + time_limit_s
    folder = scratch_folder(RunError)
    environment = {"TMPDIR": str(folder)}
    setup = entry_of(next(one.template for at, one in enumerate(schedules) if at not in refused), "set_up")
    builders = BuildProcesses(entry, [()] * min(count, len(schedules)), limits, environment=environment, setup=setup)
    places = {BuildJob(schedule, folder): at for at, schedule in enumerate(schedules) if at not in refused}
    try:
        for job in builders.finish(places, deadline=deadline):
            yield places[job], _compile_result(job)
    finally:
        builders.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _find_refused(schedules: Sequence[Schedule]) -> dict[int, str]:
    """Return the reasons why schedules cannot be compiled, by position; raise an error if none can be compiled."""
    errors: dict[tuple[str, str], BuildError | None] = {}
    for schedule in schedules:
        key = schedule.template, schedule.hardware.arch
        if key in errors:
            continue
        try:
            find_toolchain(schedule.template).check_target(gpu_of(schedule))
        except BuildError as error:
            errors[key] = error
        else:
            errors[key] = None
    errors_by_position = {at: errors[one.template, one.hardware.arch] for at, one in enumerate(schedules)}
    failed = {at: error for at, error in errors_by_position.items() if error is not None}
    if len(failed) == len(schedules):
        raise failed[0]
    return {at: str(error) for at, error in failed.items()}


def _compile_result(job: BuildJob) -> CompileResult:
    """Return the result of a job that ended."""
    if isinstance(job.artifact, CompilerFacts):
        return CompileResult(Outcome.OK, job.artifact, seconds=job.build_s)
    assert job.measurement is not None
    return CompileResult(job.measurement.outcome, message=job.measurement.message, seconds=job.build_s)


def compile_ranking(
    models: Mapping[str, BaseGpuModel],
    ranking: Sequence[Schedule],
    count: int,
    *,
    time_limit_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    limits: Limits = COMPILE_LIMITS,
    entry: str = _ENTRY,
) -> Compilation:
    """Compile the first `count` different kernels of a ranking and correct their predictions.

    Parameters
    ----------
    models : mapping of str to BaseGpuModel
        Template -> its model, for one workload and GPU.
    ranking : sequence of Schedule
        The schedules, best first.
    count : int
        Number of kernels; fewer if there are fewer different ones.
    time_limit_s : float, optional
        Seconds after which compiling stops.
    progress : callable, optional
        Called with (kernels done, all kernels).
    limits, entry
        As `compile_schedules`.

    Raises
    ------
    BuildError, MissingDependencyError, RunError
        As `compile_schedules`.
    """
    began = time.monotonic()
    chosen: dict[Hashable, int] = {}
    considered = 0
    for considered, schedule in enumerate(ranking, start=1):
        key = get_template(schedule.template).program_key(schedule)
        chosen.setdefault((schedule.template, key), considered - 1)
        if len(chosen) == count:
            break
    places = list(chosen.values())
    schedules = [ranking[at] for at in places]
    points = [models[schedule.template].space.point_of(schedule) for schedule in schedules]
    before = [
        models[schedule.template].predictions(point[None])[0] for schedule, point in zip(schedules, points, strict=True)
    ]
    results: dict[int, CompileResult] = {}
    for position, compiled in compile_schedules(schedules, time_limit_s=time_limit_s, limits=limits, entry=entry):
        results[position] = compiled
        if progress is not None:
            progress(len(results), len(schedules))
    facts = {at: result.facts for at, result in results.items() if result.facts is not None}
    predicted = {
        at: models[schedules[at].template].compiled_predictions(points[at][None], [fact], [before[at]])[0]
        for at, fact in facts.items()
    }
    entries = tuple(
        CompiledSchedule(
            schedules[at],
            places[at] + 1,
            before[at],
            results[at].outcome,
            results[at].message,
            results[at].seconds,
            facts.get(at),
            predicted.get(at),
        )
        for at in sorted(results)
    )
    left = tuple(place + 1 for at, place in enumerate(places) if at not in results)
    version, _ = describe_compilers([schedule.template for schedule in schedules])
    return Compilation(version, entries, considered, left, time.monotonic() - began)


def check_compiler(hardware: GpuSpec | CpuSpec, templates: Sequence[str]) -> None:
    """Raise an error, before a search, if no schedule of these templates can be compiled for `hardware`."""
    if hardware.kind != "gpu":
        raise SpaceError(
            f"plan: compile is for GPUs, but {hardware.name} is a CPU; for one schedule use anatune.inspect(schedule)"
        )
    errors: list[BuildError] = []
    missing = []
    for chain in dict.fromkeys(map(find_toolchain, templates)):
        try:
            chain.check_target(hardware)
        except MissingDependencyError:
            missing.append(partial(chain.check_target, hardware))
        except BuildError as error:
            errors.append(error)
        else:
            return
    check_all(*missing)
    raise errors[0]


def compiled_plan(
    answer: Plan,
    models: Mapping[str, BaseGpuModel],
    count: int,
    time_limit_s: float | None,
    progress: Callable[[int, int], None] | None,
) -> Plan:
    """Return the plan with its first kernels compiled and sorted by corrected times, followed by the others.

    The parameters are those of `compile_ranking`.

    Raises
    ------
    BuildError
        No kernel compiles, or the compiler does not support the GPU's architecture.
    MissingDependencyError, RunError
        As `compile_ranking`.
    """
    result = compile_ranking(models, answer.schedules, count, time_limit_s=time_limit_s, progress=progress)
    ranked = result.ranked
    behind = [place - 1 for place in result.left] + list(range(result.num_considered, len(answer.schedules)))
    if result.failed and not ranked and not behind:
        raise BuildError(
            f"plan: none of the first {len(result.failed)} kernels compiles; the first error: "
            f"{result.failed[0].message}; plan without compile, or compile more kernels"
        )
    return replace(
        answer,
        schedules=[entry.schedule for entry in ranked] + [answer.schedules[at] for at in behind],
        predictions=[entry.after for entry in ranked if entry.after] + [answer.predictions[at] for at in behind],
        template=ranked[0].schedule.template if ranked else answer.template,
        compilation=result,
        num_alike=None,
    )
