"""How fast is this machine just now: an FMA probe (registers only) and a GEMM tile fed from the L2 cache.

The FMA probe alone is not enough: in busy minutes it stays high while everything that reads the L2 cache slows down by
a third. A sample of anything is quiet if both probes are high on both of its sides (`quiet`).

    python -m bench.cpu.probes [--threads 1] [--seconds 5]
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

__all__ = ["Probes", "Reading"]

SECONDS_EACH = 0.0012
"""Length of one probe: long enough for a clock of 1 us, short beside a sample."""


class Reading(NamedTuple):
    """What both probes say, FLOP/s of all threads together."""

    fma: float
    gemm: float


def _lanes() -> tuple[int, list[str]]:
    """Return the floats of a vector register and gcc's options for this machine."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return 4, ["-mcpu=native"]
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    if " avx512f" in flags:
        return 16, ["-march=native", "-mprefer-vector-width=512"]
    return 8, ["-march=native"]


def _compile(folder: Path) -> Path:
    """Compile probes.c into `folder` and return the library.

    Raises
    ------
    SystemExit
        There is no C compiler, or it fails.
    """
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if not compiler:
        raise SystemExit("bench.cpu.probes: no gcc, cc or clang found; the probes are C: install gcc")
    lanes, options = _lanes()
    library = folder / "probes.so"
    source = Path(__file__).with_name("probes.c")
    command = [compiler, "-O3", *options, "-ffp-contract=fast", f"-DLANES={lanes}", "-shared", "-fPIC"]
    done = subprocess.run([*command, "-o", str(library), str(source)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench.cpu.probes: {compiler} failed:\n{done.stderr[-2000:]}")
    return library


class Probes:
    """Both probes on `threads` cores at once. Call it for a `SizedReading`.

    The other cores' probes run in threads of their own (ctypes gives up the GIL); before they start, `settle_s` lets
    the spinning workers of OpenMP and TVM fall asleep.
    """

    def __init__(self, threads: int = 1) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="anatune-probes-")
        library = ctypes.CDLL(str(_compile(Path(self._folder.name))))
        self._fma, self._gemm = library.fma_probe, library.gemm_probe
        self._fma.restype = self._gemm.restype = ctypes.c_double
        self._fma.argtypes, self._gemm.argtypes = [ctypes.c_long], [ctypes.c_int]
        self.threads = threads
        self.settle_s = 0.008 if threads > 1 else 0.0
        self._others = ThreadPoolExecutor(max(threads - 1, 1))  # kept: each thread owns the memory of its tiles
        self._iterations, self._repeats = 100_000, 20
        lanes, _ = _lanes()
        fma, gemm = max(self._one() for _ in range(5))
        self._iterations = max(1000, int(SECONDS_EACH * fma / (2 * 12 * lanes)))
        self._repeats = max(2, int(SECONDS_EACH * gemm / (2 * 14 * 64 * 1024)))

    def _one(self) -> Reading:
        """Run both probes on the present thread."""
        return Reading(self._fma(self._iterations), self._gemm(self._repeats))

    def __call__(self) -> Reading:
        """Return what the probes say now."""
        if self.threads == 1:
            return self._one()
        time.sleep(self.settle_s)
        barrier = threading.Barrier(self.threads)

        def run() -> Reading:
            barrier.wait()
            return self._one()

        others = [self._others.submit(run) for _ in range(self.threads - 1)]
        readings = [run(), *(other.result() for other in others)]
        return Reading(sum(r.fma for r in readings), sum(r.gemm for r in readings))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args(arguments)
    probes = Probes(options.threads)
    readings = []
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        readings.append(probes())
    for name, values in (("FMA", [r.fma for r in readings]), ("GEMM tile from L2", [r.gemm for r in readings])):
        values = sorted(value / 1e9 for value in values)
        share = len(values) - 1
        print(
            f"{name}: median {statistics.median(values):.1f} GFLOP/s, 5-95 % {values[int(0.05 * share)]:.1f} to "
            f"{values[int(0.95 * share)]:.1f}, best {values[-1]:.1f}, {len(values)} readings"
        )


if __name__ == "__main__":
    main()
