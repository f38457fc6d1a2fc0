"""Score the model of Triton's tiles on recorded times of tensor-core kernels, of Triton's and of libraries.

    python -m bench.replay.tensorcores FOLDER [--problems N] [--seed S] [--half odd|even] [--fit]
                                       [--correction]

FOLDER holds autotune_mm__*, autotune_mixed_mm__*, gemm_aiconfigurator__* and gemm_aiter_winners__*.csv.gz; a table that
is missing, a device without a spec and a dtype that we have not are printed lines. Predicted times of the first two are
of cold operands, with the specs' DRAM bandwidth and matrix rate under load replaced by what cuBLAS reached in the same
table (`--plain-specs`: not); those of libraries are of repeated calls, whose operands stay in L2.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.triton.constants import CONSTANTS, Constants
from bench.replay.metrics import spearman
from bench.replay.tensorcores_correction import correct
from bench.replay.tensorcores_devices import anchored, spec_named
from bench.replay.tensorcores_fit import fit
from bench.replay.tensorcores_scores import FIRST, ChoiceScore, Legality, LibraryScore, score_choices, score_libraries
from bench.replay.tensorcores_tables import (
    AITER,
    LIBRARIES,
    MIXED,
    PLAIN,
    Choices,
    LibraryTime,
    read_aiter,
    read_choices,
    read_libraries,
)

TURNS = 6
"""Sets of weights that take turns in aiconfigurator's replays, so that L2 does not hold them."""
LARGE_FLOP = 2e10
"""Products of more are large."""


def specs_of(
    rows: Iterable[Choices] | Iterable[LibraryTime], known: dict[str, GpuSpec] | None = None
) -> dict[str, GpuSpec]:
    """Return device -> spec; devices without one are printed."""
    found = {device: (known or {}).get(device) or spec_named(device) for device in sorted({row.device for row in rows})}
    return {device: spec for device, spec in found.items() if spec is not None}


def anchored_specs(rows: list[Choices]) -> dict[str, GpuSpec]:
    """Return device -> spec as its cuBLAS rows say; prints what they said."""
    specs = specs_of(rows)
    for device, spec in specs.items():
        specs[device] = anchored(spec, [row for row in rows if row.device == device])
        cores = specs[device].tensor_cores
        reached = specs[device].dram.bandwidth_bytes_per_s * spec.dram.reachable_fraction
        print(
            f"{device}: {spec.name}, {form(spec, [row for row in rows if row.device == device])}; under load "
            f"{cores.sustained_fraction if cores else 1.0:.2f} of the matrix rate, DRAM "
            f"{reached / 1e9:.0f} GB/s reached by cuBLAS"
        )
    return specs


def form(spec: GpuSpec, rows: list[Choices]) -> str:
    """Return in words what the fastest float32 product of cuBLAS says of the number of SMs and the clock."""
    rates = [
        2e-12 * r.problem.m * r.problem.n * r.problem.k / r.library_s for r in rows if r.problem.dtype == "float32"
    ]
    rates = [rate for rate in rates if rate > 0]
    peak = spec.compute.fp32_peak_flop_per_s / 1e12
    return f"cuBLAS float32 {max(rates):.1f} of {peak:.1f} TFLOP/s" if rates else "no float32 rows of cuBLAS"


def print_choices(scores: list[ChoiceScore], legality: dict[tuple[str, str], Legality]) -> None:
    """Print a line for each device and dtype."""
    columns = "".join(f" | first {count}, median (90 %)" if count > 1 else " | first choice" for count in FIRST)
    print(f"| device, dtype | problems | Spearman{columns} | winner's time: ratio, error | did not run: refused |")
    print("|---" * (6 + len(FIRST)) + "|")
    for (device, label), group in _by(scores, lambda s: (s.device, s.label)):
        winner = np.array([s.winner for s in group])
        known = legality[device, label]
        print(
            f"| {device} {label} | {len(group)} | {np.nanmedian([s.correlation for s in group]):.3f} | "
            f"{first_choices(group)} | {np.median(winner):.2f}, {100 * np.median(abs(winner - 1)):.0f} % | "
            f"{known.failed_refused} of {known.failed}; of {known.ran} that ran {known.ran_refused} |"
        )


def print_corrections(found: dict[str, list[ChoiceScore]]) -> None:
    """Print what a correction is worth: a line for each device, dtype and case."""
    columns = " | ".join(f"first {count}, median (90 %)" for count in FIRST)
    print(f"\n| device, dtype | problems | correction | Spearman | {columns} | winner's time: error |")
    print("|---" * (5 + len(FIRST)) + "|")
    lines = [(score.device, score.label, at, score) for at, case in enumerate(found) for score in found[case]]
    for (device, label, at), group in _by(lines, lambda line: line[:3]):
        scores = [line[3] for line in group]
        error = 100 * np.median([abs(s.winner - 1) for s in scores])
        print(
            f"| {device} {label} | {len(scores)} | {list(found)[at]} | "
            f"{np.nanmedian([s.correlation for s in scores]):.3f} | {first_choices(scores)} | {error:.0f} % |"
        )


def first_choices(scores: list[ChoiceScore]) -> str:
    """Return the cells of `FIRST`."""
    first = [np.array([s.regrets[at] for s in scores]) for at in range(len(FIRST))]
    return " | ".join(f"{np.median(r):.3f} ({np.quantile(r, 0.9):.2f})" for r in first)


def print_libraries(scores: list[LibraryScore]) -> None:
    """Print a line for each device, dtype, library and size.

    "product alone" leaves out the quantisation of the left operand that rows of 8 bits hold. Some libraries' smallest
    products take microseconds more than others' on the same device: the column "fixed cost" adds that median
    difference to our times without split_k.
    """
    columns = "ratio, median (10 to 90 %) | product alone | no split_k | fixed cost | rank |"
    print(f"| device, dtype, library | size | problems | {columns}")
    print("|---" * 8 + "|")
    for (device, label, library), group in _by(scores, lambda s: (s.device, s.label, s.library)):
        fixed = [s.measured_s - s.unsplit_s for s in group if s.small]
        cost = max(0.0, float(np.median(fixed))) if fixed else 0.0
        for name, large in (("over 20 GFLOP", True), ("smaller", False)):
            sized = [s for s in group if (s.flop > LARGE_FLOP) == large]
            if not sized:
                continue
            measured = np.array([s.measured_s for s in sized])
            predicted = np.array([s.predicted_s for s in sized])
            ratio, unsplit = predicted / measured, np.array([s.unsplit_s for s in sized])
            kernel = f"{device} {label}, {library.split()[-1]}"
            spread = f"{np.quantile(ratio, 0.1):.2f} to {np.quantile(ratio, 0.9):.2f}"
            print(
                f"| {kernel} | {name} | {len(sized)} | {np.median(ratio):.2f} ({spread}) | "
                f"{np.median([s.product_s / s.measured_s for s in sized]):.2f} | "
                f"{np.median(unsplit / measured):.2f} | {np.median((unsplit + cost) / measured):.2f} "
                f"({1e6 * cost:.1f} us) | {spearman(predicted, measured):.3f} |"
            )


def _by(rows: list, key) -> Iterator[tuple]:  # type: ignore[no-untyped-def, type-arg]
    """Yield key, rows of each group, sorted."""
    for found, group in groupby(sorted(rows, key=key), key=key):
        yield found, list(group)


def read(reader, *arguments: object) -> list:  # type: ignore[no-untyped-def, type-arg]
    """Return a table's rows; none, and a printed line, where the folder has no such table or it has other columns."""
    try:
        return list(reader(*arguments))
    except (FileNotFoundError, ValueError) as error:
        print(f"{type(error).__name__}: {error}")
        return []


def main() -> None:
    """Read the tables and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--problems", type=int, default=0, help="sample of each table (libraries: of each library); 0: all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", choices=("all", "odd", "even"), default="all", help="of the problems, by a hash")
    parser.add_argument("--fit", action="store_true", help="fit constants on one half, report them on the other")
    parser.add_argument("--correction", action="store_true", help="what a learned correction adds")
    parser.add_argument("--plain-specs", action="store_true", help="take specs as they are")
    chosen = parser.parse_args()
    sample = (chosen.half, chosen.problems, chosen.seed)
    constants: Constants = CONSTANTS
    anchors: dict[str, GpuSpec] = {}
    for name in (PLAIN, MIXED):
        rows = read(read_choices, chosen.folder, name, *sample)
        if not anchors and rows and not chosen.plain_specs:
            anchors = anchored_specs(rows)
        print(f"\n{name}: {len(rows)} problems\n")
        specs = specs_of(rows, anchors)
        print_choices(*score_choices(rows, specs, constants))
        if chosen.fit:
            fit(rows, specs)
        if chosen.correction:
            print_corrections(correct(rows, specs))
    for name, reader, warm in ((LIBRARIES, read_libraries, TURNS), (AITER, read_aiter, 1)):
        rows = read(reader, chosen.folder, *sample)
        print(f"\n{name}: {len(rows)} problems\n")
        print_libraries(score_libraries(rows, specs_of(rows), warm=warm, constants=constants))


if __name__ == "__main__":
    main()
