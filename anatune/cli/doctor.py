"""``anatune doctor``: what is installed, what is missing for which command, and how to mend it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from anatune.cli.options import AsJson
from anatune.cli.output import print_lines, print_text

__all__ = ["doctor"]


def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="Look at versions only: import no package of the extras.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what is installed, what is missing for which command, and how to mend it, one line each.

    Exit status 1 where anatune cannot plan.
    """
    from anatune.doctor.examination import examine
    from anatune.doctor.findings import can_plan
    from anatune.doctor.report import lines, tree

    findings = examine(imports=not quick)
    if as_json:
        print_text(json.dumps(tree(findings)))  # Python's own: msgspec may be what is broken
    else:
        print_lines(lines(findings))
    if not can_plan(findings):
        raise typer.Exit(1)
