"""Hashes of plans, predictions, samples and generated code: whether a change of the code changed an answer.

    python -m bench.snapshot write FILE [--part 0/40] [--specs FOLDER]
    python -m bench.snapshot write FILE --networks [--hw CPU] [--part 0/10]
    python -m bench.snapshot compare BEFORE AFTER

"write" plans every shipped device with every template of its kind, all layers of the papers on three of the devices,
six drawn ones on the others: about 900 combinations, a line of JSON each, about ten CPU minutes. `--part 3/40`
takes every 40th of them, from number 3 on (they count from 0); what is drawn is always the same, so that files of
different parts can be compared where they overlap. "compare" names what differs; exit status 1 if anything does.

`--networks` compiles six whole networks instead (`bench.networks`), for a CPU and some of them for GPUs, with nothing
taken from caches on disk: ten lines. `bench.snapshot_networks` says what their fields are.

| field | of |
|---|---|
| plan | the five best schedules (GPUs: of different predicted times) and their predicted seconds, every bit |
| predictions | all numbers of these predictions |
| counts | size of the space, legal points, rejected points for each rule |
| sample | six uniformly drawn points |
| predict | predictions of these points and of the plan's schedules |
| code | the best schedule's kernel, CUDA C or TIR, of about every seventh combination |
| error | the message, where there is no answer |
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import anatune
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.layers import layer_names
from anatune.errors import AnatuneError
from anatune.resources import data_folder
from anatune.templates import SCALED, templates_of

__all__ = ["Combination", "combinations", "differences", "row_of"]

SEED = 5
WITH_ALL_LAYERS = ("nvidia_rtx3090", "nvidia_a100_sxm", "amd_epyc_9575f")
"""Specs that are planned with every layer."""
NUM_LAYERS = 6
"""Layers drawn for each other spec."""
SHARE_WITH_CODE = 0.15
NUM_POINTS = 6
TOP_K = 5


class Combination(NamedTuple):
    """What one row is about."""

    spec: Path
    hardware: GpuSpec | CpuSpec
    template: str
    layer: str
    with_code: bool

    @property
    def key(self) -> str:
        """Return its name, as rows are matched by it."""
        return f"{self.spec.stem} {self.template} {self.layer}"


def combinations(folder: Path) -> Iterator[Combination]:
    """Yield all combinations of the specs in `folder`, always the same ones in the same order."""
    names = list(layer_names())
    draw = random.Random(SEED)
    for path in sorted(folder.glob("*.toml")):
        hardware = anatune.hardware(str(path))
        layers = names if path.stem in WITH_ALL_LAYERS else draw.sample(names, NUM_LAYERS)
        for template in (one.name for one in templates_of(hardware) if one is not SCALED):  # of no layer
            for layer in layers:
                yield Combination(path, hardware, template, layer, draw.random() < SHARE_WITH_CODE)


def _digest(value: Any) -> str:
    """Return a short hash of bytes, or of what can be written as JSON."""
    content = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True, default=str).encode()
    return hashlib.sha1(content).hexdigest()[:12]


def _decisions(schedule: Schedule) -> list[Any]:
    """Return what a schedule decides, without its workload and hardware."""
    tiles = {axis: list(factors) for axis, factors in schedule.tiles.items()}
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in schedule.options.items()}
    return [tiles, schedule.unroll, dict(schedule.vector), options]


def _code(schedule: Schedule) -> str:
    """Return the generated kernel: Triton, CUDA C, or TVM's TIR for one core."""
    if isinstance(schedule.hardware, GpuSpec):
        return schedule.source()
    from anatune.codegen.cpu.lower import lower

    return str(lower(schedule, threads=1).module)


def row_of(combination: Combination) -> dict[str, str]:
    """Return the hashes of one combination; an "error" behind what could be answered."""
    _, hardware, template, layer, with_code = combination
    workload = anatune.layer(layer)
    row = {"key": combination.key}
    try:
        distinct = isinstance(hardware, GpuSpec)
        plan = anatune.plan(workload, hardware, TOP_K, template=template, distinct=distinct)
        times = [prediction.time_s.hex() for prediction in plan.predictions]
        row["plan"] = _digest([list(pair) for pair in zip(map(_decisions, plan.schedules), times, strict=True)])
        row["predictions"] = _digest(msgspec.json.encode(list(plan.predictions)))
        row["counts"] = _digest([plan.num_legal, plan.space_size, plan.rejected])
        points = anatune.space(workload, hardware, template=template).sample(NUM_POINTS, 3)
        row["sample"] = _digest([_decisions(point) for point in points])
        answers = anatune.predict(workload, hardware, [*points, *plan.schedules])
        row["predict"] = _digest(answers.to_json(double_precision=15))
        if with_code:
            row["code"] = _digest(_code(plan.best).encode())
    except AnatuneError as error:
        row["error"] = str(error)
    return row


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file.

    Raises
    ------
    SystemExit
        It cannot be read, or is none of "write".
    """
    try:
        return msgspec.json.Decoder(dict[str, str]).decode_lines(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise SystemExit(
            f"bench.snapshot: {path}: {error}; expected a file of `python -m bench.snapshot write`"
        ) from None


def differences(before: Path, after: Path) -> tuple[list[str], int]:
    """Return a line for each combination whose hashes differ, and how many are in both files."""
    known = {row["key"]: row for row in _rows(before)}
    lines, num_compared = [], 0
    for row in _rows(after):
        other = known.get(row["key"])
        if other is None:
            continue
        num_compared += 1
        fields = [name for name in {**other, **row} if other.get(name) != row.get(name)]
        if fields:
            errors = [
                f"{which}: {one['error']}" for which, one in (("before", other), ("after", row)) if "error" in one
            ]
            lines.append(f"{row['key']}: {', '.join(fields)}" + "".join(f"; {error}" for error in errors))
    return lines, num_compared


def _plan_rows(specs: Path | None) -> Iterator[Callable[[], dict[str, str]]]:
    """Yield what makes each row of plans."""
    for combination in combinations(specs or data_folder("hwspecs")):
        yield partial(row_of, combination)


def _network_rows(cpu: str | None) -> Iterator[Callable[[], dict[str, str]]]:
    """Yield what makes each row of networks, without caches on disk."""
    from bench.snapshot_networks import CPU, cases, row_of_network

    os.environ["ANATUNE_CACHE"] = "off"  # else an earlier tree's answer would be hashed
    for case in cases(cpu or CPU):
        yield partial(row_of_network, case)


def _part(text: str) -> tuple[int, int]:
    """Read "3/40"."""
    number, _, parts = text.partition("/")
    if not (number.isdigit() and parts.isdigit() and int(number) < int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part, expected one like 0/40 (the first of 40)")
    return int(number), int(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="write the hashes of this tree")
    write.add_argument("file", type=Path)
    write.add_argument(
        "--part", type=_part, default=(0, 1), metavar="I/N", help="every Nth combination from number I on"
    )
    write.add_argument("--networks", action="store_true", help="of whole networks, not of plans")
    write.add_argument(
        "--hw", metavar="CPU", help="whose instructions this machine has, of networks (default: ryzen_7950x)"
    )
    write.add_argument("--specs", type=Path, metavar="FOLDER", help="of the hardware specs (default: the shipped ones)")
    compare = commands.add_parser("compare", help="compare what two trees wrote")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "compare":
        lines, num_compared = differences(options.before, options.after)
        print("\n".join([*lines, f"{num_compared} combinations compared, {len(lines)} differ"]))
        return int(bool(lines))
    first, step = options.part
    rows = _network_rows(options.hw) if options.networks else _plan_rows(options.specs)
    with options.file.open("w", encoding="utf-8") as out:
        for make_row in itertools.islice(rows, first, None, step):
            out.write(json.dumps(make_row()) + "\n")
            out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
