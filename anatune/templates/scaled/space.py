"""The tile space of products with weights of 8 or 4 bits: rows and columns of a microkernel, rows of a piece, digits.

A schedule, outer to inner::

    for piece of rows, factor "piece" of i
      for row of the piece: its activations become digits                                             parallel?
      for tile of columns, factor "tile" of j: its weights are read from memory once a piece          parallel?
        for call of the piece: microkernel of "row" rows x "vector" vectors of columns, all of k, "run" at a time

Rows that are left over are those of smaller microkernels; how many vectors one takes at once, `ScaledProduct.at_once`
says. ``Schedule.options``:

========== ===========================================================================================================
"digits"   Integers that an activation becomes: as many as are as exact as float32, or 1 (accuracy "relaxed", or where
           the workload says that data may be rounded).
"floats"   Whether weights are unpacked to float32 instead from `FLOATS_FROM` rows on, a part of a tile of columns at a
           time for many rows (``program.floats``).
"parallel" Whether loops are distributed over the cores.
========== ===========================================================================================================

Weights, scales and zero points are packed ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import RELAXED, checked_accuracy
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.base.space import LegalityCheck, Part, Space
from anatune.templates.scaled.rules import FLOATS_FROM, product_of

__all__ = ["ScaledSpace"]

_ROWS = (1, 2, 4)
_VECTORS = (1, 2)
_PIECES = (1, 2, 4, 8, 16, 32)
"""Calls of a piece."""
_LEAST_PIECE = 16
"""Rows for which weights are read once at least, where there are as many."""


class ScaledSpace(Space):
    """All schedules of one product on one CPU that the template can express.

    Guarantees: deterministic; safe to share between threads (immutable).

    Parameters
    ----------
    workload, hardware, is_legal
        As of `Space`.
    accuracy : {"standard", "relaxed"}
        What the arithmetic of its schedules may need: "standard" leaves out single digits.

    Raises
    ------
    SpaceError
        As `product_of`; no such accuracy.
    """

    template, axis_word = "scaled", "axis"
    hardware: CpuSpec

    def __init__(self, workload: Workload, hardware: CpuSpec, is_legal: LegalityCheck, accuracy: str = RELAXED) -> None:
        self.product = product_of(workload, hardware)
        super().__init__(workload, hardware, is_legal)
        self.levels = {"i": ("call", "row"), "j": ("vector",), "k": ("run",)}
        self.accuracy = checked_accuracy("accuracy", accuracy)
        may_round = accuracy == RELAXED or workload.attribute.get("rounded", False)
        digits = (1, self.product.exact) if may_round else (self.product.exact,)
        self.choices = {"digits": digits, "floats": (0, 1), "parallel": (0, 1)}
        if self.product.rows < FLOATS_FROM:
            self.choices["floats"] = (0,)

    def _axis(self, axis: str) -> Part:
        product, rows = self.product, list[tuple[int, ...]]()
        if axis == "i":
            for row in (size for size in _ROWS if size <= product.rows):
                most = -(-product.rows // row)
                pieces = {calls for calls in _PIECES if calls < most} | {min(most, _PIECES[-1])}
                rows += [(calls, row) for calls in pieces if calls * row >= min(product.rows, _LEAST_PIECE)]
            rows.sort()
        elif axis == "j":
            rows = [(v,) for v in _VECTORS if v == 1 or (v - 1) * product.lanes < product.columns]
        else:
            rows = [(product.run,)]
        return self._tiles_of(axis, rows)

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Decode one point (a vector in the order of `columns`) into a Schedule."""
        values = self._values(point)
        return self.schedule(self._tiles(values), values[-3], floats=bool(values[-2]), parallel=bool(values[-1]))

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule belongs to another workload or template, or its factors do not fit the space.
        """
        self._check_own(schedule)
        tiles, options = schedule.tiles, schedule.options
        flags = (options.get("floats", False), options.get("parallel", False))
        numbers = (*tiles["i"][1:], tiles["j"][1], tiles["k"][1], options["digits"], *flags)
        return np.array([int(number) for number in numbers], dtype=np.int64)  # type: ignore[arg-type]

    def schedule(
        self,
        tiles: Mapping[str, Sequence[int]],
        digits: int | None = None,
        *,
        floats: bool = False,
        parallel: bool = False,
    ) -> Schedule:
        """Build the schedule with these tiles; any sizes are accepted, legal on the device or not.

        Parameters
        ----------
        tiles : mapping of str to sequence of int
            "i" -> (call, row), "j" -> (vector,), "k" -> (run,): what is left out is 1, of k the run.
        digits : int, optional
            Of an activation; by default as many as are as exact as float32.
        floats : bool
            Unpack weights to float32 where there are many rows.
        parallel : bool
            Distribute rows and columns over the cores.

        Raises
        ------
        SpaceError
            Unknown axis, wrong number of factors, no such number of digits.
        """
        product, extents = self.product, {axis: self.extents[axis] for axis in "ij"}
        complete = self._covering(tiles, "{'i': (8, 4), 'j': (2,)}", extents, {"j": product.lanes})
        complete["k"] = (product.runs, product.run)
        options: dict[str, OptionValue] = {"digits": int(digits or product.exact), "parallel": bool(parallel)}
        if floats:
            options["floats"] = True
        return Schedule(self.workload, self.hardware, self.template, complete, product.run, options=options).check()
