"""Columns that a model computes for a batch of points, shared by the GPU and the CPU model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.prediction import Prediction

__all__ = ["Evaluation", "Guarantee", "Model", "Progress", "Ranking", "Rule"]

Progress = Callable[[float], None]
"""Called with the share of a search that is done, in [0, 1]."""


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """One legality rule: its id, what it limits in words, and the device's limit.

    ``needed`` is what every point of a space needs, where that is the same for all: such a rule rejects all or none.
    """

    id: str
    text: str
    limit: float
    needed: float | None = None

    def broken_text(self, needed: float | None) -> str:
        """Return in words that a point breaks the rule, and with what."""
        got = "" if needed is None else f"{needed:,.10g}, "
        return f"{self.id}: {self.text}: {got}at most {self.limit:,.10g}"


@dataclass(frozen=True)
class Evaluation:
    """What a model says about a batch of points.

    Attributes
    ----------
    time_s : (num_points,) float64
        Predicted seconds; also given for points that break a rule (as if the limit were not there) or inf.
    rule : (num_points,) int64
        0 where legal, else 1 + index into the model's rules (the first broken one).
    """

    time_s: NDArray[np.float64]
    rule: NDArray[np.int64]
    columns: dict[str, NDArray[np.float64]]
    """Every other quantity, (num_points,) float64 each."""


class Guarantee(msgspec.Struct, frozen=True):
    """How sure the ranking is.

    ``kind`` is "exhaustive" (every point evaluated), "certified" (what was not evaluated is proven slower by an
    admissible bound) or "best_found" (a time limit ended the search; the answer's time is at most
    (1 + ``gap``) times the best possible).
    """

    kind: Literal["exhaustive", "certified", "best_found"]
    gap: float = 0.0
    num_evaluated: int = 0
    """Points whose time was computed."""
    num_bounded: int = 0
    """Partial points whose bound was computed."""

    def describe(self) -> str:
        """Return the guarantee in words."""
        if self.kind == "best_found":
            return f"best found, gap <= {100 * self.gap:.2g} %"
        return self.kind


@dataclass(frozen=True)
class Ranking:
    """The best points of a space, best first, and what became of the others.

    ``num_legal`` and ``rejected`` (rule id -> points) are exact counts over the whole space, or None where the
    time limit ended the count.
    """

    points: NDArray[np.int64]
    guarantee: Guarantee
    num_legal: int | None
    rejected: dict[str, int] | None


class Model(Protocol):
    """An analytical model of one workload on one device, batch first."""

    rules: tuple[Rule, ...]

    def evaluate(self, points: NDArray[np.int64]) -> Evaluation:
        """Score points, (num_points, len(space.columns)) int64."""

    def check(self, points: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rule codes of points (see Evaluation.rule) without timing them."""

    def predictions(self, points: NDArray[np.int64]) -> list[Prediction]:
        """Score points and return one readable Prediction each."""

    def rank(
        self,
        top_k: int,
        time_limit_s: float | None = None,
        *,
        distinct: bool = False,
        progress: Progress | None = None,
    ) -> Ranking:
        """Return the `top_k` legal points of smallest predicted time; with `distinct`, one of each time."""
