"""Schedules of products of float32 with weights of 8 or 4 bits: the template "scaled"; `scaled.space` draws the loops.

Activations become integers, a run of them at a time, so that vectors of small integers are multiplied: a number is the
sum of its digits times powers, as many digits as the accuracy asks for.

Notation
--------
run : neighbours along k whose activations share a power, 32 of them, 16 where weights share a scale with as few.
group : neighbours along k of a column that share a scale; whole runs.
digit : an integer of 8 or 16 bits; several are as exact as float32.
word : 4 bytes, what a lane multiplies at once.
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
    "check_scaled",
    "digits_error",
    "needed_accuracy",
    "product_of",
    "scaled_at",
    "with_floats",
]

LEVELS: dict[str, tuple[str, ...]] = {
    "i": ("piece", "call", "row"),
    "j": ("tile", "vector", "lane"),
    "k": ("step", "run"),
}
"""Factors of each axis in ``Schedule.tiles``, outer to inner."""
_RUN = 32
"""Weights of 4 bits times digits of 8 bits, two and two added, are numbers of 16 bits until so many are summed."""
OTHERS = 8
"""Vector registers beside those of sums. Source: with more sums LLVM 22 spills (4x2 tiles of 16 registers)."""
FLOATS_FROM = 12
"""Rows from which on weights may be unpacked to float32: two microkernels' worth."""
FLOAT_ROWS, FLOAT_PIECE = 6, 192
"""Rows of a microkernel of unpacked weights, and most of those for which a part of a tile is unpacked once."""
ISAS = ("avx2", "avx512")


class ScaledProduct(NamedTuple):
    """A product and how its numbers are multiplied on a CPU.

    Attributes
    ----------
    bits : int
        Of a weight.
    run, group : int
        Elements along k.
    lanes : int
        float32 elements of a vector: columns.
    instruction : {"maddubs", "maddwd", "vpdpbusd"}
        What multiplies: digits of 8 bits with unsigned weights; of 16 bits with signed ones.
    exact : int
        Digits that are as exact as float32.
    has_zeros : bool
    registers : int
        Vector registers.
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
        """What is subtracted from weights as they are multiplied, beside zero points."""
        if self.instruction == "maddwd":
            return 0
        return 128 if self.bits == 8 else 0 if self.has_zeros else 8

    @property
    def runs(self) -> int:
        """Runs of a row."""
        return self.depth // self.run

    def at_once(self, rows: int, vectors: int, digits: int) -> int:
        """Return how many vectors of a tile a microkernel of some rows takes: their sums leave registers for others."""
        return max(1, min(vectors, (self.registers - OTHERS) // (rows * digits)))

    def row_words(self, digits: int) -> int:
        """Return the words of a row of activations as digits, each run with its power and its sum."""
        return self.runs * (digits * self.digit_words + 2)


def product_of(workload: Workload, hardware: CpuSpec) -> ScaledProduct:
    """Return how a workload is multiplied.

    Raises
    ------
    SpaceError
        It is no product of float32 with weights of 8 or 4 bits, or the CPU lacks the instructions.
    """
    own = workload.attribute
    if workload.body != "scaled_matmul" or workload.dtype != "float32":
        raise SpaceError(
            f"{workload.operator} of {workload.formats}: expected scaled_matmul of float32xint8 or float32xint4, which "
            "the template scaled multiplies; change the dtype or leave the template out"
        )
    isa = hardware.compute.isa
    if isa not in ISAS:
        raise SpaceError(
            f"{hardware.name} has {isa}, expected {' or '.join(ISAS)}, whose integers the template scaled multiplies; "
            "unpack the weights and plan a matmul"
        )
    bits = SCALED_FORMATS[str(own["dtype"]).partition(":")[0]].weight_bits
    rows, columns, depth = (workload.extents[axis] for axis in "ijk")
    group = int(str(own["group"])) or depth
    run = _RUN if group % _RUN == 0 else _RUN // 2
    if group % run or depth % group:
        raise SpaceError(f"{workload.describe()}: k is {depth}, expected a multiple of {_RUN // 2}; pad it")
    has_dot = hardware.dot_instruction("vpdpbusd") is not None
    instruction = "vpdpbusd" if has_dot else "maddubs" if bits == 4 else "maddwd"
    exact = 2 if instruction == "maddwd" else 3
    return ScaledProduct(
        rows, columns, depth, bits, run, group, hardware.fp32_lanes, instruction, exact, bool(own["zero_points"]),
        hardware.compute.num_vector_registers,
    )  # fmt: skip


def scaled_at(schedule: Schedule, workload: Workload) -> Schedule:
    """Return a schedule for another number of rows, with as many in a piece and in a microkernel.

    Few rows are not multiplied with unpacked weights.
    """
    _, *inner = schedule.tiles["i"]
    rows = workload.extents["i"]
    tiles = {**schedule.tiles, "i": (-(-rows // math.prod(inner)), *inner)}
    schedule = schedule if rows >= FLOATS_FROM else with_floats(schedule, False)
    return msgspec.structs.replace(schedule, workload=workload, tiles=tiles)


def with_floats(schedule: Schedule, is_set: bool) -> Schedule:
    """Return a schedule that unpacks weights to float32 for many rows, or does not."""
    others = {name: value for name, value in schedule.options.items() if name != "floats"}
    return msgspec.structs.replace(schedule, options={**others, **({"floats": True} if is_set else {})})


def check_scaled(schedule: Schedule) -> None:
    """Raise SpaceError unless these are a schedule of the template "scaled"."""
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
    """Return the largest error that digits explain, over the result's scale.

    A run's largest activation has all bits of a digit, so that each activation errs by at most half of the last one, at
    random: ``2^-bits / sqrt(3)`` of the largest, which is some 1.7 times the root of their mean square. The factor 4 is
    that of `core.accuracy.rounding_error`.
    """
    product = product_of(schedule.workload, cast(CpuSpec, schedule.hardware))
    if schedule.options["digits"] != 1:
        return 0.0
    return 4.0 * float(2.0 ** -(6 if product.digit_bits == 8 else 13))
