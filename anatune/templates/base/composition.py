"""Composition of a predicted time from its parts: which parts overlap, and which follow one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["NOT_HIDDEN", "Composition", "Lane"]

NOT_HIDDEN = "not hidden"
"""Name of the seconds that belong to no part: time that the longest part does not hide, and overheads."""


class Lane(NamedTuple):
    """A group of parts whose time passes beside that of other lanes; names are keys of `Prediction.parts`."""

    at_once: tuple[str, ...] = ()
    """Parts that overlap: the time is that of the longest one, and a little of the others."""
    in_turn: tuple[str, ...] = ()
    """Parts that follow the overlapping ones, one after another."""

    def binding(self, parts: Mapping[str, float]) -> list[str]:
        """Return the parts that make up the time of the lane: the longest overlapping part, and those that follow."""
        longest = [max(self.at_once, key=lambda name: parts.get(name, 0.0))] if self.at_once else []
        return [*longest, *self.in_turn]

    def seconds(self, parts: Mapping[str, float]) -> float:
        """Return the seconds of this lane alone."""
        return sum(parts.get(name, 0.0) for name in self.binding(parts))


class Composition(NamedTuple):
    """The rule by which a template composes its time: the longest lane, and the added parts.

    Without lanes all parts overlap.
    """

    lanes: tuple[Lane, ...] = ()
    added: tuple[str, ...] = ()
    """Parts that nothing overlaps."""

    def lanes_of(self, parts: Mapping[str, float]) -> list[Lane]:
        """Return the lanes of a prediction. The first is the longest: it binds."""
        lanes = self.lanes or (Lane(tuple(name for name in parts if name not in self.added)),)
        return sorted(lanes, key=lambda lane: -lane.seconds(parts))

    def pieces(self, parts: Mapping[str, float], time_s: float) -> list[tuple[str, float]]:
        """Return the summands of a time in order, each as (part or `NOT_HIDDEN`, seconds > 0).

        Parameters
        ----------
        parts : mapping of str to float
            `Prediction.parts`, seconds.
        time_s : float
            Predicted seconds, without a correction.
        """
        added = [(name, parts[name]) for name in self.added if parts.get(name, 0.0) > 0.0]
        unexplained_s, pieces = time_s - sum(seconds for _, seconds in added), []
        for name in self.lanes_of(parts)[0].binding(parts):
            if (seconds := min(unexplained_s, parts.get(name, 0.0))) > 0.0:  # a wait can be partly hidden
                pieces.append((name, seconds))
                unexplained_s -= seconds
        if unexplained_s > 1e-9 * time_s:
            pieces.append((NOT_HIDDEN, unexplained_s))
        return pieces + added
