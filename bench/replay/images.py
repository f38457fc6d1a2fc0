"""Score the recorded convolutions by the size of their output images: odd sizes, whose divisors are few, on their own.

    python -m bench.replay.images RANKING.json [LATER.json ...] [--sides 7 17 35]

Each file is what `python -m bench.replay.ranking FOLDER --json FILE` wrote, on one commit each: several stand side by
side. A row is one table on one device; "the others" are its images of all other sizes. Measures: bench/README.md,
`replay.ranking`; medians over the workloads, with "-" where no workload has enough rows.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.replay.metrics import quantile
from bench.replay.recorded import CONV_ID
from bench.results import number_text, wide_console

__all__ = ["ImageScore", "by_image", "read_scores"]

SIDES = (7, 17, 35)
TOP = 8
"""First choices whose best is compared with the recorded best."""
OTHERS = "the others"
ALL = "all tables"


class ImageScore(NamedTuple):
    """One recorded convolution: its table and device, its output image, what the ranking is worth there."""

    table: str
    device: str
    sides: tuple[int, int]
    """Height and width of the output."""
    spearman: float
    loss: float
    """Best measured time of the model's first `TOP` rows over the recorded best; inf where all of them failed."""


def read_scores(path: Path) -> list[ImageScore]:
    """Return the Ansor and AutoTVM convolutions on GPUs among the scores that `replay.ranking` wrote.

    Raises
    ------
    SystemExit
        The file cannot be read, or is no such file.
    """
    try:
        rows = json.loads(path.read_bytes())["workloads"]
        return [_score(row) for row in rows if row["kind"] in ("ansor", "autotvm") and _is_conv(row)]
    except OSError as error:
        raise SystemExit(f"bench.replay.images: cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise SystemExit(
            f"bench.replay.images: {path} is no result of the ranking; write one with "
            "python -m bench.replay.ranking FOLDER --json FILE"
        ) from None


def _is_conv(row: dict[str, Any]) -> bool:
    return CONV_ID.fullmatch(row["workload_id"]) is not None


def _score(row: dict[str, Any]) -> ImageScore:
    found = CONV_ID.fullmatch(row["workload_id"])
    assert found is not None
    height, width = map(int, found.groups()[-2:])
    spearman, loss = row["spearman"], row["regret"][str(TOP)]
    return ImageScore(
        row["table"],
        row["device"],
        (height, width),
        math.nan if spearman is None else spearman,
        math.inf if loss is None else loss,
    )


def by_image(scores: Iterable[ImageScore], sides: Sequence[int]) -> dict[tuple[str, str, str], list[ImageScore]]:
    """Return (table, device, image) -> its scores, and over all tables; images of `sides`, then the others."""
    groups: dict[tuple[str, str, str], list[ImageScore]] = {}
    for score in scores:
        height, width = score.sides
        image = f"{height}x{width}" if height == width and height in sides else OTHERS
        for table, device in ((score.table, score.device), (ALL, "")):
            groups.setdefault((table, device, image), []).append(score)
    order = [*(f"{side}x{side}" for side in sides), OTHERS]
    return dict(sorted(groups.items(), key=lambda item: (item[0][0] == ALL, *item[0][:2], order.index(item[0][2]))))


def images_table(files: Sequence[Path], sides: Sequence[int]) -> Table:
    """Return the table that is printed: Spearman and first-8 loss, a pair of columns a file."""
    groups = [by_image(read_scores(path), sides) for path in files]
    table = Table(title="Recorded convolutions by their output images", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("table", no_wrap=True)
    table.add_column("device", no_wrap=True)
    for name in ("image", "loads"):
        table.add_column(name, justify="right", no_wrap=True)
    for path in files:
        several = f"{path.stem}\n" if len(files) > 1 else ""
        table.add_column(f"{several}rho", justify="right", no_wrap=True)
        table.add_column(f"{several}first {TOP}", justify="right", no_wrap=True)
    for key, part in groups[0].items():
        cells = []
        for group in groups:
            scores = group.get(key, [])
            cells.append(number_text(quantile((one.spearman for one in scores), 0.5)))
            cells.append(number_text(quantile((one.loss for one in scores), 0.5)))
        table.add_row(*key, str(len(part)), *cells)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="JSON", help="results of bench.replay.ranking --json")
    parser.add_argument("--sides", type=int, nargs="+", default=list(SIDES), help="sides of square output images")
    options = parser.parse_args(arguments)
    wide_console(120).print(images_table(options.files, list(dict.fromkeys(options.sides))))


if __name__ == "__main__":
    sys.exit(main())
