"""The first run of each model: what it compiles is there for all tests of a run, what it says is tested once.

With pytest-xdist the workers make these runs before they import test files, since many of those need the models at
once. Without it nothing is made ahead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

CHAINS = (("cpu", "winograd"), ("cuda", "thin"))
"""Models by the process that compiles them, one after the other: winograd's needs the functions of cpu's."""
WORDS = {
    "cpu": ("plan", "--hw", "xeon_gold_6230r", "relu", "16x16", "--json"),
    "winograd": ("plan", "--hw", "xeon_gold_6230r", "conv2d", "1x16x8x8", "16x16x3x3", "--padding", "1", "--json"),
    "cuda": ("plan", "--hw", "rtx3090", "matmul", "64x64x64", "--json"),
    "thin": ("plan", "--hw", "a100", "matmul", "1x128x128", "--template", "thin"),
}
_LIMIT_S = 300.0


class Said(NamedTuple):
    """What a run wrote to its two streams."""

    stdout: str
    stderr: str


def _file_of(model: str) -> Path:
    """Return where the workers of this test run keep what the first run of a model said."""
    from anatune.numerics import _jit  # not where this module is imported: the folder is chosen in the configuration

    return _jit.cache_folder() / f"first_run_{os.environ.get('PYTEST_XDIST_TESTRUNUID', '')}_{model}.json"


def _run(model: str, config: Path) -> Said:
    """Plan something with a model in a process of its own, as the tests do that run the same words again."""
    command = [sys.executable, "-m", "anatune", *WORDS[model]]
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_LIMIT_S, check=False,
            env=kept | {"XDG_CONFIG_HOME": str(config)},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return Said("", "")  # what fails here fails in a test, too
    return Said(done.stdout, done.stderr)


def said(model: str) -> Said | None:
    """Return what the first run of a model said; None if none was made ahead, or if it had nothing to compile."""
    kept = Said(*json.loads(_file_of(model).read_text())) if _file_of(model).exists() else None
    return kept if kept and " kernels (about " in kept.stderr else None  # a busy machine also says how long it searches


def make(number: int, count: int) -> None:
    """Make this worker's share of the first runs; return when the others have made theirs."""
    for model in (model for chain in CHAINS[number::count] for model in chain):
        file = _file_of(model)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(_run(model, file.parent / "no_specs")))
        part.replace(file)
    until = time.monotonic() + _LIMIT_S
    while not all(_file_of(model).exists() for model in WORDS) and time.monotonic() < until:
        time.sleep(0.1)
