"""How much the speed of a planned kernel depends on the process that runs it: slowest over fastest of many processes.

    python -m bench.cpu.spread [--layers R1,M*] [--processes 40] [--folder FOLDER] [--hw host] [--json FILE]

The plans are built once. Then processes are started one after the other, never two at once; each loads all libraries,
puts operands in place as a user's program does, and takes samples in turns, between an FMA probe and a GEMM tile fed
from L2. A process's time of a layer is the best of its samples: a busy machine slows samples, luck of a process slows
all of them. With --folder the libraries and what each process said are kept, and a later call adds more processes.
Needs TVM and a C compiler.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import anatune
from anatune.codegen.cpu.artifact import CpuArtifact
from anatune.codegen.cpu.lower import build_schedule
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.files import replace_file
from bench.cpu.layers import LAYERS
from bench.cpu.quiet import Method, Sample, Thresholds, interleave, quiet_or_all
from bench.layers import choose
from bench.results import environment, write_json

__all__ = ["Built", "Luck", "build_all", "luck_of", "processes_say", "take_samples"]

AIM = 0.03
"""A layer is steady if its slowest process takes at most this part more than its fastest."""


class Built(msgspec.Struct):
    """A layer's schedule and the library that was built from it."""

    layer: str
    flop: int
    schedule: Schedule
    artifact: CpuArtifact


@dataclass(frozen=True)
class Luck:
    """What processes say of one layer: the best time of each, and how many of them had quiet samples.

    Attributes
    ----------
    times_s : tuple of float
        By process, in the order of their start.
    num_quiet : int
    """

    times_s: tuple[float, ...]
    num_quiet: int

    @property
    def spread(self) -> float:
        """Slowest over fastest, less 1; nan without processes."""
        return max(self.times_s) / min(self.times_s) - 1 if self.times_s else math.nan


def build_all(schedules: Mapping[str, Schedule], folder: Path, threads: int = 1) -> list[Built]:
    """Build schedules by layer, those that are not in ``folder/built.json`` already."""
    file = folder / "built.json"
    known = msgspec.json.decode(file.read_bytes(), type=list[Built]) if file.exists() else []
    by_name = {built.layer: built for built in known}
    for name, schedule in schedules.items():
        if name in by_name and by_name[name].schedule.key == schedule.key:
            continue
        by_name[name] = Built(name, schedule.workload.flop, schedule, build_schedule(schedule, folder, threads=threads))
    replace_file(file, msgspec.json.encode(list(by_name.values())))
    return [by_name[name] for name in schedules]


def _fastest_call(call: Callable[[], object], sample_s: float) -> Method:
    """Return a method that calls for `sample_s` seconds, after one call for the caches, and keeps the fastest call.

    What others do on the machine slows some calls of a sample, what this is about slows all of them.
    """

    def sample() -> float:
        call()
        best, start = math.inf, time.perf_counter()
        stop = start + sample_s
        while start < stop:
            call()
            end = time.perf_counter()
            best, start = min(best, end - start), end
        return best

    return sample


def take_samples(folder: Path, layers: Sequence[str], rounds: int, sample_s: float) -> dict[str, list[Sample]]:
    """Load the libraries of `layers` into this process and let them take turns."""
    from anatune.measure.cpu.kernel import Kernel
    from bench.cpu.probes import Probes

    methods = {}
    for built in msgspec.json.decode((folder / "built.json").read_bytes(), type=list[Built]):
        if built.layer in layers:
            call = Kernel(built.schedule.workload, built.artifact).random_call()
            methods[built.layer] = _fastest_call(call, sample_s)
    return interleave(methods, Probes(), rounds, most_rounds=rounds)


def processes_say(
    folder: Path, layers: Sequence[str], number: int, rounds: int = 6, sample_s: float = 0.006
) -> Iterator[dict[str, list[Sample]]]:
    """Yield the samples of `number` processes, by layer; one after the other, each started anew.

    Raises
    ------
    SystemExit
        One failed: the last line of what it said.
    """
    command = [sys.executable, "-m", "bench.cpu.spread", "--samples-of", str(folder)]
    command += ["--layers", ",".join(layers), "--rounds", str(rounds), "--sample-ms", str(sample_s * 1000)]
    for _ in range(number):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            raise SystemExit(f"bench.cpu.spread: a process failed: {lines[-1]}")
        yield msgspec.json.decode(done.stdout.splitlines()[-1], type=dict[str, list[Sample]])


def luck_of(answers: Sequence[Mapping[str, Sequence[Sample]]]) -> dict[str, Luck]:
    """Return what processes say of each layer.

    Only quiet samples count, and of a process without one all: what is quiet is said by all probes of all processes.
    """
    thresholds = Thresholds.of(sample for answer in answers for samples in answer.values() for sample in samples)
    found = {}
    for layer in dict.fromkeys(layer for answer in answers for layer in answer):
        used = [quiet_or_all(answer[layer], thresholds, fewest=1) for answer in answers if answer.get(layer)]
        times = tuple(min(sample.time_s for sample in samples) for samples, _ in used)
        found[layer] = Luck(times, sum(quiet for _, quiet in used))
    return found


def _plans(names: Sequence[str], hardware: CpuSpec, layout: str) -> dict[str, Schedule]:
    return {name: anatune.plan(LAYERS[name].workload(layout), hardware, top_k=1).best for name in names}


def _print(found: Mapping[str, Luck]) -> None:
    print("layer  fastest us  median  slowest  slowest/fastest  processes (quiet)")
    for layer, luck in found.items():
        fastest, middle, slowest = (1e6 * f(luck.times_s) for f in (min, statistics.median, max))
        mark = " " if luck.spread <= AIM else "*"
        print(
            f"{layer:5s}  {fastest:10.1f}  {middle:6.1f}  {slowest:7.1f}  {luck.spread:14.1%} {mark} "
            f"{len(luck.times_s)} ({luck.num_quiet})"
        )
    steady = sum(luck.spread <= AIM for luck in found.values())
    worst = max(found, key=lambda name: found[name].spread)
    print(f"{steady} of {len(found)} layers within {AIM:.0%}; widest {worst}, {found[worst].spread:.1%}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", default="host", help="hardware spec that is planned for")
    parser.add_argument("--layers", help="comma-separated names, patterns (R*) and groups (bert, resnet18, yolo9000)")
    parser.add_argument("--layout", default="NHWC", choices=("NHWC", "NCHW"), help="of convolutions")
    parser.add_argument("--processes", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=6, help="samples that a process takes of each layer")
    parser.add_argument("--sample-ms", type=float, default=6.0, help="length of a sample")
    parser.add_argument("--folder", type=Path, help="keeps libraries and answers; more processes are added to them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every process's times")
    parser.add_argument("--samples-of", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    names = [layer.name for layer in choose(options.layers, LAYERS)]
    if options.samples_of:
        samples = take_samples(options.samples_of, names, options.rounds, options.sample_ms / 1000)
        print(msgspec.json.encode(samples).decode())
        return
    with nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        hardware = anatune.hardware(options.hw)
        build_all(_plans(names, hardware, options.layout), folder)
        answers: list[Any] = []
        kept = folder / "answers.json"
        if kept.exists():
            answers = msgspec.json.decode(kept.read_bytes(), type=list[dict[str, list[Sample]]])
        for answer in processes_say(folder, names, options.processes, options.rounds, options.sample_ms / 1000):
            answers.append(answer)
            replace_file(kept, msgspec.json.encode(answers))
    found = luck_of(answers)
    if not found:
        return
    _print(found)
    if options.json:
        settings = {name: str(value) for name, value in vars(options).items()}
        write_json(options.json, {"environment": environment(**settings), "hardware": hardware.name, "layers": found})


if __name__ == "__main__":
    main()
