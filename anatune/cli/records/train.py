"""``anatune records train``: corrections of the analytical model from what was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from anatune.cli.options import AsJson, spread
from anatune.cli.output import UsageError, note_once, print_json, print_lines
from anatune.cli.progress import Progress
from anatune.cli.records.place import Place, Words, of_known_templates, opened
from anatune.errors import RecordError

_JUDGING = 0.9
"""Share of a correction's time that judging it takes, by up to ten others."""


@spread
def train_corrections(
    which: Place,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Write the correction there, whether it helps or not."),
    ] = None,
    words: Words = None,
    as_json: AsJson = False,
) -> None:
    """Fit corrections of the analytical model from records, one for each device, and say what they are worth.

    A correction that ranks the workloads that were left out better than the analytical model is saved where
    `anatune plan`, `anatune tune` and predict() look for it.
    """
    from anatune.model.learned.corrections import check_correction_folder
    from anatune.report.devices import family_lines
    from anatune.tuning.training import families_of, judge, train

    path, workload = which.named(words)
    if output is not None:
        check_correction_folder(output)
    with opened(path) as store, Progress(compiles=True) as progress:
        progress.begin(f"reading {path}")
        tell = note_once()
        families = families_of(of_known_templates(store.iterate(workload, which.hw, on_damage=tell), tell))
    if not families:
        raise RecordError(
            f"{path}: no workload has 20 successful trials, expected two of one device at least; tune more first"
        )
    if output is not None and len(families) > 1:
        names = ", ".join(family.name for family in families)
        raise UsageError(f"--output is one folder, but there are records of {names}; choose one with --hw")
    results = []
    with Progress() as progress:
        report = progress.share("training")
        for number, family in enumerate(families):
            judgement = judge(family, families, progress=_part(report, number, len(families)))
            saved = train(family, judgement, str(path), output) if output is not None or judgement.helps else None
            results.append((family, judgement, saved))
    if as_json:
        print_json(
            [
                {
                    "name": family.name,
                    "workloads": [workload._asdict() for workload in family.workloads],
                    "left_out": family.num_left_out,
                    "judgement": judgement,
                    "helps": judgement.helps,
                    "saved": str(saved or "") or None,
                }
                for family, judgement, saved in results
            ]
        )
        return
    for family, judgement, saved in results:
        print_lines(family_lines(family, judgement, saved))


def _part(report: Callable[[float], None], number: int, count: int) -> Callable[[float], None]:
    """Return what reports the judging of one of several corrections as a share of all."""
    return lambda share: report((number + _JUDGING * share) / count)
