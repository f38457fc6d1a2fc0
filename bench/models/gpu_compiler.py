"""The compiler against the GPU model: shared bytes, registers, spilling, and candidates compiled a second.

    python -m bench.models.gpu_compiler FILE [--points 600] [--hw rtx3090 ...] [--json FILE] [--fit]

Random, good and planned schedules of several operators and architectures are generated and compiled (no GPU is
needed); FILE keeps one line of JSON each, and a later run goes on where it stopped (--points 0 compiles nothing). Then
the model's numbers are compared with the compiler's. --fit fits the regression of registers (models/gpu_registers) to
all of FILE, after judging it on workloads and architectures that it was not fitted to; that needs lightgbm.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import anatune
from anatune import api
from anatune.codegen.cuda.nvrtc import FLAGS, compiler_version
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.measure.cuda.compiler import compile_schedules
from anatune.measure.run.build_processes import Limits
from anatune.resources import data_folder
from anatune.templates.cuda.model.registers import (
    FEATURES,
    LEAST_REGISTERS,
    RegisterTrees,
    register_features,
    register_trees,
)
from bench.results import environment, write_json

DEVICES = ("v100_sxm2", "a100_sxm", "rtx3090", "rtx4090", "h100_sxm")
"""sm_70, sm_80, sm_86, sm_89, sm_90."""
WORKLOADS: dict[str, Workload] = {
    "matmul": anatune.matmul(512, 4096, 1024),
    "matmul_small": anatune.matmul(128, 768, 768),
    "matmul_odd": anatune.matmul(100, 225, 147),
    "batch_matmul": anatune.batch_matmul(12, 128, 128, 64),
    "conv3x3": anatune.conv2d(1, 64, 56, 56, 64, 3, 3, padding=1),
    "conv3x3_7": anatune.conv2d(1, 512, 7, 7, 512, 3, 3, padding=1),
    "conv1x1_stride": anatune.conv2d(1, 256, 28, 28, 512, 1, 1, stride=2),
    "conv7x7": anatune.conv2d(1, 3, 224, 224, 64, 7, 7, stride=2, padding=3),
    "conv_nhwc": anatune.conv2d(1, 128, 28, 28, 128, 3, 3, padding=1, layout="NHWC"),
    "depthwise": anatune.depthwise_conv2d(1, 144, 56, 56, 3, 3, padding=1),
    "max_pool": anatune.max_pool2d(1, 64, 112, 112, 3, 3, stride=2, padding=1),
    "average_pool": anatune.avg_pool2d(1, 256, 28, 28, 2, 2, stride=2),
    "sum": anatune.reduction((512, 1024), axes=(1,)),
}
KINDS = ("random", "good", "planned")
"""Drawn from all legal points; from the best 2 % of a draw, by predicted time; from the plan's first 256 schedules."""
GOOD_SHARE = 0.02
NUM_TREES = 150
CAP = FEATURES.index("register_cap")


class Row(msgspec.Struct):
    """One compiled point."""

    workload: str
    device: str
    arch: str
    kind: str
    schedule: Schedule
    outcome: str
    message: str
    seconds: float
    facts: dict[str, int]
    predicted: dict[str, float]


def draw(name: str, device: str, kind: str, count: int, seed: int) -> tuple[list[Schedule], list[dict[str, float]]]:
    """Return schedules of a kind and what the model says about their resources."""
    model: Any = api.model(WORKLOADS[name], anatune.hardware(device))
    generator = np.random.default_rng(seed)
    if kind == "planned":
        points = model.rank(256).points
        points = points[generator.permutation(len(points))[:count]]
    elif kind == "good":
        points = np.unique(model.space.sample_points(50 * count, seed), axis=0)
        order = np.argsort(model.times(points)[0], kind="stable")
        points = points[order[: max(1, int(GOOD_SHARE * len(points)))]][:count]
    else:
        points = model.space.sample_points(count, seed)
    schedules = [model.space.schedule_of(point) for point in points]
    return schedules, [prediction.resources for prediction in model.predictions(points)]


def collect(path: Path, devices: Sequence[str], num_points: int, limit_s: float, seed: int) -> float:
    """Compile what `path` does not hold yet; return the seconds that it took."""
    known = {(row.kind, row.schedule.key) for row in read(path)}
    groups = [(name, device, kind) for name in WORKLOADS for device in devices for kind in KINDS]
    tasks = []
    for number, (name, device, kind) in enumerate(groups):
        schedules, predicted = draw(name, device, kind, -(-num_points // len(groups)), seed + number)
        tasks += [
            (name, device, kind, schedule, resources)
            for schedule, resources in zip(schedules, predicted, strict=True)
            if (kind, schedule.key) not in known
        ]
    tasks = [tasks[at] for at in np.random.default_rng(seed).permutation(len(tasks))]
    began = time.monotonic()
    with path.open("ab") as stream:
        results = compile_schedules([task[3] for task in tasks], limits=Limits(build_s=limit_s))
        for done, (at, compiled) in enumerate(results, start=1):
            name, device, kind, schedule, resources = tasks[at]
            facts = compiled.facts.numbers() if compiled.facts else {}
            end = (compiled.outcome.value, compiled.message, compiled.seconds, facts, resources)
            row = Row(name, device, schedule.hardware.arch, kind, schedule, *end)
            stream.write(msgspec.json.encode(row) + b"\n")
            stream.flush()
            print(f"\r{done} of {len(tasks)}, {time.monotonic() - began:.0f} s", end="", flush=True)
    print()
    return time.monotonic() - began


def read(path: Path) -> list[Row]:
    """Return the rows of a file; a line that was cut off is left out."""
    rows = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(msgspec.DecodeError):
            rows.append(msgspec.json.decode(line, type=Row))
    return rows


def compiled_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of schedules that compiled, each schedule once."""
    return list({row.schedule.key: row for row in rows if row.outcome == "ok"}.values())


class Score(NamedTuple):
    """How well the model knew the compiler's numbers on some rows."""

    group: str
    rows: int
    shared_equal: float
    registers_counted: float
    """Mean absolute error of the model's own count; the next one: of the regression."""
    registers_expected: float
    spilling: float
    """Share of the rows whose use of local memory was predicted."""


def score(group: str, rows: Sequence[Row], expected: NDArray[np.float64]) -> Score:
    """Judge the model on `rows`; `expected` are the regression's registers."""
    registers = np.array([row.facts["registers"] for row in rows])
    counted = np.array([row.predicted.get("counted_registers", row.predicted["registers_per_thread"]) for row in rows])
    return Score(
        group,
        len(rows),
        float(np.mean([row.facts["shared_bytes"] == row.predicted["shared_bytes_per_block"] for row in rows])),
        float(np.abs(counted - registers).mean()),
        float(np.abs(expected - registers).mean()),
        float(np.mean([(row.facts["local_bytes"] > 0) == (row.predicted["spilled_registers"] > 0) for row in rows])),
    )


def features(rows: Sequence[Row]) -> NDArray[np.float64]:
    """Return `register_features` of the rows."""
    table = np.zeros((len(rows), len(FEATURES)))
    for name, device in sorted({(row.workload, row.device) for row in rows}):
        places = [at for at, row in enumerate(rows) if (row.workload, row.device) == (name, device)]
        model: Any = api.model(WORKLOADS[name], anatune.hardware(device))
        points = np.array([model.space.point_of(rows[at].schedule) for at in places])
        table[places] = register_features(model, points, model.raw_columns(points)[2])
    return table


def train(table: NDArray[np.float64], registers: NDArray[np.float64]) -> Any:
    """Return boosted trees of the absolute error."""
    import lightgbm

    settings = {"objective": "l1", "learning_rate": 0.06, "num_leaves": 16, "min_data_in_leaf": 5, "verbose": -1}
    settings |= {"bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.7, "seed": 0, "num_threads": 1}
    settings |= {"deterministic": True, "force_row_wise": True}
    return lightgbm.train(settings, lightgbm.Dataset(table, registers), num_boost_round=NUM_TREES)


def held_out(table: NDArray[np.float64], registers: NDArray[np.float64], groups: Sequence[str]) -> NDArray[np.float64]:
    """Return for each row what trees say that were fitted without its group."""
    answer = np.zeros(len(registers))
    labels = np.array(groups)
    for group in sorted(set(groups)):
        out = labels == group
        answer[out] = train(table[~out], registers[~out]).predict(table[out])
    return np.clip(answer, LEAST_REGISTERS, table[:, FEATURES.index("register_cap")])


def tables_of(booster: Any) -> RegisterTrees:
    """Return LightGBM's trees as flat tables."""
    roots: list[int] = []
    nodes: list[tuple[int, int, int, float, float]] = []

    def add(tree: dict[str, Any]) -> int:
        number = len(nodes)
        nodes.append((0, number, number, 0.0, round(float(tree.get("leaf_value", 0.0)), 4)))
        if "split_feature" in tree:
            left, right = add(tree["left_child"]), add(tree["right_child"])
            nodes[number] = (int(tree["split_feature"]), left, right, float(tree["threshold"]), 0.0)
        return number

    for tree in booster.dump_model()["tree_info"]:
        roots.append(add(tree["tree_structure"]))
    feature, left, right, threshold, value = zip(*nodes, strict=True)
    return RegisterTrees(FEATURES, tuple(roots), feature, left, right, threshold, value)


def fit(rows: Sequence[Row], folder: Path) -> dict[str, Any]:
    """Fit the regression to `rows`, write it with its data and its card into `folder`, and return the card."""
    table = features(rows)
    registers = np.array([row.facts["registers"] for row in rows], dtype=np.float64)
    folds = np.random.default_rng(0).integers(0, 5, len(rows)).astype(str).tolist()
    splits = {"schedule": folds, "workload": [row.workload for row in rows], "arch": [row.arch for row in rows]}
    errors = {}
    for name, groups in splits.items():
        apart = np.abs(held_out(table, registers, groups) - registers)
        errors[f"held_out_{name}"] = {
            "all": round(float(apart.mean()), 2),
            "median": round(float(np.median(apart)), 2),
            **{kind: round(float(apart[[row.kind == kind for row in rows]].mean()), 2) for kind in KINDS},
        }
    trees = tables_of(train(table, registers))
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join(("workload", "sm", "kind", *FEATURES, "registers"))]
    for row, numbers, target in zip(rows, table, registers, strict=True):
        lines.append(",".join((row.workload, row.arch, row.kind, *(f"{v:.10g}" for v in numbers), f"{target:.0f}")))
    data = "\n".join(lines).encode() + b"\n"
    (folder / "data.csv.gz").write_bytes(gzip.compress(data, mtime=0))
    (folder / "model.json").write_bytes(msgspec.json.encode(trees))
    card = {
        "schema_version": 1,
        "what": "registers of a thread that NVRTC gives to generated CUDA C",
        "compiler": compiler_version(),
        "flags": list(FLAGS),
        "anatune": anatune.__version__,
        "rows": len(rows),
        "archs": sorted({row.arch for row in rows}),
        "workloads": sorted({row.workload for row in rows}),
        "data_sha256": hashlib.sha256(data).hexdigest(),
        "fitted_by": "python -m bench.models.gpu_compiler FILE --fit",
        "licence": "Apache-2.0",
        "mean_absolute_error_counted": round(score("", rows, registers).registers_counted, 2),
    }
    # JSON's texts, numbers and lists are TOML's, too
    card_lines = [f"{key} = {json.dumps(value)}" for key, value in card.items()]
    for name, numbers_of in errors.items():
        card_lines += ["", f"[mean_absolute_error.{name}]"]
        card_lines += [f"{key} = {json.dumps(value)}" for key, value in numbers_of.items()]
    (folder / "card.toml").write_text("\n".join(card_lines) + "\n")
    return card | {"mean_absolute_error": errors}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="keeps what was compiled")
    parser.add_argument("--points", type=int, default=600, help="over all workloads, devices and kinds; 0: only judge")
    parser.add_argument("--hw", nargs="*", default=DEVICES, metavar="NAME")
    parser.add_argument("--limit", type=float, default=5.0, help="seconds for one schedule")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fit", action="store_true", help="fit models/gpu_registers to the file")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    before = len(read(options.file))
    seconds = collect(options.file, options.hw, options.points, options.limit, options.seed) if options.points else 0.0
    everything = read(options.file)
    rows = compiled_rows(everything)
    card = fit(rows, data_folder("models") / "gpu_registers") if options.fit else None
    expected = np.clip(register_trees().evaluate(table := features(rows)), LEAST_REGISTERS, table[:, CAP])
    scores = [score("all", rows, expected)]
    for key in ("kind", "arch", "workload"):
        for value in sorted({getattr(row, key) for row in rows}):
            chosen = [at for at, row in enumerate(rows) if getattr(row, key) == value]
            scores.append(score(value, [rows[at] for at in chosen], expected[chosen]))
    table_out = Table(title="the model against the compiler", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("points", "rows", "shared equal", "regs: counted", "regs: expected", "spilling"):
        table_out.add_column(name, justify="left" if name == "points" else "right")
    for each in scores:
        table_out.add_row(
            each.group, str(each.rows), f"{each.shared_equal:.1%}", f"{each.registers_counted:.1f}",
            f"{each.registers_expected:.1f}", f"{each.spilling:.1%}",
        )  # fmt: skip
    console = Console()
    console.print(table_out)
    failures = Counter(row.outcome for row in everything if row.outcome != "ok")
    console.print(
        f"failed: {dict(failures)}; regs: mean absolute error (expected: fitted to some of these rows, see card)"
    )
    new = len(everything) - before
    if new:
        console.print(f"{new} schedules in {seconds:.0f} s: {new / seconds:.1f} a second")
    if card is not None:
        console.print(card["mean_absolute_error"])
    if options.json:
        results = {"scores": [each._asdict() for each in scores], "failed": dict(failures), "card": card}
        write_json(options.json, environment() | results | {"seed": options.seed, "seconds": seconds, "compiled": new})


if __name__ == "__main__":
    main()
