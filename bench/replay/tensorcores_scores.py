"""What the model of Triton's tiles is worth on recorded times: order, first choices, error, ratio to libraries."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.errors import AnatuneError
from anatune.templates.triton.constants import CONSTANTS, Constants
from anatune.templates.triton.resources import resources
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import score_tiles
from bench.replay.metrics import spearman
from bench.replay.tensorcores_tables import Choices, LibraryTime

__all__ = [
    "FEWEST",
    "FIRST",
    "ChoiceScore",
    "Legality",
    "LibraryScore",
    "choice_score",
    "quantising_s",
    "score_choices",
    "score_libraries",
    "tiles_of",
]

Floats = NDArray[np.float64]
FIRST = (1, 4, 8)
"""Choices that would be measured."""
SMALL_FLOP = 1e7
"""Products of fewer take what a call costs."""
FEWEST = 8
"""Fewest configurations of a problem that are judged."""


@dataclass(frozen=True)
class ChoiceScore:
    """One problem of a table of configurations."""

    device: str
    label: str
    correlation: float
    regrets: tuple[float, ...]
    """Best of the first choices of `FIRST` over the recorded best."""
    winner: float
    """Predicted over measured time of the recorded best."""


@dataclass
class Legality:
    """How rows that did not run (inf) and rows that did are judged, of one device and dtype."""

    failed: int = 0
    failed_refused: int = 0
    ran: int = 0
    ran_refused: int = 0


@dataclass(frozen=True)
class LibraryScore:
    """One problem of a library's table."""

    device: str
    label: str
    library: str
    flop: float
    measured_s: float
    product_s: float
    """The predicted time of the best legal tile."""
    predicted_s: float
    """The same with what the row holds besides: the left operand's quantisation."""
    unsplit_s: float
    """The same of the best with split_k 1."""

    @property
    def small(self) -> bool:
        """Whether there is next to nothing to compute and to move."""
        return self.flop < SMALL_FLOP


def score_choices(
    rows: Iterable[Choices], specs: dict[str, GpuSpec], constants: Constants = CONSTANTS
) -> tuple[list[ChoiceScore], dict[tuple[str, str], Legality]]:
    """Score every problem whose device has a spec; with fewer than 8 configurations that ran, for legality alone."""
    scores: list[ChoiceScore] = []
    legality: dict[tuple[str, str], Legality] = {}
    errors: set[str] = set()
    for row in rows:
        spec = specs.get(row.device)
        if spec is None or not len(row.tiles):
            continue
        ran = np.isfinite(row.seconds)
        try:
            refused = resources(row.problem, row.tiles, spec).rule > 0
            found = score_tiles(row.problem, row.tiles.take(np.flatnonzero(ran)), spec, constants=constants).time_s
        except AnatuneError as error:
            errors.add(f"{row.device} {row.label}: left out: {error}")
            continue
        known = legality.setdefault((row.device, row.label), Legality())
        known.failed += int((~ran).sum())
        known.failed_refused += int((refused & ~ran).sum())
        known.ran += int(ran.sum())
        known.ran_refused += int((refused & ran).sum())
        if ran.sum() >= FEWEST:
            scores.append(choice_score(row, found))
    for line in sorted(errors):
        print(line)
    return scores, legality


def choice_score(row: Choices, predicted_s: Floats) -> ChoiceScore:
    """Return what predicted seconds of the configurations that ran are worth."""
    measured = row.seconds[np.isfinite(row.seconds)]
    order = np.argsort(predicted_s, kind="stable")
    best = measured.min()
    regrets = tuple(float(measured[order[:count]].min() / best) for count in FIRST)
    winner = float(predicted_s[measured.argmin()] / best)
    return ChoiceScore(row.device, row.label, spearman(predicted_s, measured), regrets, winner)


def score_libraries(
    rows: Iterable[LibraryTime], specs: dict[str, GpuSpec], *, warm: int, constants: Constants = CONSTANTS
) -> list[LibraryScore]:
    """Score every problem whose device has a spec: the best tile of those that good kernels have."""
    scores: list[LibraryScore] = []
    errors: set[str] = set()
    for row in rows:
        spec = specs.get(row.device)
        if spec is None:
            continue
        tiles = tiles_of(spec)
        p = row.problem
        try:
            found = score_tiles(p, tiles, spec, warm=warm, constants=constants)
        except AnatuneError as error:
            errors.add(f"{row.device} {row.label}: left out: {error}")
            continue
        times = np.where(found.resources.rule == 0, found.time_s, np.inf)
        if not np.isfinite(times).any():
            errors.add(f"{row.device} {row.label}: left out: no tile is legal, as of {p.describe()}")
            continue
        before = quantising_s(row, spec)
        best, unsplit = float(times.min()), float(times[tiles.split_k == 1].min()) + before
        flop = 2.0 * p.m * p.n * p.k
        scores.append(LibraryScore(row.device, row.label, row.library, flop, row.seconds, best, best + before, unsplit))
    for line in sorted(errors):
        print(line)
    return scores


def quantising_s(row: LibraryTime, spec: GpuSpec) -> float:
    """Return the seconds of quantising the left operand where a row holds that: launches, and bytes through DRAM."""
    launches, each = row.quantised
    bandwidth = spec.dram.bandwidth_bytes_per_s * spec.dram.reachable_fraction
    return launches * spec.launch.overhead_s + each * row.problem.m * row.problem.k / bandwidth


_SPACES: dict[str, Tiles] = {}


def tiles_of(spec: GpuSpec) -> Tiles:
    """Return tiles that good kernels have: descriptors and persistent blocks where the device copies by descriptors."""
    descriptors = (spec.compute_capability or 0.0) >= 9.0
    if spec.arch not in _SPACES:
        sizes = itertools.product(
            (16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (32, 64, 128), (4, 8), (2, 3, 4, 5), (1, 2, 4, 8, 16)
        )
        rows = [(*size, 8, int(descriptors), int(descriptors)) for size in sizes if size[0] * size[1] <= 128 * 256]
        rows = [(*row, 0, special) for row in rows for special in ((0, 1) if descriptors else (0,))]
        _SPACES[spec.arch] = Tiles.of(rows)  # specialised warps are illegal where the compiler makes none
    return _SPACES[spec.arch]
