"""The interface of all models of a workload on a device, and the base class of analytical models.

A model takes points in batches. It says which points are legal, predicts their seconds, and ranks the space.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import HardwareSpec
from anatune.core.prediction import Prediction
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.composition import Composition
from anatune.templates.base.features import FeatureTable, log2, table_of
from anatune.templates.base.space import Space
from anatune.templates.base.watch import Progress, Watch

__all__ = [
    "CHECK",
    "PREDICT",
    "AnalyticalModel",
    "Evaluation",
    "Guarantee",
    "Model",
    "Progress",
    "Ranking",
    "Rule",
    "Shown",
]

Points = NDArray[np.int64]
Floats = NDArray[np.float64]
Columns = dict[str, Floats]
Scores = tuple[NDArray[np.int64], Floats, Floats]
"""(rule codes, seconds, quantities), where quantities are (num_quantities, num_points)."""

CHECK, PREDICT = 0, 1
"""Tasks of a batch function of `anatune.numerics`: rule codes only, or times as well."""


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A legality rule: its id, a text that names the limited quantity, and the limit of the device.

    ``needed`` is the quantity that points of a space need, if all need the same. Such a rule rejects all or
    none.
    """

    id: str
    text: str
    limit: float
    needed: float | None = None

    def broken_text(self, needed: float | None) -> str:
        """Return a sentence: the rule that a point breaks, the quantity that the point needs, and the limit."""
        need = "" if needed is None else f"{needed:,.10g}, "
        return f"{self.id}: {self.text}: {need}at most {self.limit:,.10g}"


@dataclass(frozen=True)
class Evaluation:
    """The scores of a batch of points.

    Attributes
    ----------
    time_s : (num_points,) float64
        Predicted seconds. A point that breaks a rule has the time it would have without the limit, or inf.
    rule : (num_points,) int64
        0 if legal, else 1 + the index of the first broken rule in the rules of the model.
    """

    time_s: NDArray[np.float64]
    rule: NDArray[np.int64]
    columns: dict[str, NDArray[np.float64]]
    """All other quantities by name, (num_points,) float64 each."""


class Guarantee(msgspec.Struct, frozen=True):
    """The proof behind a ranking.

    ``kind`` is "exhaustive" (every point was evaluated), "certified" (a bound proves that no point left out is
    predicted to be faster) or "best_found" (the time limit ended the search; the predicted time of the answer is at
    most (1 + ``gap``) times the best possible one).
    """

    kind: Literal["exhaustive", "certified", "best_found"]
    gap: float = 0.0
    num_evaluated: int = 0
    """Points whose time was computed."""
    num_bounded: int = 0
    """Partial points whose bound was computed."""

    def describe(self) -> str:
        """Return the guarantee as text."""
        if self.kind == "best_found":
            return f"best found, gap to the best possible time <= {100 * self.gap:.2g} %"
        return self.kind


@dataclass(frozen=True)
class Ranking:
    """The best points of a space, best first, and counts of all others.

    ``num_legal`` and ``rejected`` (rule id -> points) are exact counts over the whole space, or None if the time limit
    ended the count. In a distinct ranking, ``num_alike`` (num_points,) is the number of other legal points with the
    same predicted time; it is a lower bound unless ``alike_is_exact``.
    """

    points: NDArray[np.int64]
    guarantee: Guarantee
    num_legal: int | None
    rejected: dict[str, int] | None
    num_alike: NDArray[np.int64] | None = None
    alike_is_exact: bool = False


class Model(ABC):
    """Legality, predicted times and ranking of the schedules of one workload on one device, in batches of points.

    Attributes
    ----------
    workload, hardware
        The computation and the spec of the device.
    space : Space
        The schedules. A point is (len(space.columns),) int64.
    rules : tuple of Rule
        The conditions that a legal point fulfils.
    """

    own_parts: ClassVar[tuple[str, ...]] = ()
    """Parts of the time that only some points have."""
    composition: ClassVar[Composition] = Composition()
    """The rule by which the parts make up the time."""

    workload: Workload
    hardware: HardwareSpec
    space: Space
    rules: tuple[Rule, ...]

    @abstractmethod
    def check(self, points: Points) -> NDArray[np.int64]:
        """Return the rule codes of points (see Evaluation.rule) without timing them."""

    @abstractmethod
    def times(self, points: Points) -> tuple[Floats, NDArray[np.int64]]:
        """Return (seconds, rule codes) of points. This is faster than `evaluate`."""

    @abstractmethod
    def evaluate(self, points: Points) -> Evaluation:
        """Score points, (num_points, len(space.columns)) int64."""

    @abstractmethod
    def predictions(self, points: Points) -> list[Prediction]:
        """Score points and return one readable Prediction for each, in order."""

    @abstractmethod
    def rank(
        self, top_k: int, time_limit_s: float | None = None, *, distinct: bool = False, progress: Progress | None = None
    ) -> Ranking:
        """Return the `top_k` legal points of smallest predicted time; with `distinct`, one point of each time."""

    @property
    def plain(self) -> Model:
        """The model without a learned correction."""
        return self

    @property
    def is_corrected(self) -> bool:
        """True if a learned correction changes its times."""
        return self.plain is not self

    @property
    def least_flop(self) -> float:
        """Fewest operations of any schedule: fewer than the workload has if padding is skipped or a transform saves."""
        return float(self.workload.flop)

    @property
    def io_bounds(self) -> dict[str, float]:
        """Memory level of `Prediction.traffic_over_bound` -> lower bound on the bytes that cross it."""
        return {}

    def program_key(self, point: Points) -> Hashable:
        """Return a key that is equal for points that become the same program."""
        return np.asarray(point, dtype=np.int64).tobytes()

    def feature_table(self, points: Points) -> FeatureTable:
        """Return the features of points: shares of the parts in the time, and logarithms of the points' entries."""
        points = np.atleast_2d(points)
        scores = self.evaluate(points)
        parts = {
            name: part for name, part in scores.columns.items() if name.endswith("_s") and name not in self.own_parts
        }
        columns = {f"share_{name}": part / scores.time_s for name, part in parts.items()}
        columns |= {name: log2(1.0 + column) for name, column in zip(self.space.columns, points.T, strict=True)}
        return table_of(scores.time_s, scores.rule, columns)

    def leaves(self, points: Points) -> Points:
        """Return the leaf numbers of points in the trees of a learned correction, (num_points, num_numbers).

        The more numbers two points share, the closer their errors were in training. There are no numbers without a
        correction.
        """
        return np.zeros((len(points), 0), dtype=np.int64)

    def points_within(self, limit_s: float, progress: Progress | None = None) -> tuple[Points, Floats] | None:
        """Return every legal point whose predicted time is within a limit, and the times, in ranking order.

        The result is None if the model cannot do that faster than by a ranking of as many points.
        """
        return None


class Shown(NamedTuple):
    """The quantities of a model that a `Prediction` shows."""

    parts: tuple[str, ...]
    """Columns that are parts of the time, in seconds."""
    features: tuple[str, ...]
    resources: tuple[str, ...]
    over_bound: Columns
    """Memory level -> bytes that cross it, relative to the I/O lower bound."""
    limiter: Sequence[str]
    """Name of the resource that limits the occupancy of each point."""
    own_parts: tuple[str, ...] = ()
    """Parts that only some points have; they are shown if they take time."""


class AnalyticalModel(Model):
    """A model that a compiled function evaluates, point by point.

    Guarantees: deterministic; every prediction depends on its own point only.
    """

    def __init__(self, workload: Workload, hardware: HardwareSpec) -> None:
        self.workload = workload
        self.hardware = hardware

    @abstractmethod
    def _run(self, points: Points, task: int, *, full: bool = False, compiled: Floats | None = None) -> Scores:
        """Return (rule codes, seconds, quantities if `full`) of points.

        `task` is CHECK, PREDICT, or a task of the subclass. `compiled` is (3, num_points): facts from a compiler, if
        the model can use them (see `predictions`).
        """

    @abstractmethod
    def _columns(self, quantities: Floats, time_s: Floats) -> Columns:
        """Name the quantities of a prediction, (num_points,) each."""

    @abstractmethod
    def _select_shown(self, columns: Columns) -> Shown:
        """Select the columns that a prediction shows."""

    @abstractmethod
    def _rank(self, top_k: int, watch: Watch, *, distinct: bool) -> Ranking:
        """Return the `top_k` legal points of smallest predicted time; with `distinct`, one point of each time."""

    def _estimates(self, points: Points, quantities: Floats) -> Columns:
        """Return the columns that predictions show instead of those of the compiled function."""
        return {}

    @property
    def floor_s(self) -> float:
        """A lower bound on the seconds of every schedule; 0 if there is none."""
        return 0.0

    def _is_legal(self, points: Points) -> NDArray[np.bool_]:
        return np.equal(self.check(points), 0)

    def check(self, points: Points) -> NDArray[np.int64]:
        """Return the rule codes of points, (num_points,) int64: 0 if legal, else 1 + the index into `rules`."""
        return self._run(points, CHECK)[0]

    def times(self, points: Points) -> tuple[Floats, NDArray[np.int64]]:
        """Return (seconds, rule codes) of points. This is faster than `evaluate`."""
        rules, times, _ = self._run(points, PREDICT)
        return times, rules

    def raw_columns(self, points: Points) -> Scores:
        """Return (rule codes, seconds, all quantities of the compiled function); quantities are (count, num_points)."""
        return self._run(points, PREDICT, full=True)

    def evaluate(self, points: Points) -> Evaluation:
        """Score points, (num_points, len(space.columns)) int64."""
        rules, times, quantities = self._run(points, PREDICT, full=True)
        return Evaluation(times, rules, self._columns(quantities, times))

    def predictions(self, points: Points, compiled: Floats | None = None) -> list[Prediction]:
        """Score points and return one Prediction for each, in order.

        Parameters
        ----------
        points : (num_points, len(space.columns)) int64
        compiled : (3, num_points) float64, optional
            Facts from the compiler of a GPU, which replace those of the model: registers of a thread, shared bytes of a
            block, accumulators of a thread in local memory.
        """
        rules, times, quantities = self._run(points, PREDICT, full=True, compiled=compiled)
        columns = self._columns(quantities, times)
        if compiled is None:
            columns |= self._estimates(np.atleast_2d(points), quantities)
        shown = self._select_shown(columns)
        names = {*shown.parts, *shown.own_parts, *shown.features, *shown.resources}
        by_name = {name: columns[name].tolist() for name in names}
        over_bound = {level: values.tolist() for level, values in shown.over_bound.items()}
        speed = (self.workload.flop / times / 1e9).tolist()
        occupancy, waves = columns["occupancy"].tolist(), columns["waves"].tolist()
        predictions = []
        for index, (time_s, rule) in enumerate(zip(times.tolist(), rules.tolist(), strict=True)):
            parts = {name: by_name[name][index] for name in shown.parts}
            parts |= {name: by_name[name][index] for name in shown.own_parts if by_name[name][index] > 0.0}
            predictions.append(
                Prediction(
                    time_s=time_s,
                    gflop_per_s=speed[index],
                    parts=parts,
                    bound_by=max(parts, key=lambda name: parts[name]).removesuffix("_s"),
                    occupancy=occupancy[index],
                    occupancy_limiter=shown.limiter[index],
                    waves=waves[index],
                    features={name: by_name[name][index] for name in shown.features},
                    traffic_over_bound={level: values[index] for level, values in over_bound.items()},
                    resources={name: by_name[name][index] for name in shown.resources},
                    legal=rule == 0,
                    rule=self.rules[rule - 1].id if rule else "",
                )
            )
        return predictions

    def rank(
        self, top_k: int, time_limit_s: float | None = None, *, distinct: bool = False, progress: Progress | None = None
    ) -> Ranking:
        """Return the `top_k` legal points of smallest predicted time; with `distinct`, one point of each time.

        Parameters
        ----------
        time_limit_s : float, optional
            Stop after about this many seconds. The guarantee is then "best_found" with its proven gap.
        distinct : bool
            Return one point of each predicted time: the first in the order of ties.
        progress : callable, optional
            Called with the share of the search that is done, in [0, 1].

        Raises
        ------
        SpaceError
            `top_k` is below 1.
        """
        if top_k < 1:
            raise SpaceError(f"rank: top_k is {top_k}, expected >= 1")
        return self._rank(top_k, Watch(time_limit_s, progress), distinct=distinct)
