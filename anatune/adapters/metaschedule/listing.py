"""``anatune prune --for metaschedule``: schedules as decisions of MetaSchedule's design space, one JSON line each.

For a GPU, a line has the decisions of SSSRRSRS multi-level tiling, in the order in which a trace samples them::

    {"predicted_s": 0.000246, "sample_perfect_tile": {"i": [8, 1, 4, 1, 16], ..., "k": [16, 64, 1]},
     "cooperative_fetch": {"A": 4, "B": 4}, "unroll_explicit": 512}

`with_decisions` puts them into a trace. For a CPU, a line is a schedule of anatune's own template
(``Schedule.to_json``), because MetaSchedule's tiling has no microkernels.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.adapters.metaschedule.traces import recorded_trace
from anatune.core.hardware.spec import GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.errors import SpaceError
from anatune.listing.formats import PruneRequest
from anatune.records.traces import GPU_TILING, Json
from anatune.templates.cuda.model.model import CudaModel
from anatune.untyped import tvm

__all__ = ["UNROLL_STEPS", "metaschedule_lines", "with_decisions"]

_FETCH_WIDTHS = (1, 2, 3, 4)
UNROLL_STEPS = (0, 16, 32, 64, 128, 256, 512, 1024)
_MOST_INNERMOST = 64
_MOST_SHARED_BYTES = 49152
"""The choices and limits of MetaSchedule's CUDA design space and targets. Source: TVM 0.27, traces of
generate_design_space() and max_shared_memory_per_block of its target tags."""
_MOST_READ = 20_000
"""The number of schedules that are searched for those that MetaSchedule can express."""


def metaschedule_lines(request: PruneRequest) -> Iterator[str]:
    """Yield JSON objects, best predicted first.

    Raises
    ------
    SpaceError
        The template is not the device's default, or MetaSchedule can express none of the schedules.
    """
    hardware = request.hardware
    if hardware.kind == "cpu":  # anatune's own format can express every schedule
        yield from (schedule.to_json() for schedule, _ in itertools.islice(request.subset().entries(), request.most))
        return
    request.require_cuda_cores("metaschedule")
    for schedule, prediction in _list_expressible(request, hardware):
        tiles = {axis.name: schedule.tiles[axis.name] for axis in request.workload.axes}
        entry = {
            "predicted_s": prediction.time_s,
            "sample_perfect_tile": tiles,
            "cooperative_fetch": schedule.vector,
            "unroll_explicit": schedule.unroll,
        }
        yield msgspec.json.encode(entry).decode()


def _list_expressible(request: PruneRequest, hardware: GpuSpec) -> Iterator[tuple[Schedule, Prediction]]:
    """Yield schedules that MetaSchedule can express; as many as `request.keep` says, if that is a count."""
    counted = isinstance(request.keep, int)
    count: int = min(request.most, int(request.keep)) if counted else request.most
    model = CudaModel(request.workload, hardware, plain=True)
    num_kept = int(request.keep) if counted else request.plain_subset(model).num_kept
    chosen = list(_choose_expressible(request, model, min(count, num_kept))) if request.may_choose(num_kept) else []
    if chosen:
        yield from chosen
        return
    most = max(_MOST_READ, count)
    larger_request = dataclasses.replace(request, keep=most) if counted else request
    yielded = 0
    for read, (schedule, prediction) in enumerate(larger_request.plain_subset(model).entries(), 1):
        if _is_expressible(schedule, prediction, hardware):
            yield schedule, prediction
            yielded += 1
        if yielded == count or read == most:
            break
    if not yielded:
        raise SpaceError(
            f"metaschedule: none of the best {read} schedules is in MetaSchedule's design space (thread blocks need at "
            f"least {hardware.compute.warp_size} threads); keep more schedules, or use --for json"
        )


def _choose_expressible(
    request: PruneRequest, analytical: CudaModel, count: int
) -> Iterator[tuple[Schedule, Prediction]]:
    """Yield a few schedules that MetaSchedule can express, selected in the same way as by `anatune.prune`."""
    model, hardware = request.plain_subset(analytical).model, analytical.hardware

    def express(points: NDArray[np.int64]) -> NDArray[np.int64]:
        schedules = map(analytical.space.schedule_of, points)
        flags = [
            _is_expressible(*both, hardware) for both in zip(schedules, analytical.predictions(points), strict=True)
        ]
        expressible: NDArray[np.int64] = points[np.array(flags, dtype=bool)]
        return expressible

    points = request.choose_few(analytical, model, count, express)
    if points is not None:
        yield from zip(map(analytical.space.schedule_of, points), model.predictions(points), strict=True)


def _is_expressible(schedule: Schedule, prediction: Prediction, hardware: GpuSpec) -> bool:
    """Return whether MetaSchedule's design space has a schedule and its postprocessors accept it."""
    spatial = [tile for tile in schedule.tiles.values() if len(tile) == 5]
    shared = prediction.resources["shared_bytes_per_block"]
    return (
        math.prod(tile[2] for tile in spatial) >= hardware.compute.warp_size
        and (shared <= _MOST_SHARED_BYTES or not hardware.arch.startswith("sm_"))
        and all(tile[-1] <= _MOST_INNERMOST for tile in schedule.tiles.values())
        and all(width in _FETCH_WIDTHS for width in schedule.vector.values())
        and schedule.unroll in UNROLL_STEPS
    )


def with_decisions(trace: tvm.s_tir.schedule.Trace | Sequence[Json], entry: Mapping[str, Json] | str) -> list[Json]:
    """Return a trace of the CUDA design space with the decisions of a line; this does not need TVM.

    Parameters
    ----------
    trace
        The trace without software pipeline among those of ``TuneContext.generate_design_space()``, as
        ``schedule.trace`` or as JSON: ``[instructions, decisions]``.
    entry
        A line of the listing, as text or decoded.

    Returns
    -------
    list
        ``[instructions, decisions]`` for ``Trace.apply_json_to_schedule`` or a line of a database.

    Raises
    ------
    SpaceError
        The trace has other loops or another kind of tiling, or lacks a decision.
    """
    instructions, decisions = recorded_trace(trace) if hasattr(trace, "as_json") else trace
    given = msgspec.json.decode(entry) if isinstance(entry, str | bytes) else entry
    decided = {int(at): value for at, value in decisions}
    annotations = [(key, value) for _, key, value in _annotations(instructions)]
    if any(key == "software_pipeline_stage" for key, _ in annotations):
        raise SpaceError("metaschedule: the trace has a software pipeline; use the first trace of the design space")
    if not any(key.endswith("tiling_structure") and value == GPU_TILING for key, value in annotations):
        raise SpaceError(f"metaschedule: the trace's tiling is not {GPU_TILING}; use one of the CUDA design space")
    decided |= _tiles(instructions, decided, given["sample_perfect_tile"])
    sources = _operand_of_block(instructions)
    for block, key, value in _annotations(instructions):
        if key.endswith("cooperative_fetch"):
            number = sources.get(block, -1)
            widths = list(given["cooperative_fetch"].values())
            if not 0 <= number < len(widths):
                raise SpaceError(
                    f"metaschedule: the trace stages operand {number}, but the line has {len(widths)} operands"
                )
            decided |= _find_decision(instructions, value, widths[number])
        elif key.endswith(("unroll_explicit", "unroll_implicit")):
            decided |= _find_decision(instructions, value, given["unroll_explicit"])
    return [instructions, [[at, decided[at]] for at in sorted(decided)]]


def _annotations(instructions: Sequence[Json]) -> list[tuple[Json, str, Json]]:
    """Return block or loop, key, and value of every annotation."""
    return [(step[1][0], str(step[2][0]), _strip_quotes(step[1][1])) for step in instructions if step[0] == "Annotate"]


def _tiles(
    instructions: Sequence[Json], decided: Mapping[int, Json], tiles: Mapping[str, Json]
) -> dict[int, list[int]]:
    """Return the decisions of SamplePerfectTile for the axes in order; loops of one iteration may be missing."""
    places = [at for at, step in enumerate(instructions) if step[0] == "SamplePerfectTile"]
    left = list(tiles.items())
    new_decisions = {}
    for position in places:
        now = [int(factor) for factor in decided[position]]
        while left and math.prod(left[0][1]) == 1 != math.prod(now):
            left.pop(0)
        if math.prod(now) == 1 and not (left and math.prod(left[0][1]) == 1):
            new_decisions[position] = now  # the workload has no axis for this loop of one iteration
            continue
        if not left or len(now) != len(left[0][1]) or math.prod(now) != math.prod(left[0][1]):
            name = f"has {left[0][1]} for {left[0][0]}" if left else "has no axis for them"
            raise SpaceError(f"metaschedule: the trace has {len(now)} factors of {math.prod(now)}, but the line {name}")
        new_decisions[position] = [int(factor) for factor in left.pop(0)[1]]
    if any(math.prod(factors) > 1 for _, factors in left):
        raise SpaceError(f"metaschedule: the trace has no loop for axis {left[0][0]}; take the workload's own trace")
    return new_decisions


def _operand_of_block(instructions: Sequence[Json]) -> dict[Json, int]:
    """Return the number of the operand that each staging block reads."""
    return {step[3][0]: int(step[2][0]) for step in instructions if step[0] == "CacheRead"}


def _find_decision(instructions: Sequence[Json], variable: Json, wanted: int) -> dict[int, int]:
    """Return the decision of the SampleCategorical instruction that defines a variable."""
    for position, step in enumerate(instructions):
        if step[0] == "SampleCategorical" and step[3] == [variable]:
            candidates = [int(value) for value in step[2][0]]
            if wanted not in candidates:
                raise SpaceError(f"metaschedule: the line has {wanted}, but the trace allows {candidates} only")
            return {position: candidates.index(wanted)}
    return {}


def _strip_quotes(value: Json) -> Json:
    """Return a string without the quotes that traces put around it."""
    return value.strip('"') if isinstance(value, str) else value
