"""Compare the analytical register-fit model with the measured register tiles of this machine.

Measures as ``anatune hw calibrate`` does, writes no spec, and prints the classes above 80 % of the peak, precision and
recall of the prediction with the reasons for what it gets wrong: vector operations on the stack in the assembly, loads
against multiply-adds. Two sets of tiles: those that need no more registers than there are, and all that were tried. The
speed of the latter depends on the process: spilled vectors lie on whole cache lines or across two, as the stack happens
to be aligned (0.98 or 0.57 of the peak for 10 x 3 on a Zen 4).

    python -m bench.models.cpu_registers [--minutes 1] [--shares] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from anatune.measure.cpu.calibration.calibrate import Calibration, calibrate
from anatune.measure.cpu.calibration.tiles import LEAST_SHARE, UNROLLS, MeasuredTile, TileAgreement, fits_registers


def classes(measured: Sequence[MeasuredTile]) -> dict[tuple[int, int], list[int]]:
    """Return the classes of good tiles: (vectors, unrolled steps) -> rows, ascending. Source: [TACO22] Sec. 4.1."""
    found: dict[tuple[int, int], list[int]] = {}
    for tile, share, _, _ in sorted(measured, key=lambda entry: entry.tile):
        if share >= LEAST_SHARE:
            found.setdefault((tile.vectors, tile.unroll), []).append(tile.rows)
    return dict(sorted(found.items()))


def _intervals(rows: Sequence[int]) -> str:
    """Return ascending numbers as "4-14, 16"."""
    parts: list[list[int]] = []
    for row in rows:
        if parts and row == parts[-1][1] + 1:
            parts[-1][1] = row
        else:
            parts.append([row, row])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _print_agreement(title: str, found: TileAgreement) -> None:
    print(
        f"{title}: {found.num_good} tiles reach 80 % of the peak, {found.num_predicted} are predicted: "
        f"precision {found.precision:.3f}, recall {found.recall:.3f}"
    )
    for what, tiles in (("missed", found.missed), ("promised", found.promised)):
        for entry in tiles:
            rows, vectors, unroll = entry.tile
            print(
                f"  {what:8} {rows:2} x {vectors} unroll {unroll}: measured {entry.share:.3f}, predicted "
                f"{entry.predicted:.3f}; {rows * vectors} accumulators, {rows + vectors} loads, "
                f"{entry.spill_ops} stack operations"
            )


def _error(tiles: Sequence[MeasuredTile]) -> str:
    errors = sorted(abs(entry.predicted / entry.share - 1.0) for entry in tiles)
    return f"median {100 * statistics.median(errors):.1f} %, 9 of 10 below {100 * errors[int(0.9 * len(errors))]:.1f} %"


def report(result: Calibration, *, shares: bool) -> None:
    """Print everything."""
    for note in result.notes:
        print(note)
    print(f"{100 * result.quiet_share:.0f} % of the samples were quiet")
    print("classes above 80 % of the peak (vectors, unrolled steps: rows)")
    for (vectors, unroll), rows in classes(result.tiles).items():
        print(f"  {vectors}, {unroll}: {_intervals(rows)}")
    if shares:
        print(f"shares of the peak with {', '.join(map(str, UNROLLS))} steps unrolled (stack operations), predicted")
        by_tile = {entry.tile: entry for entry in result.tiles}
        for tile, first in by_tile.items():
            if tile.unroll != UNROLLS[0]:
                continue
            entries = [by_tile[tile._replace(unroll=unroll)] for unroll in UNROLLS]
            texts = [f"{entry.share:.3f} ({entry.spill_ops})" for entry in entries]
            print(f"  {tile.rows:2} x {tile.vectors}: {'  '.join(texts)}; {first.predicted:.3f}")
    fitting = [entry for entry in result.tiles if fits_registers(entry.tile, result.spec)]
    print(f"error of the predicted share, tiles that fit: {_error(fitting)}")
    _print_agreement("tiles that fit", result.fitting)
    _print_agreement("all tiles", result.agreement)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="most time spent on sampling")
    parser.add_argument("--shares", action="store_true", help="print every tile")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tiles there")
    options = parser.parse_args(arguments)
    told: set[str] = set()

    def progress(stage: str, _share: float) -> None:
        if stage not in told:
            told.add(stage)
            print(stage, file=sys.stderr)

    result = calibrate(minutes=options.minutes, progress=progress)
    report(result, shares=options.shares)
    if options.json:
        rows = [{**entry._asdict(), "tile": list(entry.tile)} for entry in result.tiles]
        options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
