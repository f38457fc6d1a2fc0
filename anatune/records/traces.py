"""Reading MetaSchedule traces: the tile sizes, unrolling, fetch widths and positions chosen for one tiled block.

A trace is ``[instructions, decisions]`` as in MetaSchedule's databases. An instruction is
``[kind, inputs, attributes, outputs]``, a decision ``[number of the instruction, value]``. Multi-level tiling of one
block is supported: SSSRRSRS on GPUs (CUDA cores) and SSRSRS on CPUs. Tensor cores, split reductions (rfactor),
cross-thread reductions and traces that tile several blocks raise `UnfitError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from anatune.core.workload.nest import Workload

WRONG_TILES = "tiles do not multiply to the workload's extents"
GPU_TILING = "SSSRRSRS"
CPU_TILING = "SSRSRS"
GPU_LEVELS = {"spatial": GPU_TILING.count("S"), "reduction": GPU_TILING.count("R")}
"""Kind of an axis -> its factors on GPUs."""
ROOT, INLINED = -1, -2
"""Positions of a producer that are no loop. Source: MetaSchedule's SampleComputeLocation."""
KINDS: dict[str, tuple[bool, bool, bool]] = {
    "Annotate": (True, True, False), "CacheRead": (False, True, True), "CacheWrite": (False, False, True),
    "EnterPostproc": (False, False, False), "GetSBlock": (False, True, True), "RFactor": (False, False, False),
    "Reorder": (True, False, False), "ReverseComputeAt": (True, False, False), "SampleCategorical": (False, True, True),
    "SampleComputeLocation": (True, False, False), "SamplePerfectTile": (False, False, False),
    "Tensorize": (False, False, False),
}  # fmt: skip
"""Instructions that are read -> whether their inputs, attributes and outputs are read; others may be missing."""
_PREFIX = "meta_schedule."

Json: TypeAlias = Any
"""JSON of another program, read without checks: missing parts raise KeyError, IndexError, TypeError, ValueError or
AttributeError, which readers count as damage."""
Factors: TypeAlias = tuple[int, ...]
"""Tile sizes of one loop or axis, outer to inner."""


class UnfitError(Exception):
    """The error for a trace that no schedule can express; its text is the reason."""


class Tiling(NamedTuple):
    """The decisions of one trace.

    Attributes
    ----------
    structure : str
        "SSSRRSRS", "SSRSRS".
    block : str
        Name of the tiled block.
    tiles : tuple of tuple of int
        Factors of each of its loops, outer to inner, in the block's order, loops of one iteration included.
    unroll : int
        Largest number of unrolled statements (auto_unroll_max_step).
    fetch : dict of int to int
        Number of the operand -> elements that a thread fetches at once (GPU).
    stages : int
        Number of stages of the software pipeline; 1 without one (GPU).
    write_depth : int
        Loop of the nest (from the outermost) in which a tile of results is copied out of its buffer; -1 without such a
        buffer.
    producers : dict of str to int
        Block that computes an operand, such as padding -> loop of the nest that computes it, ROOT or INLINED.
    parallel, vectorize : int
        Largest number of iterations that are distributed over threads, or vectorized; 0: none.
    """

    structure: str
    block: str
    tiles: tuple[Factors, ...]
    unroll: int = 0
    fetch: Mapping[int, int] = {}
    stages: int = 1
    write_depth: int = -1
    producers: Mapping[str, int] = {}
    parallel: int = 0
    vectorize: int = 0

    def loops(self, kind: str) -> list[Factors]:
        """Return the factors of the "S" (spatial) or the "R" (reduction) loops, in the block's order."""
        return [factors for factors in self.tiles if len(factors) == self.structure.count(kind)]


def read_trace(instructions: Sequence[Json], decisions: Sequence[Json]) -> Tiling:
    """Return the tiling that a trace describes.

    Raises
    ------
    UnfitError
        The trace does not tile exactly one block, or tiles it in an unsupported way.
    KeyError, IndexError, TypeError, ValueError
        The trace is damaged.
    """
    decided = {int(number): value for number, value in decisions}
    reading = _TraceReading(decided)
    for number, (kind, *parts) in enumerate(instructions):
        kind = str(kind).replace("GetBlock", "GetSBlock")  # older versions of TVM use another name
        step = _Instruction(number, *parts)
        reader = getattr(reading, f"on_{kind.lower()}", None)
        if reader is not None:
            reader(step)
    return reading.tiling()


class _Instruction(NamedTuple):
    """An instruction: its number, and those of its parts that `KINDS` names."""

    number: int
    inputs: Json
    attributes: Json
    outputs: Json


class _TraceReading:
    """The state of reading one trace, instruction by instruction."""

    def __init__(self, decided: Mapping[int, Json]) -> None:
        self._decided = decided
        self._structures: list[tuple[str, str]] = []
        self._names: dict[str, str] = {}
        self._tiles: list[Factors] = []
        self._order: list[str] = []
        self._values: dict[str, int] = {}
        self._reads: dict[str, int] = {}
        self._fetch: dict[int, int] = {}
        self._written: set[str] = set()
        self._producers: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._write_depth = -1
        self._stages = 1
        self._is_over = False

    def tiling(self) -> Tiling:
        """Return the result."""
        structures = self._structures or [("", self._implied_structure())]
        if len(structures) != 1:
            raise UnfitError("not exactly one tiled block")
        (block, structure), numbers = structures[0], self._numbers
        if structure not in (CPU_TILING, GPU_TILING):
            raise UnfitError(f"tiling {structure}")
        return Tiling(
            structure,
            self._names.get(block, ""),
            tuple(self._tiles),
            numbers.get("unroll_explicit", numbers.get("unroll_implicit", 0)),
            self._fetch,
            self._stages,
            self._write_depth,
            self._producers,
            numbers.get("parallel", 0),
            numbers.get("vectorize", 0),
        )

    def _implied_structure(self) -> str:
        """Return the structure that the numbers of factors imply, for logs that lack the annotation."""
        widths = {len(factors) for factors in self._tiles}
        widths_by_name = {GPU_TILING: {5, 3}, CPU_TILING: {4, 2}}
        return next((name for name, own in widths_by_name.items() if widths and widths <= own), "of no block")

    # ---- instructions; those of postprocessors are ignored ---------------------------------------------------

    def on_enterpostproc(self, step: _Instruction) -> None:
        self._is_over = True

    def on_getsblock(self, step: _Instruction) -> None:
        self._names[step.outputs[0]] = str(step.attributes[0])

    def on_rfactor(self, step: _Instruction) -> None:
        raise UnfitError("a split reduction (rfactor)")

    def on_tensorize(self, step: _Instruction) -> None:
        raise UnfitError("tensor cores or other intrinsics")

    def on_sampleperfecttile(self, step: _Instruction) -> None:
        self._tiles.append(tuple(int(factor) for factor in self._decided[step.number]))

    def on_samplecategorical(self, step: _Instruction) -> None:
        self._values[step.outputs[0]] = int(step.attributes[0][int(self._decided[step.number])])

    def on_samplecomputelocation(self, step: _Instruction) -> None:
        self._producers[self._names.get(step.inputs[0], step.inputs[0])] = int(self._decided[step.number])

    def on_reorder(self, step: _Instruction) -> None:
        if not self._order:
            self._order = list(step.inputs)

    def on_cacheread(self, step: _Instruction) -> None:
        self._reads[step.outputs[0]] = int(step.attributes[0])

    def on_cachewrite(self, step: _Instruction) -> None:
        self._written.add(step.outputs[0])

    def on_reversecomputeat(self, step: _Instruction) -> None:
        if step.inputs[0] in self._written and step.inputs[1] in self._order:
            self._write_depth = self._order.index(step.inputs[1])

    def on_annotate(self, step: _Instruction) -> None:
        key = str(step.attributes[0])
        if self._is_over:
            return
        if key == "software_pipeline_stage":
            self._stages = 1 + max(int(stage) for stage in step.inputs[1])
        if not key.startswith(_PREFIX):
            return
        key = key.removeprefix(_PREFIX)
        if key == "tiling_structure":
            self._structures.append((step.inputs[0], str(step.inputs[1]).strip('"')))
        elif key.startswith("auto_tensorize"):
            raise UnfitError("tensor cores or other intrinsics")
        elif key == "cooperative_fetch":
            self._fetch[self._reads.get(step.inputs[0], len(self._fetch))] = self._value(step.inputs[1])
        elif key in ("parallel", "vectorize", "unroll_explicit", "unroll_implicit"):
            self._numbers[key] = self._value(step.inputs[1])

    def _value(self, value: Json) -> int:
        """Return the value of an annotation: a number, or the chosen candidate of a SampleCategorical."""
        if isinstance(value, int | float):
            return int(value)
        if value not in self._values:
            raise UnfitError("an annotation whose value is not in the trace")
        return self._values[value]


def match_axes(tiling: Tiling, workload: Workload) -> dict[str, tuple[int, ...]]:
    """Return axis -> tile sizes; a workload's axes are the block's loops in order, except loops of one iteration.

    Raises
    ------
    UnfitError
        The axes and the loops do not match.
    """
    factors_by_axis: dict[str, Factors] = {}
    for kind, axes in (("S", workload.spatial_axes), ("R", workload.reduction_axes)):
        extents = {axis.name: axis.extent for axis in axes}
        matched = axis_factors(extents, tiling.loops(kind), tiling.structure.count(kind))
        if matched is None:
            raise UnfitError(WRONG_TILES)
        factors_by_axis |= matched
    return {axis.name: factors_by_axis[axis.name] for axis in workload.axes}


def axis_factors(extents: Mapping[str, int], loops: Sequence[Sequence[int]], width: int) -> dict[str, Factors] | None:
    """Return axis -> `width` tile sizes if the axes match the loops in order; None if they do not.

    Loops and axes of one iteration need no counterpart.
    """
    kept = [tuple(factors) for factors in loops if math.prod(factors) > 1]
    named = [name for name, extent in extents.items() if extent > 1]
    if [math.prod(factors) for factors in kept] != [extents[name] for name in named]:
        return None
    return {name: (1,) * width for name in extents} | dict(zip(named, kept, strict=True))
