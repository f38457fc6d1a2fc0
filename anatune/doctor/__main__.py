"""``python -m anatune.doctor``, which is also ``anatune doctor`` if the command line cannot be imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from anatune.doctor.examination import examine
from anatune.doctor.findings import can_plan, lines, tree
from anatune.report.text import join_lines


def main(arguments: Sequence[str]) -> int:
    """Run all checks, print the findings, and return the exit status: 0, or 1 if anatune cannot plan.

    Parameters
    ----------
    arguments : sequence of str
        ``--json``, ``--quick``.
    """
    unknown = [word for word in arguments if word not in ("--json", "--quick")]
    if unknown:
        sys.stderr.write(f"error: No such option: {unknown[0]}; doctor takes --json and --quick\n")
        return 2
    findings = examine(imports="--quick" not in arguments)
    sys.stdout.write(json.dumps(tree(findings)) + "\n" if "--json" in arguments else join_lines(lines(findings)))
    return 0 if can_plan(findings) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
