"""How the parts of a predicted time go together: what works at the same time, and what comes on top of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["NOT_HIDDEN", "Composition", "Lane"]

NOT_HIDDEN = "not hidden"
"""Piece of a time that no part is: what the longest part does not hide of the others, and what has no part."""


class Lane(NamedTuple):
    """Parts of a time that pass beside those of other lanes; the names are keys of `Prediction.parts`."""

    at_once: tuple[str, ...] = ()
    """They overlap each other: the longest counts, and a little of the others."""
    in_turn: tuple[str, ...] = ()
    """They follow that, one after another."""

    def binding(self, parts: Mapping[str, float]) -> list[str]:
        """Return the parts that the lane's time consists of: the longest of those that overlap, and what follows."""
        longest = [max(self.at_once, key=lambda name: parts.get(name, 0.0))] if self.at_once else []
        return [*longest, *self.in_turn]

    def seconds(self, parts: Mapping[str, float]) -> float:
        """Return the seconds of the lane alone."""
        return sum(parts.get(name, 0.0) for name in self.binding(parts))


class Composition(NamedTuple):
    """A template's rule: its time is that of lanes beside each other, the longest first of all, and what is added.

    Without lanes all parts overlap.
    """

    lanes: tuple[Lane, ...] = ()
    added: tuple[str, ...] = ()
    """Parts that nothing overlaps."""

    def lanes_of(self, parts: Mapping[str, float]) -> list[Lane]:
        """Return the lanes of a prediction, the longest, which binds, first."""
        lanes = self.lanes or (Lane(tuple(name for name in parts if name not in self.added)),)
        return sorted(lanes, key=lambda lane: -lane.seconds(parts))

    def pieces(self, parts: Mapping[str, float], time_s: float) -> list[tuple[str, float]]:
        """Return what a time adds up from: (part or `NOT_HIDDEN`, seconds > 0), in order.

        Parameters
        ----------
        parts : mapping of str to float
            `Prediction.parts`, seconds.
        time_s : float
            Predicted seconds, without a learned correction.
        """
        added = [(name, parts[name]) for name in self.added if parts.get(name, 0.0) > 0.0]
        left, pieces = time_s - sum(seconds for _, seconds in added), []
        for name in self.lanes_of(parts)[0].binding(parts):
            if (shown := min(left, parts.get(name, 0.0))) > 0.0:  # some of a wait may be hidden, too
                pieces.append((name, shown))
                left -= shown
        if left > 1e-9 * time_s:
            pieces.append((NOT_HIDDEN, left))
        return pieces + added
