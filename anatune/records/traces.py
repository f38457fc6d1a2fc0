"""What a MetaSchedule trace decides about the one block that it tiles: factors, unrolling, fetch widths, places.

A trace is ``[instructions, decisions]`` as MetaSchedule's databases hold it: an instruction is
``[kind, inputs, attributes, outputs]``, a decision ``[number of the instruction, value]``. Understood is multi-level
tiling of one block: SSSRRSRS on GPUs (CUDA cores) and SSRSRS on CPUs. Tensor cores, split reductions (rfactor),
cross-thread reductions and traces that tile several blocks are not; `UnfitError` says which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from anatune.core.workload.nest import Workload

__all__ = ["CPU_TILING", "GPU_TILING", "INLINED", "KINDS", "ROOT", "Tiling", "UnfitError", "match_axes", "read_trace"]

GPU_TILING = "SSSRRSRS"
CPU_TILING = "SSRSRS"
ROOT, INLINED = -1, -2
"""Places of a producer that are no loop. Source: MetaSchedule's SampleComputeLocation."""
KINDS: dict[str, tuple[bool, bool, bool]] = {
    "Annotate": (True, True, False), "CacheRead": (False, True, True), "CacheWrite": (False, False, True),
    "EnterPostproc": (False, False, False), "GetSBlock": (False, True, True), "RFactor": (False, False, False),
    "Reorder": (True, False, False), "ReverseComputeAt": (True, False, False), "SampleCategorical": (False, True, True),
    "SampleComputeLocation": (True, False, False), "SamplePerfectTile": (False, False, False),
    "Tensorize": (False, False, False),
}  # fmt: skip
"""Instructions that are read, and of each whether inputs, attributes and outputs: others may be left out."""
_PREFIX = "meta_schedule."


class UnfitError(Exception):
    """What is read has no meaning here; the text is the reason."""


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
        Most statements that are unrolled (auto_unroll_max_step).
    fetch : dict of int to int
        Number of the operand -> elements that a thread fetches at once (GPU).
    stages : int
        Buffers of the staging pipeline: 1 without one (GPU).
    write_depth : int
        Loop of the nest (from the outermost) in which a tile of results is copied out of a buffer of its own, -1: no
        such buffer.
    producers : dict of str to int
        Block that an operand comes from, padding for example -> loop of the nest that computes it, ROOT or INLINED.
    parallel, vectorize : int
        Most iterations that are spread over threads, or made one vector; 0: none.
    """

    structure: str
    block: str
    tiles: tuple[tuple[int, ...], ...]
    unroll: int = 0
    fetch: Mapping[int, int] = {}
    stages: int = 1
    write_depth: int = -1
    producers: Mapping[str, int] = {}
    parallel: int = 0
    vectorize: int = 0


def read_trace(instructions: Sequence[Any], decisions: Sequence[Any]) -> Tiling:
    """Return what a trace decides.

    Raises
    ------
    UnfitError
        It does not tile exactly one block, or in another way.
    KeyError, IndexError, TypeError, ValueError
        It is damaged.
    """
    decided = {int(number): value for number, value in decisions}
    found = _Reading(decided)
    for number, step in enumerate(instructions):
        kind, inputs, attributes, outputs = step
        kind = str(kind).replace("GetBlock", "GetSBlock")  # as older versions of TVM call it
        reader = getattr(found, f"on_{kind.lower()}", None)
        if reader is not None:
            reader(number, inputs, attributes, outputs)
    return found.tiling()


class _Reading:
    """The state of reading one trace, instruction by instruction."""

    def __init__(self, decided: Mapping[int, Any]) -> None:
        self._decided = decided
        self._structures: list[tuple[str, str]] = []
        self._names: dict[str, str] = {}
        self._tiles: list[tuple[int, ...]] = []
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
        structures = self._structures or [("", self._implied())]
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

    def _implied(self) -> str:
        """Return the structure that the numbers of factors imply, for logs that lack the annotation."""
        widths = {len(factors) for factors in self._tiles}
        known = {GPU_TILING: {5, 3}, CPU_TILING: {4, 2}}
        return next((name for name, own in known.items() if widths and widths <= own), "of no block")

    # ---- instructions; what postprocessors add says nothing new ----------------------------------------------

    def on_enterpostproc(self, number: int, inputs: Any, attributes: Any, outputs: Any) -> None:
        self._is_over = True

    def on_getsblock(self, number: int, inputs: Any, attributes: Any, outputs: Any) -> None:
        self._names[outputs[0]] = str(attributes[0])

    def on_rfactor(self, number: int, inputs: Any, attributes: Any, outputs: Any) -> None:
        raise UnfitError("a split reduction (rfactor)")

    def on_tensorize(self, number: int, inputs: Any, attributes: Any, outputs: Any) -> None:
        raise UnfitError("tensor cores or other intrinsics")

    def on_sampleperfecttile(self, number: int, inputs: Any, attributes: Any, outputs: Any) -> None:
        self._tiles.append(tuple(int(factor) for factor in self._decided[number]))

    def on_samplecategorical(self, number: int, inputs: Any, attributes: Any, outputs: Any) -> None:
        self._values[outputs[0]] = int(attributes[0][int(self._decided[number])])

    def on_samplecomputelocation(self, number: int, inputs: Any, attributes: Any, outputs: Any) -> None:
        self._producers[self._names.get(inputs[0], inputs[0])] = int(self._decided[number])

    def on_reorder(self, number: int, inputs: Any, attributes: Any, outputs: Any) -> None:
        if not self._order:
            self._order = list(inputs)

    def on_cacheread(self, number: int, inputs: Any, attributes: Any, outputs: Any) -> None:
        self._reads[outputs[0]] = int(attributes[0])

    def on_cachewrite(self, number: int, inputs: Any, attributes: Any, outputs: Any) -> None:
        self._written.add(outputs[0])

    def on_reversecomputeat(self, number: int, inputs: Any, attributes: Any, outputs: Any) -> None:
        if inputs[0] in self._written and inputs[1] in self._order:
            self._write_depth = self._order.index(inputs[1])

    def on_annotate(self, number: int, inputs: Any, attributes: Any, outputs: Any) -> None:
        key = str(attributes[0])
        if self._is_over:
            return
        if key == "software_pipeline_stage":
            self._stages = 1 + max(int(stage) for stage in inputs[1])
        if not key.startswith(_PREFIX):
            return
        key = key.removeprefix(_PREFIX)
        if key == "tiling_structure":
            self._structures.append((inputs[0], str(inputs[1]).strip('"')))
        elif key.startswith("auto_tensorize"):
            raise UnfitError("tensor cores or other intrinsics")
        elif key == "cooperative_fetch":
            self._fetch[self._reads.get(inputs[0], len(self._fetch))] = self._value(inputs[1])
        elif key in ("parallel", "vectorize", "unroll_explicit", "unroll_implicit"):
            self._numbers[key] = self._value(inputs[1])

    def _value(self, value: Any) -> int:
        """Return the value of an annotation: a number, or the chosen candidate of a SampleCategorical."""
        if isinstance(value, int | float):
            return int(value)
        if value not in self._values:
            raise UnfitError("an annotation whose value is not in the trace")
        return self._values[value]


def match_axes(tiling: Tiling, workload: Workload) -> dict[str, tuple[int, ...]]:
    """Return axis -> factors: a workload's axes are the block's loops in order, some of one iteration left out.

    Raises
    ------
    UnfitError
        They are not.
    """
    widths = {"spatial": tiling.structure.count("S"), "reduction": tiling.structure.count("R")}
    found: dict[str, tuple[int, ...]] = {}
    for kind, width in widths.items():
        loops = [factors for factors in tiling.tiles if len(factors) == width and math.prod(factors) > 1]
        axes = [axis for axis in workload.axes if axis.kind == kind]
        named = [axis for axis in axes if axis.extent > 1]
        if [math.prod(factors) for factors in loops] != [axis.extent for axis in named]:
            raise UnfitError("tiles do not multiply to the workload's extents")
        found |= dict(zip([axis.name for axis in named], loops, strict=True))
        found |= {axis.name: (1,) * width for axis in axes if axis.extent == 1}
    return {axis.name: found[axis.name] for axis in workload.axes}
