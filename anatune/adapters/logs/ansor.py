"""Ansor's logs (TVM's auto_scheduler): one JSON line for each measurement, with the steps that transform its loops.

A step refers to loops by their position in the compute DAG. A workload key has a hash of the DAG and the shapes of its
tensors (tasks of a model), or the name of the user's function with arguments that only its author understands. The
axis of a loop therefore follows from the tensors' layout (topi loops over the result's dimensions) and is checked
against every extent. The shapes and layout in a key have to agree with the given workload.
Source of the format: apache/tvm, src/auto_scheduler/{measure_record,transform_step}.cc; logs of v0.2 to v0.6.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from anatune.adapters.logs.devices import DeviceStatement, parse_target
from anatune.adapters.logs.files import NO_JSON
from anatune.adapters.logs.parts import (
    NO_WORKLOAD,
    LogEntry,
    Shape,
    check_shapes,
    gpu_schedule,
    match_loops,
    product_of,
    read_tvm_result,
)
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.workload.nest import Workload
from anatune.records.traces import Json, UnfitError

_HASH = re.compile(r"[0-9a-f]{32}")
_VECTORIZE = 2
"""The annotation of a vectorised loop. Source: IteratorAnnotation of auto_scheduler."""
_UNROLL = "auto_unroll_max_step$"


class _WorkloadKey(NamedTuple):
    """The content of a workload key."""

    function: str
    """The name of the user's function, "" for a task of a model."""
    shapes: list[Shape]
    """The shapes of a task's tensors: one flat shape in old logs, none for a user's function."""


class _Tiling(NamedTuple):
    """The factors of the tiled block's loops, outer to inner, in the block's order."""

    spatial: list[tuple[int, ...]]
    reduction: list[tuple[int, ...]]

    @property
    def extents(self) -> list[int]:
        return [math.prod(factors) for factors in (*self.spatial, *self.reduction)]


def device_of(entry: Json) -> DeviceStatement:
    """Return the device that a line states."""
    return parse_target(entry["i"][0][1])


def read_line(entry: Json, hardware: HardwareSpec, workload: Workload | None) -> LogEntry:
    """Read a line with multi-level tiling (SSSRRSRS on GPUs).

    Raises
    ------
    UnfitError
        The line belongs to another workload, does not state one, or has another kind of tiling.
    """
    key, steps = _read_key(entry["i"][0][0]), entry["i"][1][1]
    tiling = _read_tiling(steps)
    tiled_workload = workload or _infer_workload(key, tiling)
    if workload is not None:
        check_shapes(workload, key.shapes)
        _check_function(key, workload)
    tiles = match_loops(tiled_workload, tiling.spatial, tiling.reduction)
    pragmas = [str(step[3]) for step in steps if step[0] == "PR" and str(step[3]).startswith(_UNROLL)]
    unroll = int(pragmas[-1].removeprefix(_UNROLL)) if pragmas else 0
    return LogEntry(
        gpu_schedule(tiled_workload, hardware, tiles, unroll, _widths(steps, tiled_workload)),
        read_tvm_result(entry["r"]),
    )


def _read_key(text: Json) -> _WorkloadKey:
    try:
        name, *sizes_or_shapes = msgspec.json.decode(str(text))
    except NO_JSON:
        name, sizes_or_shapes = str(text), []
    if not _HASH.fullmatch(str(name)):
        return _WorkloadKey(str(name), [])
    if sizes_or_shapes and all(isinstance(size, int) for size in sizes_or_shapes):
        return _WorkloadKey("", [tuple(sizes_or_shapes)])
    shapes = [
        tuple(shape)
        for shape in sizes_or_shapes
        if isinstance(shape, list) and all(isinstance(size, int) for size in shape)
    ]
    return _WorkloadKey("", shapes)


def _infer_workload(key: _WorkloadKey, tiling: _Tiling) -> Workload:
    """Return the workload that follows from a key and the tiled loops; only a matrix product can follow from them."""
    if not key.shapes:
        function = f" (function {key.function!r})" if key.function else ""
        raise UnfitError(NO_WORKLOAD + function)
    return product_of(key.shapes, "float32", tiling.extents)


def _check_function(key: _WorkloadKey, workload: Workload) -> None:
    """Raise UnfitError if the name of a user's function contains another layout."""
    layout = str(workload.attribute.get("layout", ""))
    stated = re.search(r"nchw|nhwc", key.function.lower())
    if stated and layout in ("NCHW", "NHWC") and stated[0] != layout.lower():
        raise UnfitError(f"another workload: function {key.function!r}, but the given layout is {layout}")


def _read_tiling(steps: Sequence[Json]) -> _Tiling:
    splits = [step for step in steps if step[0] == "SP"]
    if any(step[0] == "RF" for step in steps):
        raise UnfitError("the reduction is split (rfactor)")
    first = next((step for step in splits if len(step[4]) in (3, 4)), None)
    if first is None:
        raise UnfitError("it has no multi-level tiling")
    if len(first[4]) == 3:
        raise UnfitError("the tiling is SSRSRS (for CPUs), whose vectors depend on the tensors' layout")
    block_splits = [step for step in splits if step[1] == first[1]]
    spatial = [_factors(step) for step in block_splits if len(step[4]) == 4]
    return _Tiling(spatial, [_factors(step) for step in block_splits if len(step[4]) == 2])


def _factors(step: Sequence[Json]) -> tuple[int, ...]:
    inner_factors = [int(length) for length in step[4]]
    outer, remainder = divmod(int(step[3]), math.prod(inner_factors))
    if remainder:
        raise UnfitError(f"a loop of extent {step[3]} has tiles that do not divide it")
    return (outer, *inner_factors)


def _widths(steps: Sequence[Json], workload: Workload) -> dict[str, int]:
    """Return how many elements a thread fetches at once for each operand (the vector width of staging copies)."""
    vectors = {
        int(step[1]): int(step[4][0])
        for step, after in itertools.pairwise(steps)
        if step[0] == "SP" and len(step[4]) == 1 and list(after[:4]) == ["AN", step[1], step[2] + 1, _VECTORIZE]
    }
    operands = [access.tensor for access in workload.reads]
    if len(vectors) != len(operands):
        return {}
    return dict(zip(operands, (vectors[stage] for stage in sorted(vectors)), strict=True))
