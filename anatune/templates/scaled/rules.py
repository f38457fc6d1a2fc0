"""The rules of the template "scaled": products of float32 with 8-bit or 4-bit weights. `scaled.space` shows the loops.

Activations are converted to integers, one run at a time, so that vectors of small integers can be multiplied. A number
is the sum of its digits times powers. The accuracy decides how many digits there are.

Notation
--------
run : neighbours along k whose activations share a power: 32, or 16 if weights share a scale with 16 only.
group : neighbours along k of a column whose weights share a scale. A group has whole runs.
digit : an integer of 8 or 16 bits. Several digits are as exact as float32.
word : 4 bytes, which a lane multiplies at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import msgspec

from anatune.core.accuracy import RELAXED, STANDARD
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.scaling import SCALED_FORMATS
from anatune.errors import SpaceError
from anatune.templates.base.values import check_count, check_cover, check_names

__all__ = [
    "FLOATS_FROM",
    "FLOAT_PIECE",
    "FLOAT_ROWS",
    "ISAS",
    "LEVELS",
    "OTHERS",
    "ScaledProduct",
    "change_rows",
    "check_scaled",
    "digits_error",
    "needed_accuracy",
    "product_of",
    "set_floats",
]

LEVELS: dict[str, tuple[str, ...]] = {
    "i": ("piece", "call", "row"),
    "j": ("tile", "vector", "lane"),
    "k": ("step", "run"),
}
"""Levels of each axis in ``Schedule.tiles``, outer to inner."""
_RUN = 32
"""Most elements of a run: pairwise sums of 4-bit weights times 8-bit digits fit in 16 bits up to here."""
OTHERS = 8
"""Vector registers beside those of sums. Source: with more sums LLVM 22 spills (4x2 tiles of 16 registers)."""
FLOATS_FROM = 12
"""Fewest rows for which weights may be unpacked to float32: twice the rows of a microkernel."""
FLOAT_ROWS, FLOAT_PIECE = 6, 192
"""Rows of a microkernel of unpacked weights; most rows for which a part of a tile is unpacked once."""
ISAS = ("avx2", "avx512")


class ScaledProduct(NamedTuple):
    """A product, and the instructions that multiply its numbers on a CPU.

    Attributes
    ----------
    bits : int
        Bits of a weight.
    run, group : int
        Elements of a run and of a group along k.
    lanes : int
        float32 elements of a vector, which are columns.
    instruction : {"maddubs", "maddwd", "vpdpbusd"}
        The instruction that multiplies: 8-bit digits with unsigned weights, or 16-bit digits with signed weights.
    exact : int
        Number of digits that are as exact as float32.
    has_zeros : bool
    registers : int
        Number of vector registers.
    ahead_bytes : int
        Distance of prefetches: what a core reads within the latency of the memory.
    """

    rows: int
    columns: int
    depth: int
    bits: int
    run: int
    group: int
    lanes: int
    instruction: str
    exact: int
    has_zeros: bool
    registers: int
    ahead_bytes: int

    @property
    def digit_bits(self) -> int:
        """Bits of a digit."""
        return 16 if self.instruction == "maddwd" else 8

    @property
    def words(self) -> int:
        """Words of a run of weights of a column."""
        return self.run * self.bits // 32

    @property
    def digit_words(self) -> int:
        """Words of a digit of a run of activations."""
        return self.run * self.digit_bits // 32

    @property
    def offset(self) -> int:
        """Number subtracted from weights in addition to zero points, because they are multiplied as unsigned."""
        if self.instruction == "maddwd":
            return 0
        return 128 if self.bits == 8 else 0 if self.has_zeros else 8

    @property
    def runs(self) -> int:
        """Number of runs of a row."""
        return self.depth // self.run

    def vectors_at_once(self, rows: int, vectors: int, digits: int) -> int:
        """Return how many vectors of a tile a microkernel of `rows` rows takes, so that the sums fit in registers."""
        return max(1, min(vectors, (self.registers - OTHERS) // (rows * digits)))

    def row_words(self, digits: int) -> int:
        """Return the words of a row of activations as digits. Each run has its power and its sum, too."""
        return self.runs * (digits * self.digit_words + 2)


def product_of(workload: Workload, hardware: CpuSpec) -> ScaledProduct:
    """Return how a workload is multiplied on a CPU.

    Raises
    ------
    SpaceError
        The workload is not a product of float32 with 8-bit or 4-bit weights, or the CPU lacks the instructions.
    """
    attributes = workload.attribute
    if workload.body != "scaled_matmul" or workload.dtype != "float32":
        raise SpaceError(
            f"{workload.operator} of {workload.formats}: the template scaled takes scaled_matmul of float32xint8 or "
            "float32xint4 only; change the dtype or leave the template out"
        )
    isa = hardware.compute.isa
    if isa not in ISAS:
        raise SpaceError(
            f"{hardware.name} has {isa}, expected {' or '.join(ISAS)} for the template scaled; unpack the weights and "
            "plan a matmul"
        )
    bits = SCALED_FORMATS[str(attributes["dtype"]).partition(":")[0]].weight_bits
    rows, columns, depth = (workload.extents[axis] for axis in "ijk")
    group = int(str(attributes["group"])) or depth
    run = _RUN if group % _RUN == 0 else _RUN // 2
    if group % run or depth % group:
        raise SpaceError(f"{workload.describe()}: k is {depth}, expected a multiple of {_RUN // 2}; pad it")
    has_dot = hardware.dot_instruction("vpdpbusd") is not None
    instruction = "vpdpbusd" if has_dot else "maddubs" if bits == 4 else "maddwd"
    exact = 2 if instruction == "maddwd" else 3
    in_flight = hardware.dram.core_bandwidth_bytes_per_s * hardware.dram.latency_s
    ahead_bytes = 1 << math.ceil(math.log2(max(in_flight, 1.0)))
    return ScaledProduct(
        rows, columns, depth, bits, run, group, hardware.fp32_lanes, instruction, exact,
        bool(attributes["zero_points"]), hardware.compute.num_vector_registers, ahead_bytes,
    )  # fmt: skip


def change_rows(schedule: Schedule, workload: Workload) -> Schedule:
    """Return a schedule for another number of rows, with the same rows in a piece and in a microkernel.

    For few rows, weights are not unpacked.
    """
    _, *inner = schedule.tiles["i"]
    rows = workload.extents["i"]
    tiles = {**schedule.tiles, "i": (-(-rows // math.prod(inner)), *inner)}
    schedule = schedule if rows >= FLOATS_FROM else set_floats(schedule, False)
    return msgspec.structs.replace(schedule, workload=workload, tiles=tiles)


def set_floats(schedule: Schedule, is_set: bool) -> Schedule:
    """Return a schedule with the option "floats" set or not: weights are unpacked to float32 for many rows."""
    others = {name: value for name, value in schedule.options.items() if name != "floats"}
    return msgspec.structs.replace(schedule, options={**others, **({"floats": True} if is_set else {})})


def check_scaled(schedule: Schedule) -> None:
    """Raise SpaceError unless the schedule is one of the template "scaled"."""
    product = product_of(schedule.workload, cast(CpuSpec, schedule.hardware))
    if schedule.vector:
        raise SpaceError(f"vector is {dict(schedule.vector)!r:.60}, expected none: the template fetches whole vectors")
    check_count("unroll", schedule.unroll, product.run, product.run)
    check_names("options", schedule.options, ("digits", "floats", "parallel"))
    check_names("tiles", schedule.tiles, LEVELS, "axis")
    for axis, extent in schedule.workload.extents.items():
        last = {"j": product.lanes, "k": product.run}.get(axis)
        check_cover(axis, schedule.tiles.get(axis), LEVELS[axis], extent, last)
    digits, parallel = schedule.options.get("digits"), schedule.options.get("parallel", False)
    if digits not in (1, product.exact) or isinstance(digits, bool):
        raise SpaceError(f"option digits is {digits!r:.40}, expected 1 or {product.exact}")
    floats = schedule.options.get("floats", False)
    for name, value in (("parallel", parallel), ("floats", floats)):
        if not isinstance(value, bool):
            raise SpaceError(f"option {name} is {value!r:.40}, expected true or false")


def needed_accuracy(schedule: Schedule) -> str:
    """Return the accuracy that a schedule's arithmetic needs."""
    is_rounded = schedule.options["digits"] == 1 and not schedule.workload.attribute.get("rounded", False)
    return RELAXED if is_rounded else STANDARD


def digits_error(schedule: Schedule) -> float:
    """Return the largest error that rounding to digits explains, relative to the result's scale.

    The largest activation of a run uses all bits of a digit. Each activation therefore errs by at most half of the last
    bit, at random: ``2^-bits / sqrt(3)`` of the largest, which is about 1.7 times the root mean square. The factor 4 is
    that of `core.accuracy.rounding_error`.
    """
    product = product_of(schedule.workload, cast(CpuSpec, schedule.hardware))
    if schedule.options["digits"] != 1:
        return 0.0
    return 4.0 * float(2.0 ** -(6 if product.digit_bits == 8 else 13))
