"""``anatune prune --for metaschedule``: kept schedules as decisions of MetaSchedule's design space, one a line (JSON).

For a GPU a line has the decisions of SSSRRSRS multi-level tiling, in the order in which a trace samples them::

    {"predicted_s": 0.000246, "sample_perfect_tile": {"i": [8, 1, 4, 1, 16], ..., "k": [16, 64, 1]},
     "cooperative_fetch": {"A": 4, "B": 4}, "unroll_explicit": 512}

`with_decisions` puts them into a trace. For a CPU a line is a schedule of anatune's own template
(``Schedule.to_json``): MetaSchedule's tiling has no microkernels.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.adapters.formats import PruneRequest
from anatune.adapters.metaschedule.traces import recorded_trace
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.errors import SpaceError
from anatune.model.learned.corrected import CorrectedModel
from anatune.model.pruning.order import ChosenOrder, PlainOrder
from anatune.model.pruning.subset import SpaceSubset

__all__ = ["UNROLL_STEPS", "metaschedule_lines", "with_decisions"]

_TILING = "SSSRRSRS"
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
    if isinstance(request.hardware, CpuSpec):
        yield from (schedule.to_json() for schedule, _ in _kept(request))
        return
    request.require_cuda_cores("metaschedule")
    for schedule, prediction in _kept(request):
        tiles = {axis.name: schedule.tiles[axis.name] for axis in request.workload.axes}
        entry = {
            "predicted_s": prediction.time_s,
            "sample_perfect_tile": tiles,
            "cooperative_fetch": schedule.vector,
            "unroll_explicit": schedule.unroll,
        }
        yield msgspec.json.encode(entry).decode()


def _kept(request: PruneRequest) -> Iterator[tuple[Schedule, Prediction]]:
    """Yield the kept schedules that MetaSchedule can express; of a count so many, where there are so many."""
    counted = isinstance(request.keep, int)
    wanted: int = min(request.most, int(request.keep)) if counted else request.most
    if isinstance(request.hardware, CpuSpec):
        asked, most = request, wanted
    else:
        num_kept = int(request.keep) if counted else request.subset().num_kept
        few = list(_few(request, min(wanted, num_kept))) if request.may_choose(num_kept) else []
        if few:
            yield from few
            return
        most = max(_MOST_READ, wanted)
        asked = dataclasses.replace(request, keep=most) if counted else request
    found = 0
    for read, (schedule, prediction) in enumerate(asked.subset().entries(), 1):
        if _is_expressible(schedule, prediction):
            yield schedule, prediction
            found += 1
        if found == wanted or read == most:
            break
    if not found:
        raise SpaceError(
            f"metaschedule: none of the first {read} schedules is in its design space (a block of at least "
            f"{_warp(request.hardware)} threads); keep more, or use --for json"
        )


def _few(request: PruneRequest, wanted: int) -> Iterator[tuple[Schedule, Prediction]]:
    """Yield few schedules that MetaSchedule can express, chosen as `anatune.prune` chooses them."""
    subset = request.subset()
    assert isinstance(subset, SpaceSubset)  # of no list
    model = subset.model
    plain = model.model if isinstance(model, CorrectedModel) else model

    def express(points: NDArray[np.int64]) -> NDArray[np.int64]:
        predictions = plain.predictions(points)
        fine = [
            _is_expressible(plain.space.schedule_of(point), one) for point, one in zip(points, predictions, strict=True)
        ]
        found: NDArray[np.int64] = points[np.array(fine, dtype=bool)]
        return found

    ahead = PlainOrder(plain, distinct=True, progress=request.progress)
    order = ChosenOrder(model, ahead, wanted, distinct=request.distinct, express=express)
    points = order.first(wanted)
    if len(points) < wanted:  # the order has more of them
        return
    yield from zip([plain.space.schedule_of(point) for point in points], model.predictions(points), strict=True)


def _warp(hardware: GpuSpec | CpuSpec) -> int:
    return hardware.compute.warp_size if isinstance(hardware, GpuSpec) else 1


def _is_expressible(schedule: Schedule, prediction: Prediction) -> bool:
    """Return whether MetaSchedule's design space has a schedule, and its postprocessors let it pass."""
    hardware = schedule.hardware
    if not isinstance(hardware, GpuSpec):
        return True
    spatial = [tile for tile in schedule.tiles.values() if len(tile) == 5]
    shared = prediction.resources["shared_bytes_per_block"]
    return (
        math.prod(tile[2] for tile in spatial) >= _warp(hardware)
        and (shared <= _MOST_SHARED_BYTES or not hardware.arch.startswith("sm_"))
        and all(tile[-1] <= _MOST_INNERMOST for tile in schedule.tiles.values())
        and all(width in _FETCH_WIDTHS for width in schedule.vector.values())
        and schedule.unroll in UNROLL_STEPS
    )


def with_decisions(trace: Any, entry: Mapping[str, Any] | str) -> list[Any]:
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
    if any(key == "software_pipeline_stage" for _, key, _ in _annotations(instructions)):
        raise SpaceError("metaschedule: the trace has a software pipeline; take the first one of the design space")
    if not any(key.endswith("tiling_structure") and value == _TILING for _, key, value in _annotations(instructions)):
        raise SpaceError(f"metaschedule: the trace does not tile as {_TILING}; give one of the CUDA design space")
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


def _annotations(instructions: Sequence[Any]) -> list[tuple[Any, str, Any]]:
    """Return (block or loop, key, value) of every annotation."""
    return [(step[1][0], str(step[2][0]), _unquoted(step[1][1])) for step in instructions if step[0] == "Annotate"]


def _tiles(instructions: Sequence[Any], decided: Mapping[int, Any], tiles: Mapping[str, Any]) -> dict[int, list[int]]:
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


def _fetched(instructions: Sequence[Any]) -> dict[Any, int]:
    """Return staging block -> number of the operand that it reads."""
    return {step[3][0]: int(step[2][0]) for step in instructions if step[0] == "CacheRead"}


def _chosen(instructions: Sequence[Any], variable: Any, wanted: int) -> dict[int, int]:
    """Return the decision of the SampleCategorical that makes a variable."""
    for at, step in enumerate(instructions):
        if step[0] == "SampleCategorical" and step[3] == [variable]:
            candidates = [int(value) for value in step[2][0]]
            if wanted not in candidates:
                raise SpaceError(f"metaschedule: {wanted} is none of the trace's choices {candidates}")
            return {at: candidates.index(wanted)}
    return {}


def _unquoted(value: Any) -> Any:
    """Return a string without the quotation marks that traces put around it."""
    return value.strip('"') if isinstance(value, str) else value
