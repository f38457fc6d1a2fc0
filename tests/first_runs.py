"""The first run of each model: what it compiles is there for all tests of a run, what it says is tested once.

With pytest-xdist the workers make these runs before they import test files, since many of those need the models at
once. Without it, or with compiled code of an earlier run, nothing is made ahead.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

CHAINS = (("cpu", "winograd"), ("cuda", "tensorcore"))
"""Models by the process that compiles them, one after the other: winograd's needs the functions of cpu's."""
WORDS = {
    "cpu": ("plan", "--hw", "xeon_gold_6230r", "relu", "16x16", "--json"),
    "winograd": ("plan", "--hw", "xeon_gold_6230r", "conv2d", "1x16x8x8", "16x16x3x3", "--padding", "1", "--json"),
    "cuda": ("plan", "--hw", "rtx3090", "matmul", "64x64x64", "--json"),
    "tensorcore": ("plan", "--hw", "a100", "matmul", "64x64x64", "--dtype", "float16", "--template", "tensorcore"),
}


class Said(NamedTuple):
    """What a run wrote to its two streams."""

    stdout: str
    stderr: str


def file_of(model: str) -> Path:
    """Return where the workers of a test run keep what the first run of a model said."""
    from anatune.numerics import _jit  # not where this module is imported: the folder is chosen in the configuration

    return _jit.cache_folder() / f"first_run_{model}.json"


def run(model: str) -> Said:
    """Plan something with a model in a process of its own."""
    command = [sys.executable, "-m", "anatune", *WORDS[model]]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, check=False)
    return Said(done.stdout, done.stderr)


def said(model: str) -> Said | None:
    """Return what the first run of a model said; None if none was made ahead, or if it had nothing to compile."""
    kept = Said(*json.loads(file_of(model).read_text())) if file_of(model).exists() else None
    return kept if kept and kept.stderr else None


def make(number: int, count: int) -> None:
    """Make this worker's share of the first runs; return when the others have made theirs."""
    for chain in CHAINS[number::count]:
        for model in chain:
            file = file_of(model)
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                part = file.with_suffix(".part")
                part.write_text(json.dumps(run(model)))
                part.replace(file)
    until = time.monotonic() + 180.0
    while not all(file_of(model).exists() for model in WORDS) and time.monotonic() < until:
        time.sleep(0.1)
