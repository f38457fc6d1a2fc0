"""Programs that run in processes of their own, apart from the checkout and from the run of tests that starts them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_HIDDEN = (
    *("PYTHONPATH", "VIRTUAL_ENV", "SOURCE_DATE_EPOCH"),
    *("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST"),
)
"""Variables that would let a program see the checkout, or take itself for a worker of pytest-xdist."""


def run(*words: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, with variables of its own and without those of the checkout; return what it wrote."""
    kept = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
    return subprocess.run(
        [*map(str, words)], cwd=cwd, env=kept | variables, capture_output=True, text=True, timeout=600, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
