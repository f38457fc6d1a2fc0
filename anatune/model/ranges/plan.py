"""Plans for a range of extents: which kernels serve which extents, the time that this costs, and the proof."""

from __future__ import annotations

import bisect
import json
from functools import cached_property
from typing import Literal

import msgspec

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.ranges import RangedWorkload
from anatune.decoding import from_json
from anatune.errors import SpaceError


class Interval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Neighbouring extents that one program serves, from `first` to `last` inclusive.

    Attributes
    ----------
    program : int
        Number of the program in ``RangePlan.programs``, from 0.
    loss : float
        Largest loss in the interval that cannot be excluded; never above ``RangePlan.loss``.
    known_loss : float
        Largest loss in the interval against the fastest programs that were found.
    first_s, last_s : float
        Predicted times at both ends, s.
    """

    first: int
    last: int
    program: int
    loss: float
    known_loss: float
    first_s: float
    last_s: float


class RangeProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program of a range plan: one kernel, compiled once, for all extents from `first` to `last`.

    Attributes
    ----------
    schedule : Schedule
        Its schedule at `last`, the largest extent that it serves.
    first, last : int
        Smallest and largest extent that it serves; other programs may serve some between them.
    num_extents : int
        Number of the range's extents that it serves.
    """

    schedule: Schedule
    first: int
    last: int
    num_extents: int


class RangePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Few kernels (programs) for a range of extents: the answer of `anatune.plan_range`. Immutable; JSON both ways.

    A program is a kernel that is compiled once and takes the extent when it is called. Its loss at an extent is its
    predicted time over that of the best schedule for this single extent, minus 1, among the schedules of `templates`.

    Attributes
    ----------
    workload : RangedWorkload
        The workload and its range.
    goal : str
        The goal: the least "worst" loss or the "mean" loss of a number of programs, or the "count" of programs for
        a given loss.
    programs : tuple of RangeProgram
        The programs, in the order of the extents that they serve.
    intervals : tuple of Interval
        Intervals of extents, ascending; together they contain every extent of the range.
    loss : float
        Proven worst loss over all extents.
    worst_extent : int
        Extent with the worst loss.
    mean_loss : float
        Proven mean loss with the given weights; if the worst loss was minimised, the mean loss is not proven
        separately.
    known_loss, known_mean_loss : float
        Worst and mean loss against the fastest programs that were found; the proven ones are at least as large.
    least_loss : float
        Lower bound of the worst (or mean) loss of any choice of as many candidates. For "count": the requested loss.
    least_programs : int
        For "count": lower bound of the number of programs, among the candidates.
    num_candidates : int
        Number of programs to choose from.
    is_complete : bool
        Whether the search ended by itself. If a time limit ended it, a longer one may find a better choice or prove a
        smaller loss.
    templates : tuple of str
        Templates of the candidate programs. Losses are relative to schedules of these templates.
    left_out : tuple of str
        Templates that plans for the single extents also rank, but that have no programs for this range or were not
        requested: their schedules may be faster than the loss tells.
    """

    workload: RangedWorkload
    hardware: GpuSpec | CpuSpec
    goal: Literal["worst", "mean", "count"]
    programs: tuple[RangeProgram, ...]
    intervals: tuple[Interval, ...]
    loss: float
    worst_extent: int
    mean_loss: float
    known_loss: float
    known_mean_loss: float
    least_loss: float
    least_programs: int
    num_candidates: int
    is_complete: bool
    templates: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"RangePlan({self.workload.describe()} on {self.hardware.name}: {len(self.programs)} programs, "
            f"loss <= {100 * self.loss:.2g} %)"
        )

    @cached_property
    def _starts(self) -> list[int]:
        return [interval.first for interval in self.intervals]

    def interval_of(self, extent: int) -> Interval:
        """Return the interval that serves an extent; extents between two intervals belong to the upper one.

        Raises
        ------
        SpaceError
            The extent is outside the range.
        """
        axis, (least, most) = self.workload.axis, (self.workload.extents[0], self.workload.extents[-1])
        if not isinstance(extent, int) or isinstance(extent, bool) or not least <= extent <= most:
            raise SpaceError(f"range: {axis} is {extent!r:.60}, expected an integer from {least} to {most}")
        index = bisect.bisect_right(self._starts, extent) - 1
        return self.intervals[index] if extent <= self.intervals[index].last else self.intervals[index + 1]

    def program_of(self, extent: int) -> int:
        """Return the number of the program that serves an extent; errors as in `interval_of`."""
        return self.interval_of(extent).program

    def telling_extents(self) -> list[int]:
        """Return the extents at which the programs are verified, ascending.

        They are both ends and the middle of the first and the last interval of each program.
        """
        extents: set[int] = set()
        values = self.workload.extents
        for number in range(len(self.programs)):
            own_intervals = [interval for interval in self.intervals if interval.program == number]
            for interval in (own_intervals[0], own_intervals[-1]):
                first, last = (
                    bisect.bisect_left(values, interval.first),
                    bisect.bisect_right(values, interval.last) - 1,
                )
                extents |= {values[first], values[(first + last) // 2], values[last]}
        return sorted(extents)

    def least(self, number: int) -> int:
        """Return the smallest extent that a program may be called with, which may be none of the range's own.

        Extents between two intervals belong to the upper one.
        """
        first = next(at for at, interval in enumerate(self.intervals) if interval.program == number)
        return self.intervals[first - 1].last + 1 if first else self.intervals[0].first

    def dispatch(self) -> dict[str, object]:
        """Return the dispatch table: the axis, and the first and last extent and the program of each interval."""
        return {
            "axis": self.workload.axis,
            "extents": self.workload.format_extents(),
            "intervals": [{"first": one.first, "last": one.last, "program": one.program} for one in self.intervals],
            "programs": [one.schedule.key for one in self.programs],
        }

    def to_json(self) -> str:
        """Return the plan as one line of JSON."""
        return msgspec.json.encode(self).decode()

    def to_dict(self) -> dict[str, object]:
        """Return the plan as plain dictionaries and lists."""
        tree: dict[str, object] = json.loads(self.to_json())
        return tree

    @classmethod
    def from_json(cls, text: str | bytes) -> RangePlan:
        """Read a plan from the JSON that `to_json` wrote.

        Raises
        ------
        SpaceError
            The text is not the JSON of a range plan.
        """
        try:
            plan = from_json(text, cls)
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
            raise SpaceError(f"range JSON: {error!s:.300}; expected the text of RangePlan.to_json()") from None
        for program in plan.programs:
            program.schedule.check()
        numbers = {interval.program for interval in plan.intervals}
        if not plan.programs or numbers != set(range(len(plan.programs))):
            raise SpaceError("range JSON: intervals name missing programs; expected the text of RangePlan.to_json()")
        return plan
