"""Ansor's logs (TVM's auto_scheduler): one line of JSON a measurement, the steps that make its loops.

A step names loops by their position in the compute DAG, a workload key holds a hash of the DAG with the shapes of its
tensors (tasks of a model), or the name of the user's own function with arguments that only its author can read. So
which axis a loop is follows from the tensors' layout (topi loops over the result's dimensions) and is checked against
every extent; what a key says of shapes and layout has to agree with the workload given.
Facts of the form: apache/tvm, src/auto_scheduler/{measure_record,transform_step}.cc; observed in logs of v0.2 to v0.6.
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
    Line,
    Shape,
    check_shapes,
    gpu_schedule,
    match_loops,
    product_of,
    tvm_measured,
)
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.workload.nest import Workload
from anatune.records.traces import Json, UnfitError

_HASH = re.compile(r"[0-9a-f]{32}")
_VECTORIZE = 2
"""Annotation of a vectorised loop. Source: IteratorAnnotation of auto_scheduler."""
_UNROLL = "auto_unroll_max_step$"


class _Key(NamedTuple):
    """What a workload key says."""

    function: str
    """Name of the user's function, "" where the key is of a model's task."""
    shapes: list[Shape]
    """Of the tensors of a task; one flat shape in old logs; none for a user's function."""


class _Tiling(NamedTuple):
    """Factors of the tiled block's loops, outer to inner, in the block's order."""

    spatial: list[tuple[int, ...]]
    reduction: list[tuple[int, ...]]

    @property
    def extents(self) -> list[int]:
        return [math.prod(factors) for factors in (*self.spatial, *self.reduction)]


def device_of(entry: Json) -> DeviceStatement:
    """Return what a line says about the device."""
    return parse_target(entry["i"][0][1])


def read_line(entry: Json, hardware: HardwareSpec, workload: Workload | None) -> Line:
    """Read a line of multi-level tiling (SSSRRSRS on GPUs).

    Raises
    ------
    UnfitError
        It is of another workload, does not say which, or is not tiled so.
    """
    key, steps = _key(entry["i"][0][0]), entry["i"][1][1]
    tiling = _tiling(steps)
    tiled = workload or _workload(key, tiling)
    if workload is not None:
        check_shapes(workload, key.shapes)
        _check_function(key, workload)
    tiles = match_loops(tiled, tiling.spatial, tiling.reduction)
    pragmas = [str(step[3]) for step in steps if step[0] == "PR" and str(step[3]).startswith(_UNROLL)]
    unroll = int(pragmas[-1].removeprefix(_UNROLL)) if pragmas else 0
    return Line(gpu_schedule(tiled, hardware, tiles, unroll, _fetches(steps, tiled)), tvm_measured(entry["r"]))


def _key(text: Json) -> _Key:
    try:
        name, *rest = msgspec.json.decode(str(text))
    except NO_JSON:
        name, rest = str(text), []
    if not _HASH.fullmatch(str(name)):
        return _Key(str(name), [])
    if rest and all(isinstance(size, int) for size in rest):
        return _Key("", [tuple(rest)])
    shapes = [
        tuple(shape) for shape in rest if isinstance(shape, list) and all(isinstance(size, int) for size in shape)
    ]
    return _Key("", shapes)


def _workload(key: _Key, tiling: _Tiling) -> Workload:
    """Return the workload that a key and the tiled loops settle: a matrix product at most."""
    if not key.shapes:
        function = f" (function {key.function!r})" if key.function else ""
        raise UnfitError(NO_WORKLOAD + function)
    return product_of(key.shapes, "float32", tiling.extents)


def _check_function(key: _Key, workload: Workload) -> None:
    """Raise UnfitError if a user's function is called after another layout."""
    layout = str(workload.attribute.get("layout", ""))
    stated = re.search(r"nchw|nhwc", key.function.lower())
    if stated and layout in ("NCHW", "NHWC") and stated[0] != layout.lower():
        raise UnfitError(f"another workload: function {key.function!r}, but the layout given is {layout}")


def _tiling(steps: Sequence[Json]) -> _Tiling:
    splits = [step for step in steps if step[0] == "SP"]
    if any(step[0] == "RF" for step in steps):
        raise UnfitError("a split reduction (rfactor)")
    first = next((step for step in splits if len(step[4]) in (3, 4)), None)
    if first is None:
        raise UnfitError("no multi-level tiling")
    if len(first[4]) == 3:
        raise UnfitError("tiling SSRSRS, which is for CPUs: its vectors follow the tensors' layout")
    own = [step for step in splits if step[1] == first[1]]
    spatial = [_factors(step) for step in own if len(step[4]) == 4]
    return _Tiling(spatial, [_factors(step) for step in own if len(step[4]) == 2])


def _factors(step: Sequence[Json]) -> tuple[int, ...]:
    lengths = [int(length) for length in step[4]]
    outer, rest = divmod(int(step[3]), math.prod(lengths))
    if rest:
        raise UnfitError(f"a loop of {step[3]} in tiles that do not divide it")
    return (outer, *lengths)


def _fetches(steps: Sequence[Json], workload: Workload) -> dict[str, int]:
    """Return the elements that a thread fetches at once: the staged copies' vectors; stages are in operands' order."""
    vectors = {
        int(step[1]): int(step[4][0])
        for step, after in itertools.pairwise(steps)
        if step[0] == "SP" and len(step[4]) == 1 and list(after[:4]) == ["AN", step[1], step[2] + 1, _VECTORIZE]
    }
    operands = [access.tensor for access in workload.reads]
    if len(vectors) != len(operands):
        return {}
    return dict(zip(operands, (vectors[stage] for stage in sorted(vectors)), strict=True))
