"""What ending a session early by ``--patience N`` saves in trials, and what it loses, on replayed searches.

    python -m bench.replay.search FOLDER --trials 256 --json SEARCH.json
    python -m bench.replay.patience SEARCH.json [--patience 8 16 32 ...]

A search that ended early is compared with itself after all its trials. Recorded times are single ones: a better one is
half a per cent better. What is printed: docs/bench/replay.patience.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from anatune.core.trial import Measurement, Outcome
from anatune.tuning.ending import Ending
from bench.replay.metrics import quantile
from bench.results import wide_console, write_json

__all__ = ["Ended", "ended_early", "read_curves"]

PATIENCE = (8, 12, 16, 24, 32, 48, 64, 96)
NEAR = (1.01, 1.05)
"""How often the loss is larger: a hundredth, a twentieth."""


class Ended(NamedTuple):
    """One search with a patience.

    Attributes
    ----------
    trials, of : int
        Until it ended; of so many without patience.
    loss : float
        Best time over that after all trials, >= 1.
    """

    trials: int
    of: int
    loss: float


def ended_early(curve: Sequence[float], patience: int) -> Ended | None:
    """Return when a search ends that asks for one trial at a time; None if none of its trials ran.

    Parameters
    ----------
    curve : sequence of float
        Best time so far after each trial, in any unit; inf while nothing ran.
    """
    if not curve or not math.isfinite(curve[-1]):
        return None
    ending = Ending(bound_s=0.0, patience=patience)
    for number, best in enumerate(curve, start=1):
        ran = math.isfinite(best)
        ending.add(
            Measurement(Outcome.OK, times_s=(best,)) if ran else Measurement(Outcome.RUN_ERROR), number
        )  # fmt: skip
        if ending.reason is not None:
            return Ended(number, len(curve), best / curve[-1])
    return Ended(len(curve), len(curve), 1.0)


def read_curves(path: Path) -> dict[str, list[list[float]]]:
    """Return strategy -> curves of the searches that `replay.search` wrote.

    Raises
    ------
    SystemExit
        The file cannot be read, or is no such file.
    """
    try:
        runs = json.loads(path.read_bytes())["runs"]
        found: dict[str, list[list[float]]] = {}
        for run in runs:
            found.setdefault(run["strategy"], []).append(
                [math.inf if value is None else float(value) for value in run["curve"]]
            )
    except OSError as error:
        raise SystemExit(f"bench.replay.patience: cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(
            f"bench.replay.patience: {path}: {error!r}; expected what `python -m bench.replay.search FOLDER --json "
            f"{path.name}` writes"
        ) from None
    return found


def summary(curves: dict[str, list[list[float]]], patience: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row a strategy and patience."""
    rows = []
    for strategy, all_of in curves.items():
        for number in patience:
            ended = [one for curve in all_of if (one := ended_early(curve, number)) is not None]
            if not ended:
                continue
            rows.append(
                {
                    "strategy": strategy,
                    "patience": number,
                    "searches": len(ended),
                    "trials": quantile([one.trials for one in ended], 0.5),
                    "saved": [quantile([1.0 - one.trials / one.of for one in ended], q) for q in (0.25, 0.5, 0.75)],
                    "loss": [quantile([one.loss - 1.0 for one in ended], q) for q in (0.5, 0.75, 0.9)],
                    "over": [sum(one.loss > most for one in ended) / len(ended) for most in NEAR],
                }
            )
    return rows


def result_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows as a table."""
    table = Table(title="Patience: trials saved, time lost", box=SIMPLE_HEAD, pad_edge=False)
    headings = ["strategy", "patience", "searches", "trials", "saved", "quartiles", "loss", "of 3/4", "of 9/10"]
    for heading in (*headings, *(f"over {100 * (most - 1):.0f} %" for most in NEAR)):
        table.add_column(heading, justify="left" if heading == "strategy" else "right", no_wrap=True)
    for row in rows:
        low, middle, high = row["saved"]
        table.add_row(
            row["strategy"],
            str(row["patience"]),
            str(row["searches"]),
            f"{row['trials']:.0f}",
            f"{middle:.0%}",
            f"{low:.0%}-{high:.0%}",
            *(f"{100 * loss:.1f} %" for loss in row["loss"]),
            *(f"{share:.0%}" for share in row["over"]),
        )
    table.caption = "medians over searches; loss: best time over that after all trials, less 1"
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("search", type=Path, help="what `bench.replay.search --json` wrote")
    parser.add_argument("--patience", type=int, nargs="+", default=list(PATIENCE), metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    options = parser.parse_args(arguments)
    rows = summary(read_curves(options.search), options.patience)
    wide_console(140).print(result_table(rows))
    if options.json:
        write_json(options.json, {"rows": rows})


if __name__ == "__main__":
    sys.exit(main())
