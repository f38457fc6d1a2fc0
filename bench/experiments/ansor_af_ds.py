"""The thirty benchmarks of Ansor-AF-DS on the models of three GPUs: what searches find against the proven optimum.

    python -m bench.experiments.ansor_af_ds --out FILE.json [--quick]

Every surface is an analytical model, its optimum a certified ranking; no GPU is needed. What came of it is in
``docs/experiments/ansor_af_ds.md``. Source: [ICS24] Table 1, Sec. 6.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.layers import layer_names
from anatune.errors import AnatuneError
from anatune.search.knobs import is_within_limits
from anatune.templates.cuda.model.model import CudaModel
from bench.experiments.surfaces import Contender, Search, search, summary, wrong_numbers
from bench.results import environment, matches, progress_bar, write_json

__all__ = ["BENCHMARKS", "INFORMED", "UNINFORMED", "Truth", "main"]

BENCHMARKS = [
    name
    for network in ("bert", "yolo9000", "resnet50")
    for name in layer_names()
    if name.startswith(f"{network}:") and name.split(":")[1][0].isalpha()
]
DEVICES = ("rtx3090", "rtx4090", "a100_sxm")
"""The paper's two, and the one whose memory differs most from theirs."""
UNINFORMED = (
    Contender("dgd (Ansor-AF-DS)", "dgd", "paper"),
    Contender("dgd, program features (Ansor-DS)", "dgd", "paper", {"published_features": "program"}),
    Contender("dgd, rules of its code", "dgd", "paper", {"published_rules": "code"}),
    Contender("genetic (Ansor)", "genetic", "paper"),
    Contender("genetic-af (Ansor-AF)", "genetic-af", "paper"),
    Contender("droplet", "droplet", "paper"),
    Contender("random within the limits", "dgd", "paper", {"num_random": 1000}),
    Contender("random", "random", "paper"),
)
INFORMED = (
    Contender("model", "model", "model"),
    Contender("dgd", "dgd", "model"),
    Contender("droplet", "droplet", "model"),
    Contender("genetic", "genetic", "model"),
)
OWN, OTHER, WRONG = "own model", "other device's model", "wrong numbers"
SIGMA = 0.3
"""The standard deviation of the logarithm of the error of each number in a wrong spec."""
_QUICK = ("bert:M0", "resnet50:R12")
"""Small spaces: ranked in tens of milliseconds."""
_NUM_RANKED = 1024
"""First points of a ranking among which the best one within the limits of published searches is looked for."""


@dataclass
class Truth:
    """What is known of one benchmark on one device."""

    device: str
    benchmark: str
    space_size: int
    num_legal: int | None
    guarantee: str
    rank_s: float
    """CPU seconds of the ranking that proves the optimum."""
    best_s: float
    """The best of the tuners' space: perfect divisors, nothing split."""
    limited_s: float | None
    """The best of it within the limits of published searches (`anatune.search.knobs`); None: not among the first."""
    widest_s: float
    """The best of ours: guarded tiles and split reductions besides."""


class Results(msgspec.Struct):
    """What the file holds."""

    environment: dict[str, Any]
    truths: list[Truth]
    searches: list[Search]


def truth_of(name: str, device: GpuSpec) -> tuple[Truth, CudaModel]:
    """Return the optimum of a benchmark, and the model of its surface."""
    workload = anatune.layer(name)
    model = CudaModel(workload, device, plain=True)
    started = time.process_time()
    ranking = model.rank(1)
    rank_s = time.process_time() - started
    best_s = float(model.times(ranking.points)[0][0])
    first = model.rank(_NUM_RANKED).points
    within = model.times(first[is_within_limits(model, first)][:1])[0]
    limited_s = float(within[0]) if len(within) else None
    wide = CudaModel(workload, device)
    widest_s = float(wide.times(wide.rank(1).points)[0][0])
    size, guarantee = model.space.size, ranking.guarantee.describe()
    return Truth(device.name, name, size, ranking.num_legal, guarantee, rank_s, best_s, limited_s, widest_s), model


def _guides(model: CudaModel, others: Sequence[GpuSpec], wrong: Sequence[int]) -> list[tuple[str, int, CudaModel]]:
    """Return (surface, seed, model) of what informed strategies see in the place of the surface itself."""
    found = [(OTHER, at, CudaModel(model.workload, spec, plain=True)) for at, spec in enumerate(others)]
    for seed in wrong:
        found.append((WRONG, seed, CudaModel(model.workload, wrong_numbers(model.hardware, seed, SIGMA), plain=True)))
    return found


def run(options: argparse.Namespace) -> tuple[list[Truth], list[Search]]:
    """Return the optima and all searches."""
    devices = [anatune.hardware(name) for name in options.device]
    truths: list[Truth] = []
    searches: list[Search] = []
    with progress_bar() as progress:
        task = progress.add_task("searches", total=len(devices) * len(options.benchmark))
        for at, device in enumerate(devices):
            other = anatune.hardware(options.other) if options.other else devices[(at + 1) % len(devices)]
            for name in options.benchmark:
                progress.update(task, description=f"{device.name} {name}")
                truth, model = truth_of(name, device)
                truths.append(truth)
                for contender in (one for one in UNINFORMED if matches(one.name, options.search)):
                    for seed in options.seeds:
                        new = Search(device.name, name, OWN, contender.name, seed, truth.best_s)
                        searches.append(search(model, model, contender, options.trials, new))
                others = [] if other.name == device.name else [other]
                for surface, seed, guide in _guides(model, others, options.wrong) if options.informed_trials else ():
                    for contender in INFORMED:
                        new = Search(device.name, name, surface, contender.name, seed, truth.best_s)
                        searches.append(search(model, guide, contender, options.informed_trials, new))
                progress.advance(task)
    return truths, searches


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="write every search as JSON")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE", help="search nothing: join what these hold")
    parser.add_argument("--quick", action="store_true", help="two benchmarks, one device, few trials: a test")
    parser.add_argument("--device", nargs="+", default=list(DEVICES), metavar="D")
    parser.add_argument("--other", metavar="D", help="whose model guides; left out: that of the next device")
    parser.add_argument("--benchmark", nargs="+", default=BENCHMARKS, metavar="B", help="as bert:M0")
    parser.add_argument("--search", nargs="+", metavar="S", help="uninformed ones (patterns or beginnings)")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="of uninformed searches")
    parser.add_argument("--trials", type=int, default=1000, help="of an uninformed search")
    parser.add_argument("--wrong", type=int, nargs="*", default=[0, 1], help="seeds of specs with wrong numbers")
    parser.add_argument("--informed-trials", type=int, default=32, help="0: no informed searches")
    return parser


def _results(options: argparse.Namespace) -> Results:
    """Search, or join what earlier runs found."""
    if options.read:
        parts = [msgspec.json.decode(path.read_bytes(), type=Results) for path in options.read]
        truths = {(one.device, one.benchmark): one for part in parts for one in part.truths}
        joined = {
            "parts": [part.environment for part in parts],
            "seconds": sum(part.environment["seconds"] for part in parts),
        }
        return Results(joined, list(truths.values()), [one for part in parts for one in part.searches])
    started = time.perf_counter()
    try:
        truths_and_searches = run(options)
    except AnatuneError as error:
        raise SystemExit(f"bench.experiments.ansor_af_ds: {error}") from None
    settings = {key: value for key, value in vars(options).items() if key not in ("out", "read")}
    return Results(environment(**settings, seconds=time.perf_counter() - started), *truths_and_searches)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    if options.quick:
        options.device, options.benchmark = options.device[:1], list(_QUICK)
        options.seeds, options.trials, options.wrong, options.informed_trials = [0], 96, [0], 4
    results = _results(options)
    write_json(options.out, {field: getattr(results, field) for field in results.__struct_fields__})
    print(summary(results.searches))
    print(f"{len(results.searches)} searches, {results.environment['seconds']:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
