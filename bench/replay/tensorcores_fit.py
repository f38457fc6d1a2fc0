"""Fit the named constants of the model of Triton's tiles to recorded tables, and report them on what they never saw."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.triton.constants import CONSTANTS, Constants
from anatune.templates.triton.times import score_tiles
from bench.replay.tensorcores_scores import score_choices
from bench.replay.tensorcores_tables import Choices, in_half

__all__ = ["FITTED", "fit", "fitted"]

FITTED = (
    "overlap_mma",
    "overlap_wide",
    "overlap_memory",
    "overlap_latency",
    "held",
    "step_instructions",
    "step_cycles",
    "block_cycles",
    "queue",
    "cold_s",
    "tail_overlap",
)
"""Constants of `Constants` that are fitted; all are positive."""
_PRIOR = 0.05
"""Weight of a constant's logarithmic distance from its default, over that of a problem's logarithmic errors."""
_EVALUATIONS = 12
_PROBLEMS = 40
"""Problems of a device and dtype that are fitted to, at most."""


def fit(rows: list[Choices], specs: dict[str, GpuSpec]) -> None:
    """Print constants fitted to the even half with their scores on the odd one; then each device left out."""
    halves = {half: [row for row in rows if in_half(half, *_key(row))] for half in ("even", "odd")}
    cases = [("even half", halves["even"], "odd half", halves["odd"])]
    devices = sorted({row.device for row in rows if row.device in specs})
    for device in devices if len(devices) > 1 else []:
        others = [row for row in rows if row.device != device]
        cases.append((f"all but {device}", others, device, [row for row in rows if row.device == device]))
    for seen, fitted_rows, unseen, judged in cases:
        found = fitted(fitted_rows, specs)
        print(f"\nfitted to {seen}: " + ", ".join(f"{name} {getattr(found, name):.4g}" for name in FITTED))
        for name, constants in (("shipped", CONSTANTS), ("fitted", found)):
            scores, _ = score_choices(judged, specs, constants)
            if scores:
                print(
                    f"  {unseen}, {name}: {len(scores)} problems, Spearman "
                    f"{np.nanmedian([s.correlation for s in scores]):.3f}, first choice "
                    f"{np.median([s.regrets[0] for s in scores]):.3f} "
                    f"({np.quantile([s.regrets[0] for s in scores], 0.9):.2f}), winner's time off by "
                    f"{100 * np.median([abs(s.winner - 1) for s in scores]):.0f} %"
                )


def fitted(rows: list[Choices], specs: dict[str, GpuSpec], start: Constants = CONSTANTS) -> Constants:
    """Return constants with the least logarithmic errors; fast configurations count more, outliers less."""
    from scipy.optimize import least_squares

    used = _some(rows, specs)
    first = np.log([getattr(start, name) for name in FITTED])

    def constants(point: NDArray[np.float64]) -> Constants:
        return replace(start, **dict(zip(FITTED, np.exp(point).tolist(), strict=True)))

    def errors(point: NDArray[np.float64]) -> NDArray[np.float64]:
        chosen = constants(point)
        found = [_PRIOR * np.sqrt(len(used)) * (point - first)]
        for row, spec in used:
            ran = np.isfinite(row.seconds)
            measured = row.seconds[ran]
            tiles = row.tiles.take(np.flatnonzero(ran))
            predicted = score_tiles(row.problem, tiles, spec, constants=chosen).time_s
            found.append(np.log(predicted / measured) * measured.min() / measured / np.sqrt(len(measured)))
        return np.concatenate(found)

    best = least_squares(errors, first, loss="soft_l1", f_scale=0.05, diff_step=0.02, max_nfev=_EVALUATIONS)
    return constants(best.x)


def _some(rows: list[Choices], specs: dict[str, GpuSpec]) -> list[tuple[Choices, GpuSpec]]:
    """Return up to so many problems of each device and dtype, evenly spread, with their specs."""
    groups: dict[tuple[str, str], list[Choices]] = {}
    for row in rows:
        if row.device in specs and np.isfinite(row.seconds).sum() >= 8:
            groups.setdefault((row.device, row.label), []).append(row)
    return [
        (row, specs[device])
        for (device, _), group in sorted(groups.items())
        for row in group[:: max(1, len(group) // _PROBLEMS)][:_PROBLEMS]
    ]


def _key(row: Choices) -> tuple[object, ...]:
    p = row.problem
    return row.device, p.m, p.n, p.k, row.label, p.a_along_k, p.b_along_n
