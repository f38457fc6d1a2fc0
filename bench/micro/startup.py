"""CPU seconds from the shell: `anatune plan` with and without compiled code on disk, `import anatune`.

    python -m bench.micro.startup [--hw rtx3090] [--repeats 5] [--json FILE]

"First time" starts with an empty NUMBA_CACHE_DIR, as after installation; "cached" finds the compiled code there.
The commands take turns; medians are reported. CPU seconds are those of the user and the system, which other processes
disturb less than wall-clock time. `import numpy, scipy.special` is there for comparison.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.results import environment, write_json


def command_line() -> list[str]:
    """Return how to start the installed command of this Python.

    Raises
    ------
    SystemExit
        It is not installed.
    """
    name = "anatune.exe" if os.name == "nt" else "anatune"
    found = Path(sysconfig.get_path("scripts")) / name
    path = str(found) if found.exists() else shutil.which("anatune")
    if not path:
        raise SystemExit("bench.micro.startup: no `anatune` command beside this Python; install the package first")
    return [path]


def seconds(command: Sequence[str], cache: Path) -> float:
    """Run `command` with its compiled code in `cache` and return its CPU seconds.

    Raises
    ------
    SystemExit
        The command failed.
    """
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    before = os.times()
    done = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
    after = os.times()
    if done.returncode:
        raise SystemExit(f"bench.micro.startup: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return sum(after[2:4]) - sum(before[2:4])  # user and system, of children


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", default="rtx3090")
    parser.add_argument("--cpu", default="amd_epyc_9575f", help="the CPU of other plans")
    parser.add_argument("--repeats", type=int, default=5, help="of the cached runs")
    parser.add_argument("--first", type=int, default=2, help="repeats of the runs with an empty cache")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    python = [sys.executable]
    words = [*command_line(), "plan", "--hw"]
    first = {
        "anatune plan matmul, first time": [*words, options.hw, "matmul", "512x4096x1024"],
        "the same for a CPU, first time": [*words, options.cpu, "matmul", "512x4096x1024"],
    }
    cached = {
        "python -c pass": [*python, "-c", "pass"],
        "import numpy, scipy.special": [*python, "-c", "import numpy, scipy.special"],
        "import anatune": [*python, "-c", "import anatune"],
        "anatune --help": [*command_line(), "--help"],
        "anatune plan matmul, cached": [*words, options.hw, "matmul", "512x4096x1024"],
        "the same of template triton": [*words, options.hw, "matmul", "512x4096x1024", "--template", "triton"],
        "anatune plan resnet50:R2, cached": [*words, options.hw, "resnet50:R2"],
        "the same for a CPU, cached": [*words, options.cpu, "resnet50:R2"],
    }
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(options.first):
            empty = Path(folder) / f"first{index}"
            for name, command in first.items():
                samples.setdefault(name, []).append(seconds(command, empty))
        warm = Path(folder) / "warm"
        for command in cached.values():
            seconds(command, warm)
        for _ in range(options.repeats):
            for name, command in cached.items():
                samples.setdefault(name, []).append(seconds(command, warm))
    table = Table(title="CPU seconds from the shell", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("command", "median s", "fewest s", "most s", "runs"):
        table.add_column(heading, justify="left" if heading == "command" else "right", no_wrap=True)
    for name, times in samples.items():
        table.add_row(name, f"{median(times):.3f}", f"{min(times):.3f}", f"{max(times):.3f}", str(len(times)))
    Console().print(table)
    if options.json:
        write_json(options.json, {"environment": environment(hw=options.hw, seed=None), "samples_cpu_s": samples})


if __name__ == "__main__":
    main()
