"""``anatune prune --for metaschedule``: kept schedules as decisions of MetaSchedule's design space, one a line (JSON).

For a GPU a line has the decisions of SSSRRSRS multi-level tiling, in the order in which a trace samples them::

    {"predicted_s": 0.000246, "sample_perfect_tile": {"i": [8, 1, 4, 1, 16], ..., "k": [16, 64, 1]},
     "cooperative_fetch": {"A": 4, "B": 4}, "unroll_explicit": 512}

`with_decisions` puts them into a trace. For a CPU a line is a schedule of anatune's own template
(``Schedule.to_json``): MetaSchedule's tiling has no microkernels.
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
from anatune.templates.cuda.model.model import GpuModel
from anatune.untyped import tvm

__all__ = ["UNROLL_STEPS", "metaschedule_lines", "with_decisions"]

_FETCH_WIDTHS = (1, 2, 3, 4)
UNROLL_STEPS = (0, 16, 32, 64, 128, 256, 512, 1024)
_MOST_INNERMOST = 64
_MOST_SHARED_BYTES = 49152
"""Candidates and limits of MetaSchedule's CUDA design space, and of its targets: what a CUDA kernel can declare.
Source: TVM 0.27, traces of generate_design_space() and max_shared_memory_per_block of its target tags."""
_MOST_READ = 20_000
"""Schedules of which those are taken that MetaSchedule can express."""


def metaschedule_lines(request: PruneRequest) -> Iterator[str]:
    """Yield JSON objects, best predicted first.

    Raises
    ------
    SpaceError
        The template is another one than the first of the device's, or nothing that MetaSchedule expresses is kept.
    """
    hardware = request.hardware
    if hardware.kind == "cpu":  # its own template: all of it can be said
        yield from (schedule.to_json() for schedule, _ in itertools.islice(request.subset().entries(), request.most))
        return
    request.require_cuda_cores("metaschedule")
    for schedule, prediction in _kept(request, hardware):
        tiles = {axis.name: schedule.tiles[axis.name] for axis in request.workload.axes}
        entry = {
            "predicted_s": prediction.time_s,
            "sample_perfect_tile": tiles,
            "cooperative_fetch": schedule.vector,
            "unroll_explicit": schedule.unroll,
        }
        yield msgspec.json.encode(entry).decode()


def _kept(request: PruneRequest, hardware: GpuSpec) -> Iterator[tuple[Schedule, Prediction]]:
    """Yield the kept schedules that MetaSchedule can express; of a count so many, where there are so many."""
    counted = isinstance(request.keep, int)
    wanted: int = min(request.most, int(request.keep)) if counted else request.most
    plain = GpuModel(request.workload, hardware, plain=True)
    num_kept = int(request.keep) if counted else request.plain_subset(plain).num_kept
    few = list(_few(request, plain, min(wanted, num_kept))) if request.may_choose(num_kept) else []
    if few:
        yield from few
        return
    most = max(_MOST_READ, wanted)
    asked = dataclasses.replace(request, keep=most) if counted else request
    found = 0
    for read, (schedule, prediction) in enumerate(asked.plain_subset(plain).entries(), 1):
        if _is_expressible(schedule, prediction, hardware):
            yield schedule, prediction
            found += 1
        if found == wanted or read == most:
            break
    if not found:
        raise SpaceError(
            f"metaschedule: none of the first {read} schedules is in its design space (a block of at least "
            f"{hardware.compute.warp_size} threads); keep more, or use --for json"
        )


def _few(request: PruneRequest, plain: GpuModel, wanted: int) -> Iterator[tuple[Schedule, Prediction]]:
    """Yield few schedules that MetaSchedule can express, chosen as `anatune.prune` chooses them."""
    model, hardware = request.plain_subset(plain).model, plain.hardware

    def express(points: NDArray[np.int64]) -> NDArray[np.int64]:
        schedules = map(plain.space.schedule_of, points)
        fine = [_is_expressible(*both, hardware) for both in zip(schedules, plain.predictions(points), strict=True)]
        found: NDArray[np.int64] = points[np.array(fine, dtype=bool)]
        return found

    points = request.chosen(plain, model, wanted, express)
    if points is not None:
        yield from zip(map(plain.space.schedule_of, points), model.predictions(points), strict=True)


def _is_expressible(schedule: Schedule, prediction: Prediction, hardware: GpuSpec) -> bool:
    """Return whether MetaSchedule's design space has a schedule, and its postprocessors let it pass."""
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
    """Return a trace of the CUDA design space with the decisions of a line; TVM is not needed.

    Parameters
    ----------
    trace
        One of ``TuneContext.generate_design_space()``, the one without a software pipeline, as ``schedule.trace`` or as
        JSON: ``[instructions, decisions]``.
    entry
        A line, or what it holds.

    Returns
    -------
    list
        ``[instructions, decisions]`` for ``Trace.apply_json_to_schedule`` or a line of a database.

    Raises
    ------
    SpaceError
        The trace tiles something else, in another way, or lacks a decision.
    """
    instructions, decisions = recorded_trace(trace) if hasattr(trace, "as_json") else trace
    given = msgspec.json.decode(entry) if isinstance(entry, str | bytes) else entry
    decided = {int(at): value for at, value in decisions}
    annotations = [(key, value) for _, key, value in _annotations(instructions)]
    if any(key == "software_pipeline_stage" for key, _ in annotations):
        raise SpaceError("metaschedule: the trace has a software pipeline; take the first one of the design space")
    if not any(key.endswith("tiling_structure") and value == GPU_TILING for key, value in annotations):
        raise SpaceError(f"metaschedule: the trace does not tile as {GPU_TILING}; give one of the CUDA design space")
    decided |= _tiles(instructions, decided, given["sample_perfect_tile"])
    sources = _fetched(instructions)
    for block, key, value in _annotations(instructions):
        if key.endswith("cooperative_fetch"):
            number = sources.get(block, -1)
            widths = list(given["cooperative_fetch"].values())
            if not 0 <= number < len(widths):
                raise SpaceError(f"metaschedule: the trace stages operand {number}, of {len(widths)} in the line")
            decided |= _chosen(instructions, value, widths[number])
        elif key.endswith(("unroll_explicit", "unroll_implicit")):
            decided |= _chosen(instructions, value, given["unroll_explicit"])
    return [instructions, [[at, decided[at]] for at in sorted(decided)]]


def _annotations(instructions: Sequence[Json]) -> list[tuple[Json, str, Json]]:
    """Return (block or loop, key, value) of every annotation."""
    return [(step[1][0], str(step[2][0]), _unquoted(step[1][1])) for step in instructions if step[0] == "Annotate"]


def _tiles(
    instructions: Sequence[Json], decided: Mapping[int, Json], tiles: Mapping[str, Json]
) -> dict[int, list[int]]:
    """Return the decisions of SamplePerfectTile: the axes in order, loops of one iteration may be missing."""
    places = [at for at, step in enumerate(instructions) if step[0] == "SamplePerfectTile"]
    left = list(tiles.items())
    found = {}
    for at in places:
        now = [int(factor) for factor in decided[at]]
        while left and math.prod(left[0][1]) == 1 != math.prod(now):
            left.pop(0)
        if math.prod(now) == 1 and not (left and math.prod(left[0][1]) == 1):
            found[at] = now  # a loop of one iteration that the workload does not have
            continue
        if not left or len(now) != len(left[0][1]) or math.prod(now) != math.prod(left[0][1]):
            name = left[0][0] if left else "nothing"
            raise SpaceError(
                f"metaschedule: a loop of {math.prod(now)} in {len(now)} levels, the line has {name} there"
            )
        found[at] = [int(factor) for factor in left.pop(0)[1]]
    if any(math.prod(factors) > 1 for _, factors in left):
        raise SpaceError(f"metaschedule: the trace has no loop of axis {left[0][0]}")
    return found


def _fetched(instructions: Sequence[Json]) -> dict[Json, int]:
    """Return staging block -> number of the operand that it reads."""
    return {step[3][0]: int(step[2][0]) for step in instructions if step[0] == "CacheRead"}


def _chosen(instructions: Sequence[Json], variable: Json, wanted: int) -> dict[int, int]:
    """Return the decision of the SampleCategorical that makes a variable."""
    for at, step in enumerate(instructions):
        if step[0] == "SampleCategorical" and step[3] == [variable]:
            candidates = [int(value) for value in step[2][0]]
            if wanted not in candidates:
                raise SpaceError(f"metaschedule: {wanted} is none of the trace's choices {candidates}")
            return {at: candidates.index(wanted)}
    return {}


def _unquoted(value: Json) -> Json:
    """Return a string without the quotation marks that traces put around it."""
    return value.strip('"') if isinstance(value, str) else value
