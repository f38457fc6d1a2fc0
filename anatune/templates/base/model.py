"""What every model of a workload on a device says of batches of points, and what analytical ones share."""

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
"""Rule codes, seconds, quantities (num_quantities, num_points)."""

CHECK, PREDICT = 0, 1
"""What a batch function of `anatune.numerics` is asked for: rule codes, or times as well."""


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
    time limit ended the count. Of a distinct ranking, ``num_alike`` (num_points,) is how many other legal points have
    each one's predicted time; at least so many where not ``alike_is_exact``.
    """

    points: NDArray[np.int64]
    guarantee: Guarantee
    num_legal: int | None
    rejected: dict[str, int] | None
    num_alike: NDArray[np.int64] | None = None
    alike_is_exact: bool = False


class Model(ABC):
    """What is known about the schedules of one workload on one device, batch first.

    Attributes
    ----------
    workload, hardware
        What is computed, where.
    space : Space
        Whose points are scored, each (len(space.columns),) int64.
    rules : tuple of Rule
        What makes a point illegal.
    """

    own_parts: ClassVar[tuple[str, ...]] = ()
    """Parts of the time that only some points have."""
    composition: ClassVar[Composition] = Composition()
    """How the parts of a time go together."""

    workload: Workload
    hardware: HardwareSpec
    space: Space
    rules: tuple[Rule, ...]

    @abstractmethod
    def check(self, points: Points) -> NDArray[np.int64]:
        """Return the rule codes of points (see Evaluation.rule) without timing them."""

    @abstractmethod
    def times(self, points: Points) -> tuple[Floats, NDArray[np.int64]]:
        """Return (seconds, rule codes) of points: the fast path of `evaluate`."""

    @abstractmethod
    def evaluate(self, points: Points) -> Evaluation:
        """Score points, (num_points, len(space.columns)) int64."""

    @abstractmethod
    def predictions(self, points: Points) -> list[Prediction]:
        """Score points and return one readable Prediction each, in order."""

    @abstractmethod
    def rank(
        self,
        top_k: int,
        time_limit_s: float | None = None,
        *,
        distinct: bool = False,
        progress: Progress | None = None,
    ) -> Ranking:
        """Return the `top_k` legal points of smallest predicted time; with `distinct`, one of each time."""

    @property
    def plain(self) -> Model:
        """The model without a learned correction."""
        return self

    @property
    def is_corrected(self) -> bool:
        """Whether a learned correction changes its times."""
        return self.plain is not self

    @property
    def least_flop(self) -> float:
        """Fewest operations of a schedule: the workload's, but where padding is left out or a transform saves some."""
        return float(self.workload.flop)

    @property
    def io_bounds(self) -> dict[str, float]:
        """Memory level of `Prediction.traffic_over_bound` -> lower bound on the bytes that cross it."""
        return {}

    def program_key(self, point: Points) -> Hashable:
        """Return what is equal for points that are the same program."""
        return np.asarray(point, dtype=np.int64).tobytes()

    def feature_table(self, points: Points) -> FeatureTable:
        """Return the features of points: shares of the time, and the logarithms of the points' numbers."""
        points = np.atleast_2d(points)
        found = self.evaluate(points)
        parts = {
            name: part for name, part in found.columns.items() if name.endswith("_s") and name not in self.own_parts
        }
        columns = {f"share_{name}": part / found.time_s for name, part in parts.items()}
        columns |= {name: log2(1.0 + column) for name, column in zip(self.space.columns, points.T, strict=True)}
        return table_of(found.time_s, found.rule, columns)

    def leaves(self, points: Points) -> Points:
        """Return numbers that points share the more of, the more a learned correction has seen their errors agree.

        (num_points, num_numbers), no numbers where nothing was learned.
        """
        return np.zeros((len(points), 0), dtype=np.int64)

    def points_within(self, limit_s: float, progress: Progress | None = None) -> tuple[Points, Floats] | None:
        """Return every legal point of a predicted time up to a limit, and the times, in ranking order.

        None where that is no faster than a ranking of as many points.
        """
        return None


class Shown(NamedTuple):
    """Which quantities of a model a `Prediction` shows."""

    parts: tuple[str, ...]
    """Columns that are parts of the time, seconds."""
    features: tuple[str, ...]
    resources: tuple[str, ...]
    over_bound: Columns
    """Memory level -> bytes that cross it over the I/O lower bound."""
    limiter: Sequence[str]
    """What limits the occupancy of each point."""
    own_parts: tuple[str, ...] = ()
    """Parts that only some points have: shown where they take time."""


class AnalyticalModel(Model):
    """A model that a compiled function evaluates, point by point.

    Guarantees: deterministic; every prediction depends on its own point only.
    """

    def __init__(self, workload: Workload, hardware: HardwareSpec) -> None:
        self.workload = workload
        self.hardware = hardware

    @abstractmethod
    def _run(self, points: Points, task: int, *, full: bool = False, compiled: Floats | None = None) -> Scores:
        """Return (rule codes, seconds, quantities if `full`) of points; `task` is CHECK or PREDICT, or a model's own.

        `compiled` is (3, num_points): what a compiler said of them, where a model can use it.
        """

    @abstractmethod
    def _columns(self, quantities: Floats, time_s: Floats) -> Columns:
        """Name the quantities of a prediction, (num_points,) each."""

    @abstractmethod
    def _shown(self, columns: Columns) -> Shown:
        """Return what predictions show of them."""

    @abstractmethod
    def _rank(self, top_k: int, watch: Watch, *, distinct: bool) -> Ranking:
        """Return the `top_k` legal points of smallest predicted time; with `distinct`, one of each time."""

    def _estimates(self, points: Points, quantities: Floats) -> Columns:
        """Return columns that predictions show in the place of the model's own."""
        return {}

    @property
    def floor_s(self) -> float:
        """Seconds that no schedule can beat here; 0: nobody knows."""
        return 0.0

    def _is_legal(self, points: Points) -> NDArray[np.bool_]:
        return np.equal(self.check(points), 0)

    def check(self, points: Points) -> NDArray[np.int64]:
        """Return the rule codes of points, (num_points,) int64: 0 legal, else 1 + index into `rules`."""
        return self._run(points, CHECK)[0]

    def times(self, points: Points) -> tuple[Floats, NDArray[np.int64]]:
        """Return (seconds, rule codes) of points: the fast path of `evaluate`."""
        rules, times, _ = self._run(points, PREDICT)
        return times, rules

    def raw_columns(self, points: Points) -> Scores:
        """Return (rule codes, seconds, every quantity of the compiled function: (num_quantities, num_points))."""
        return self._run(points, PREDICT, full=True)

    def evaluate(self, points: Points) -> Evaluation:
        """Score points, (num_points, len(space.columns)) int64."""
        rules, times, quantities = self._run(points, PREDICT, full=True)
        return Evaluation(times, rules, self._columns(quantities, times))

    def predictions(self, points: Points, compiled: Floats | None = None) -> list[Prediction]:
        """Score points and return one Prediction each, in order.

        Parameters
        ----------
        points : (num_points, len(space.columns)) int64
        compiled : (3, num_points) float64, optional
            What a GPU's compiler said instead of the model: registers of a thread, shared bytes of a block,
            accumulators of a thread in local memory.
        """
        rules, times, quantities = self._run(points, PREDICT, full=True, compiled=compiled)
        columns = self._columns(quantities, times)
        if compiled is None:
            columns |= self._estimates(np.atleast_2d(points), quantities)
        shown = self._shown(columns)
        names = {*shown.parts, *shown.own_parts, *shown.features, *shown.resources}
        lists = {name: columns[name].tolist() for name in names}
        over_bound = {level: values.tolist() for level, values in shown.over_bound.items()}
        speed = (self.workload.flop / times / 1e9).tolist()
        occupancy, waves = columns["occupancy"].tolist(), columns["waves"].tolist()
        found = []
        for at, (time_s, rule) in enumerate(zip(times.tolist(), rules.tolist(), strict=True)):
            parts = {name: lists[name][at] for name in shown.parts}
            parts |= {name: lists[name][at] for name in shown.own_parts if lists[name][at] > 0.0}
            found.append(
                Prediction(
                    time_s=time_s,
                    gflop_per_s=speed[at],
                    parts=parts,
                    bound_by=max(parts, key=lambda name: parts[name]).removesuffix("_s"),
                    occupancy=occupancy[at],
                    occupancy_limiter=shown.limiter[at],
                    waves=waves[at],
                    features={name: lists[name][at] for name in shown.features},
                    traffic_over_bound={level: values[at] for level, values in over_bound.items()},
                    resources={name: lists[name][at] for name in shown.resources},
                    legal=rule == 0,
                    rule=self.rules[rule - 1].id if rule else "",
                )
            )
        return found

    def rank(
        self,
        top_k: int,
        time_limit_s: float | None = None,
        *,
        distinct: bool = False,
        progress: Progress | None = None,
    ) -> Ranking:
        """Return the `top_k` legal points of smallest predicted time; with `distinct`, one of each time.

        Parameters
        ----------
        time_limit_s : float, optional
            Stop after about so many seconds; the guarantee is then "best_found" with its proven gap.
        distinct : bool
            One point, the first of the order of ties, of each predicted time.
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
