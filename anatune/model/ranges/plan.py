"""A plan for a range of extents: which programs serve which extents, and what that loses, with its proof."""

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
    """Neighbouring extents that one program serves, `first` to `last`, both included.

    Attributes
    ----------
    program : int
        Its number in ``RangePlan.programs``, from 0.
    loss : float
        Largest loss in the interval that is not excluded. No more than ``RangePlan.loss`` is proven of any.
    known_loss : float
        Largest loss in the interval against the fastest programs that were found.
    first_s, last_s : float
        Predicted seconds at both ends.
    """

    first: int
    last: int
    program: int
    loss: float
    known_loss: float
    first_s: float
    last_s: float


class RangeProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One program: one compiled kernel for all extents from `first` to `last`.

    Attributes
    ----------
    schedule : Schedule
        At `last`, the largest extent that it serves.
    first, last : int
        Smallest and largest extent that it serves; others may serve some between them.
    num_extents : int
        How many of the range's extents it serves.
    """

    schedule: Schedule
    first: int
    last: int
    num_extents: int


class RangePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Few programs for a range of extents. Immutable; JSON both ways.

    A loss is the predicted time over that of the best schedule of the single shape, less 1: of `templates`.

    Attributes
    ----------
    workload : RangedWorkload
    goal : str
        What was made least: "worst" loss of so many programs, their "mean" loss, or the "count" of programs for a loss.
    programs : tuple of RangeProgram
        By the extents that they serve.
    intervals : tuple of Interval
        Ascending; together they hold every extent of the range.
    loss : float
        Proven worst loss over all extents.
    worst_extent : int
        Where it is.
    mean_loss : float
        Proven mean loss, weighted as was asked for; where the worst loss was made least, no less of it is proven.
    known_loss, known_mean_loss : float
        Worst and mean loss against the fastest programs that were found: the proven ones are these or more.
    least_loss : float
        No other choice of as many of the candidates has a smaller worst (or mean) loss. For "count": the asked one.
    least_programs : int
        For "count": so many programs at least are needed, among the candidates.
    num_candidates : int
        Programs that the choice was made among.
    is_complete : bool
        False where the time limit ended the search: a longer one may find a better choice or prove a smaller loss.
    templates : tuple of str
        Templates whose programs were chosen from. Losses are against the schedules of these.
    left_out : tuple of str
        Templates that plans of the single shapes rank besides, and that have no programs for this range or were not
        asked for: schedules of theirs may be faster by more than a loss says.
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
        """Return the interval that serves an extent; one between two intervals is served by the upper one.

        Raises
        ------
        SpaceError
            The extent is none of the range's.
        """
        axis, (least, most) = self.workload.axis, (self.workload.extents[0], self.workload.extents[-1])
        if not isinstance(extent, int) or isinstance(extent, bool) or not least <= extent <= most:
            raise SpaceError(f"range: {axis} is {extent!r:.60}, expected an integer from {least} to {most}")
        at = bisect.bisect_right(self._starts, extent) - 1
        return self.intervals[at] if extent <= self.intervals[at].last else self.intervals[at + 1]

    def program_of(self, extent: int) -> int:
        """Return the number of the program that serves an extent; errors as `interval_of`."""
        return self.interval_of(extent).program

    def telling_extents(self) -> list[int]:
        """Return extents of the range at which programs are verified, ascending.

        Both ends and the middle of the first and the last interval of each program.
        """
        extents: set[int] = set()
        listed = self.workload.extents
        for number in range(len(self.programs)):
            own = [interval for interval in self.intervals if interval.program == number]
            for interval in (own[0], own[-1]):
                first, last = bisect.bisect_left(listed, interval.first), bisect.bisect_right(listed, interval.last) - 1
                extents |= {listed[first], listed[(first + last) // 2], listed[last]}
        return sorted(extents)

    def least(self, number: int) -> int:
        """Return the smallest extent that a program may be called with, also of those between two of the range's.

        What lies between two intervals is the upper one's.
        """
        first = next(at for at, interval in enumerate(self.intervals) if interval.program == number)
        return self.intervals[first - 1].last + 1 if first else self.intervals[0].first

    def dispatch(self) -> dict[str, object]:
        """Return the dispatch table alone: the axis, and for each interval its first and last extent and program."""
        return {
            "axis": self.workload.axis,
            "extents": self.workload.spelled(),
            "intervals": [{"first": one.first, "last": one.last, "program": one.program} for one in self.intervals],
            "programs": [one.schedule.key for one in self.programs],
        }

    def to_json(self) -> str:
        """Return the plan as one line of JSON."""
        return msgspec.json.encode(self).decode()

    def to_dict(self) -> dict[str, object]:
        """Return plain dictionaries and lists."""
        tree: dict[str, object] = json.loads(self.to_json())
        return tree

    @classmethod
    def from_json(cls, text: str | bytes) -> RangePlan:
        """Return the plan that `to_json` wrote.

        Raises
        ------
        SpaceError
            `text` is not JSON, or not that of a plan for a range.
        """
        try:
            found = from_json(text, cls)
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
            raise SpaceError(f"range JSON: {error!s:.300}; expected the text of RangePlan.to_json()") from None
        for one in found.programs:
            one.schedule.check()
        numbers = {interval.program for interval in found.intervals}
        if not found.programs or numbers != set(range(len(found.programs))):
            raise SpaceError("range JSON: intervals name other programs than there are; expected RangePlan.to_json()")
        return found
