"""Dynamic gradient descent: predicted neighbours are measured in windows until one is better (Ansor-DS, Ansor-AF-DS).

Source: [ICS24] Sec. 5 and Fig. 9, and the code of its artifact.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from typing import Literal

import numpy as np

from anatune.search.learning.surrogate import Surrogate, TreeFeatures
from anatune.search.points import Integers, drop_repeats
from anatune.search.stepwise import StepwiseStrategy, TrialAnswer, Walk

Moving = Generator[Integers, list[TrialAnswer], Integers | None]


class GradientStrategy(StepwiseStrategy):
    """Dynamic gradient descent.

    As published: 64 random programs, trees on the seven analytical features, descents from random points, within the
    limits of `search.knobs`. A step examines the neighbours at one hop, then, if none of them is better, at two and
    three; after it the trees learn what it measured. From the model's ranking: no random programs; descents from the
    ranking's points and the best measured ones, as in the artifact; trees on log(measured / predicted).

    Deviations: LightGBM on the logarithm of times instead of XGBoost on speeds; no knob is fixed (the artifact fixes
    unrolling, virtual threads and fetch widths); a failed program has no speed instead of speed 0, and the trees do not
    see it. The first window begins with the best predicted neighbour, as Sec. 5.2 and Fig. 10 say (Fig. 9b, counted
    from 0, leaves it out), and the last window may be smaller. No descent visits a point twice.
    """

    has_limits = True
    published_rules: Literal["figure", "code"] = "figure"
    """Source of the rules as published where Fig. 9 and the code differ. The code starts from the best random programs,
    examines one and two hops together, compares predictions with the base's instead of the best neighbour's, and with
    the first of a window instead of its last, and examines 9 neighbours before `measure_threshold` applies."""
    window = 3
    """Number of neighbours that are measured before the search decides whether to move. Source: [ICS24] Sec. 5.2: 3."""
    score_threshold = 0.6
    """A base is left if the predicted speeds of a window are below this share of the best one. Source: [ICS24] Fig. 9b:
    0.6."""
    measure_threshold = 0.6
    """A base is left if the best speed of a window is below this share of the best measured one. Source: [ICS24] Fig.
    9b: 0.6."""
    num_examined = 9
    """Number of neighbours of a base before `measure_threshold` applies, by the rules of the code. Source: the code of
    [ICS24]: 9."""
    most_hops = 3
    """Largest number of knobs in which a neighbour differs. Source: [ICS24] Fig. 8: 3."""
    num_random = 64
    """Number of random programs that are measured first, as published. Source: [ICS24] Fig. 9a: 64."""
    num_bases = 5
    """Number of best ones that the code's descents start from, before random restarts. Source: the code of [ICS24]:
    5."""
    most_windows = 8
    """Number of windows of a base without a better neighbour after which it is left; only if the search starts from the
    model's ranking, whose points have hundreds of neighbours with almost equal predictions."""
    published_features: TreeFeatures = "analytical"
    """Features of the trees as published (Ansor-AF-DS), see `Surrogate`; "program" is closer to Ansor-DS."""

    def walk(self) -> Walk:
        """Yield the windows."""
        self._costs: dict[bytes, float | None] = {}
        self._visited: set[bytes] = set()
        self._left: list[tuple[Integers, list[Integers]]] = []
        """Bases that were left before all answers of their windows were known, with these windows."""
        self._unlearned: list[tuple[Integers, list[TrialAnswer]]] = []
        """Points and answers that the trees learn at the end of a step."""
        on_model = not self.as_published
        self._by_figure = self.as_published and self.published_rules == "figure"
        self._surrogate = Surrogate(self.knobs, "all" if on_model else self.published_features, on_model=on_model)
        if self.as_published:
            yield from self._measure(drop_repeats(self.draw(self.num_random, 0)))
        while True:
            for base in self._bases():
                yield from self._descend(base)
            if not self.num_missing:
                return
            yield from self._measure(np.empty((0, len(self.space.columns)), dtype=np.int64))

    def _bases(self) -> Iterator[Integers]:
        """Yield the starting points of descents: the best known points, then random ones while there are new ones."""
        if not self._by_figure:
            yield from self._best(self.num_bases) if self.as_published else self.ranked[:1]
        number = 0
        while True:
            yield from self._recheck_bases()
            number += 1
            if not self.as_published:  # the best measured point that no descent visited, then the next of the ranking
                yield from self._best(1, unvisited=True)
                if number < len(self.ranked):
                    yield self.ranked[number]
                    continue
            drawn = self.draw_new(1 if self.as_published else 64, 1, number)
            if not len(drawn):
                return
            yield drawn[int(np.argmin(self._surrogate.predict(drawn)))]

    def _recheck_bases(self) -> Iterator[Integers]:
        """Yield points that proved better than a base after it had been left."""
        left, self._left = self._left, []
        for base, windows in left:
            moved = self._find_better(windows, base)
            if moved is not None:
                yield moved
            elif any(self.is_missing(point) for window in windows for point in window):
                self._left.append((base, windows))

    def _best(self, count: int, *, unvisited: bool = False) -> list[Integers]:
        """Return the best measured points, best first."""
        measured = sorted((cost, key) for key, cost in self._costs.items() if cost is not None)
        keys = [key for _, key in measured if not (unvisited and key in self._visited)]
        return [np.frombuffer(key, dtype=np.int64) for key in keys[:count]]

    def _measure(self, points: Integers) -> Walk:
        """Propose the points that were not proposed before, and record the answers."""
        new = points[[point.tobytes() not in self._costs and not self.is_missing(point) for point in points]]
        if len(new) or not len(points):
            for some, answers in self.receive_new(new, (yield new)):
                self._unlearned.append((some, answers))
                self._costs.update((point.tobytes(), one.cost) for point, one in zip(some, answers, strict=True))
            if not self._by_figure:
                self._learn()

    def _learn(self) -> None:
        """Let the trees learn the answers that are new."""
        for points, answers in self._unlearned:
            self._surrogate.add(points, answers)
        self._unlearned.clear()

    def _near(self, base: Integers) -> Iterator[Integers]:
        """Yield the neighbours at one, two and three hops; by the rules of the code, one and two together."""
        pools = [[hops] for hops in range(1, self.most_hops + 1)]
        if not self._by_figure:
            pools[:2] = [[hops for pool in pools[:2] for hops in pool]]
        for pool in pools:
            seed = (self.seed, len(self._costs)) if 3 in pool else (0,)
            yield np.concatenate([self.knobs.neighbours(base, hops, seed) for hops in pool])

    def _descend(self, base: Integers) -> Walk:
        """Move to better neighbours until there is none."""
        now: Integers | None = base
        while now is not None:
            if now.tobytes() in self._visited:
                return
            self._visited.add(now.tobytes())
            yield from self._measure(now[None, :])
            self._learn()
            moved = None
            for near in self._near(now):
                moved = yield from self._move(now, near)
                if moved is not None:
                    break
            now = moved

    def _move(self, base: Integers, points: Integers) -> Moving:
        """Measure neighbours, best predicted first, window by window; return the first that is better than `base`."""
        if not len(points):
            return None
        scores = self._surrogate.predict(points)
        order = np.argsort(scores, kind="stable")
        best_score = scores[order[0]] if self._by_figure else float(self._surrogate.predict(base[None, :])[0])
        num_examined = 0 if self._by_figure else self.num_examined
        windows: list[Integers] = []
        for examined in range(0, len(points), self.window):
            chosen = order[examined : examined + self.window]
            if np.exp(best_score - scores[chosen[-1 if self._by_figure else 0]]) < self.score_threshold:
                break
            if not self.as_published and examined >= self.most_windows * self.window:
                break
            windows.append(points[chosen])
            yield from self._measure(windows[-1])
            moved = self._find_better(windows, base)
            if moved is not None:
                return moved
            if examined + len(chosen) >= num_examined and self._is_slow(windows[-1]):
                break
        while any(self.is_missing(point) for point in itertools.chain([base], *windows)):
            if self.is_ahead:  # devices would be idle: go on with another base
                self._left.append((base, windows))
                break
            yield from self._measure(points[:0])
            moved = self._find_better(windows, base)
            if moved is not None:
                return moved
        return None

    def _find_better(self, windows: Sequence[Integers], base: Integers) -> Integers | None:
        """Return the best point of the windows whose best is better than `base` and was not a base yet."""
        if base.tobytes() not in self._costs:
            return None
        cost = self._costs[base.tobytes()]
        candidates: list[tuple[float, Integers]] = []
        for window in windows:
            good = self._rank_window(window)
            if good and (cost is None or good[0][0] < cost) and window[good[0][1]].tobytes() not in self._visited:
                candidates.append((good[0][0], window[good[0][1]]))
        return min(candidates, key=lambda one: one[0])[1] if candidates else None

    def _is_slow(self, window: Integers) -> bool:
        """Return whether all of a window is known and far slower than the best."""
        if any(point.tobytes() not in self._costs for point in window):
            return False
        best_cost = min((one for one in self._costs.values() if one is not None), default=None)
        good = self._rank_window(window)
        return best_cost is not None and (not good or best_cost / good[0][0] < self.measure_threshold)

    def _rank_window(self, window: Integers) -> list[tuple[float, int]]:
        """Return (cost, number in the window) of the points that ran, best first."""
        costs = [(self._costs.get(point.tobytes()), at) for at, point in enumerate(window)]
        return sorted((cost, at) for cost, at in costs if cost is not None)
