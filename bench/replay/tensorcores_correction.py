"""What a learned correction adds to the model of Triton's tiles on recorded times: problems, and devices, left out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.errors import AnatuneError
from anatune.model.learned.cross_fit import MeasuredPoints, cross_fit
from anatune.templates.base.features import FeatureTable, log2, table_of
from anatune.templates.triton.tiles import OPTION_FIELDS, TILE_FIELDS, Tiles
from anatune.templates.triton.times import TileScores, score_tiles
from bench.replay.tensorcores_scores import FEWEST, ChoiceScore, choice_score
from bench.replay.tensorcores_tables import Choices

__all__ = ["CASES", "correct"]

Floats = NDArray[np.float64]

CASES = ("model", "problem left out", "device left out")
"""Nothing learned; learned from other problems of the device; learned from other devices."""


def correct(rows: list[Choices], specs: dict[str, GpuSpec]) -> dict[str, list[ChoiceScore]]:
    """Return the scores of each of `CASES`, over the same problems in the same order.

    A correction is that of `records train`: of one device, all types of operands together. Problems of equal m, n and k
    are left out together, whatever their types and layouts. A device is left out where there are two at least.
    """
    kept: list[Choices] = []
    measured: list[MeasuredPoints] = []
    for row in rows:
        ran = np.flatnonzero(np.isfinite(row.seconds))
        if row.device not in specs or len(ran) < FEWEST:
            continue
        tiles, problem = row.tiles.take(ran), row.problem
        try:
            table = features(tiles, score_tiles(problem, tiles, specs[row.device]))
        except AnatuneError:  # `score_choices` says so
            continue
        kept.append(row)
        measured.append(MeasuredPoints((problem.m, problem.n, problem.k), row.device, table, row.seconds[ran]))
    own: list[Floats | None] = [None] * len(kept)
    for device in {one.device for one in measured}:
        places = [at for at, one in enumerate(measured) if one.device == device]
        for at, found in zip(places, cross_fit([measured[at] for at in places], "workload"), strict=True):
            own[at] = found
    times = ([one.table.time_s for one in measured], own, cross_fit(measured, "device"))
    return {
        case: [choice_score(row, found) for row, found in zip(kept, those, strict=True) if found is not None]
        for case, those in zip(CASES, times, strict=True)
    }


def features(tiles: Tiles, scores: TileScores) -> FeatureTable:
    """Return the features of tiles as `Model.feature_table` makes them: shares of the time, logarithms of sizes."""
    columns = {f"share_{name}": part / scores.time_s for name, part in scores.parts.items()}
    columns |= {name: log2(1.0 + getattr(tiles, name)) for name in (*TILE_FIELDS, *OPTION_FIELDS)}
    return table_of(scores.time_s, scores.resources.rule, columns)
