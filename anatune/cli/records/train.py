"""``anatune records train``: learn corrections of the analytical model from recorded trials."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from anatune.cli.options import AsJson, spread
from anatune.cli.output import UsageError, note_once, print_json, print_lines
from anatune.cli.progress import Progress
from anatune.cli.records.place import RecordOptions, Words, drop_unknown_templates, open_records
from anatune.errors import RecordError

_JUDGING = 0.9
"""Share of the training time of a correction that its evaluation takes."""


@spread
def train_corrections(
    which: RecordOptions,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Write the correction there, even if it does not help."),
    ] = None,
    words: Words = None,
    as_json: AsJson = False,
) -> None:
    """Fit a correction of the analytical model for each device from records, and report its gain.

    Each correction is tested on workloads that were left out of its training. If it ranks their schedules better than
    the analytical model alone, it is saved, and `anatune plan`, `anatune tune` and predict() use it.
    """
    from anatune.model.learned.corrections import check_correction_folder
    from anatune.report.devices import family_lines
    from anatune.tuning.training import families_of, judge, train

    path, workload = which.parse_place_and_workload(words)
    if output is not None:
        check_correction_folder(output)
    with open_records(path) as store, Progress(compiles=True) as progress:
        progress.begin(f"reading {path}")
        tell = note_once()
        families = families_of(drop_unknown_templates(store.iterate(workload, which.hw, on_damage=tell), tell))
    if not families:
        raise RecordError(
            f"{path}: no workload has 20 successful trials, expected two such workloads of one device; tune more first"
        )
    if output is not None and len(families) > 1:
        names = ", ".join(family.name for family in families)
        raise UsageError(f"--output names one folder, but there are records of {names}; choose a device with --hw")
    results = []
    with Progress() as progress:
        report = progress.share("training")
        for number, family in enumerate(families):
            judgement = judge(family, families, progress=_part_of(report, number, len(families)))
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


def _part_of(report: Callable[[float], None], number: int, count: int) -> Callable[[float], None]:
    """Return a callback that reports the evaluation of one of several corrections as a share of all."""
    return lambda share: report((number + _JUDGING * share) / count)
