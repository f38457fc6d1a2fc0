"""The space of the template "scaled": rows and columns of a microkernel, rows of a piece, digits.

A schedule, outer to inner::

    for piece of rows, factor "piece" of i
      for row of the piece: its activations become digits                                             parallel?
      for tile of columns, factor "tile" of j: its weights are read from memory once a piece          parallel?
        for call of the piece: microkernel of "row" rows x "vector" vectors of columns, all of k, "run" at a time

Remaining rows are computed by smaller microkernels. `ScaledProduct.vectors_at_once` says how many vectors a microkernel
takes. ``Schedule.options``:

========== ===========================================================================================================
"digits"   Number of integers that an activation is converted to: as many as are as exact as float32, or 1 (with the
           accuracy "relaxed", or if the workload says that data may be rounded).
"floats"   Whether weights are unpacked to float32 instead, from `FLOATS_FROM` rows on. A part of a tile of columns is
           unpacked at a time, for many rows (``program.floats``).
"parallel" Whether loops are distributed over the cores.
========== ===========================================================================================================

Weights, scales and zero points are packed before the kernel runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import RELAXED, validate_accuracy
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.base.space import LegalityCheck, Space, SpacePart
from anatune.templates.scaled.rules import FLOATS_FROM, product_of

__all__ = ["ScaledSpace"]

_ROWS = (1, 2, 4)
_VECTORS = (1, 2)
_PIECES = (1, 2, 4, 8, 16, 32)
"""Numbers of calls of a piece."""
_LEAST_PIECE = 16
"""Fewest rows of a piece, for which weights are read once, if there are as many."""


class ScaledSpace(Space):
    """All schedules of the template "scaled" for one product on one CPU.

    Spaces are deterministic and immutable, so that threads may share them.

    Parameters
    ----------
    workload, hardware, is_legal
        See `Space`.
    accuracy : {"standard", "relaxed"}
        Accuracy of the schedules' arithmetic. With "standard" single digits are left out.

    Raises
    ------
    SpaceError
        The errors of `product_of`, or the accuracy is unknown.
    """

    template, axis_word = "scaled", "axis"
    hardware: CpuSpec

    def __init__(self, workload: Workload, hardware: CpuSpec, is_legal: LegalityCheck, accuracy: str = RELAXED) -> None:
        self.product = product_of(workload, hardware)
        super().__init__(workload, hardware, is_legal)
        self.levels = {"i": ("call", "row"), "j": ("vector",), "k": ("run",)}
        self.accuracy = validate_accuracy("accuracy", accuracy)
        may_round = accuracy == RELAXED or workload.attribute.get("rounded", False)
        digits = (1, self.product.exact) if may_round else (self.product.exact,)
        self.choices = {"digits": digits, "floats": (0, 1), "parallel": (0, 1)}
        if self.product.rows < FLOATS_FROM:
            self.choices["floats"] = (0,)

    def _axis(self, axis: str) -> SpacePart:
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
        """Return the schedule of one point (a vector in the order of `columns`)."""
        values = self._values(point)
        return self.schedule(self._tiles(values), values[-3], floats=bool(values[-2]), parallel=bool(values[-1]))

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule is for another workload or template, or its factors are not in the space.
        """
        self._check_membership(schedule)
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
        """Return the schedule with these tiles, which may have any sizes. The device may not allow it.

        Parameters
        ----------
        tiles : mapping of str to sequence of int
            "i" -> (call, row), "j" -> (vector,), "k" -> (run,). Missing tiles are 1, for k the run.
        digits : int, optional
            Digits of an activation. Default: as many as are as exact as float32.
        floats : bool
            Unpack weights to float32 if there are many rows.
        parallel : bool
            Distribute rows and columns over the cores.

        Raises
        ------
        SpaceError
            An axis or the number of digits is unknown, or the number of factors is wrong.
        """
        product, extents = self.product, {axis: self.extents[axis] for axis in "ij"}
        complete = self._covering(tiles, "{'i': (8, 4), 'j': (2,)}", extents, {"j": product.lanes})
        complete["k"] = (product.runs, product.run)
        options: dict[str, OptionValue] = {"digits": int(digits or product.exact), "parallel": bool(parallel)}
        if floats:
            options["floats"] = True
        return Schedule(self.workload, self.hardware, self.template, complete, product.run, options=options).check()
