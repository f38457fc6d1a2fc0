"""Winograd against direct kernels on this CPU: oneDNN's, and anatune's own; 3x3 layers of 64 channels and more.

    python -m bench.cpu.winograd [--direct FILE] [--layers R1,Y*] [--layout NHWC] [--trials 32] [--schedules FILE]

Of each layer F(2x2, 3x3) and F(4x4, 3x3) are tuned alone (template winograd, accuracy standard and relaxed), and the
template cpu, or taken from FILE, which `bench.cpu.device --schedules` wrote. Then all take turns with oneDNN's kernels
(`bench.cpu.quiet`). Needs TVM and a C compiler; without PyTorch (--no-rivals) there is no oneDNN.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anatune
from anatune.core.schedule import Schedule
from bench.cpu.layers import LAYERS
from bench.cpu.quiet import Method, Sample, Thresholds, geometric_mean, interleave, loop, paired_ratio, quiet_or_all
from bench.cpu.tuned import Tuned, TunedFile, tune_layer
from bench.layers import Convolution, Layer, choose

__all__ = ["AIMS", "choices", "judged", "ratios_of"]

AIMS = {"f2": 1.35, "f4": 1.7}
"""Aim of the geometric mean: speed over the better of oneDNN and our own direct kernel."""
_ACCURACY = {"f2": "standard", "f4": "relaxed"}
_LEAST_CHANNELS, _LEAST_SIZE = 64, 14


def judged(layer: Layer) -> bool:
    """Whether the aims are about a layer."""
    return (
        isinstance(layer, Convolution)
        and (layer.kernel, layer.stride) == (3, 1)
        and min(layer.channels, layer.filters) >= _LEAST_CHANNELS
        and layer.size >= _LEAST_SIZE
    )


def choices(layer: Layer, options: argparse.Namespace, file: TunedFile, direct: TunedFile | None) -> dict[str, Tuned]:
    """Return what anatune says of a layer: "f2", "f4" and "direct"; from the files, or tuned now."""
    found = {}
    limits = {name: {"template": "winograd", "accuracy": accuracy} for name, accuracy in _ACCURACY.items()}
    for name, own in {**limits, "direct": {"template": "cpu"}}.items():
        if name == "direct" and direct is not None and layer.name in direct.layers:
            found[name] = direct.layers[layer.name]
            continue
        key = f"{layer.name}:{name}"
        if key not in file.layers:
            print(f"tuning {key}, {options.trials} trials", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="anatune-bench-") as folder:
                file.layers[key] = tune_layer(
                    layer, anatune.hardware(options.hw), threads=1, layout=options.layout, trials=options.trials,
                    records=Path(folder) / "tuning.sqlite", budgets=(options.trials,), **own,
                )  # fmt: skip
            file.save(options.schedules)
        found[name] = file.layers[key]
    return found


def _methods(found: Mapping[str, Tuned], sample_s: float) -> tuple[dict[str, Method], dict[str, Schedule]]:
    """Return what takes turns: the best after all trials, and of Winograd the plan."""
    schedules: dict[str, Schedule] = {}
    for name, tuned in found.items():
        if name != "direct" and tuned.plan is not None:
            schedules[f"{name}:plan"] = tuned.plan
        if tuned.after:
            schedules[name] = tuned.after[max(tuned.after, key=int)]
    built = {name: anatune.build(schedule, threads=1).random_call() for name, schedule in schedules.items()}
    return {name: loop(call, sample_s) for name, call in built.items()}, schedules


def ratios_of(samples: Mapping[str, Sequence[Sample]], thresholds: Thresholds) -> dict[str, float]:
    """Return the speed of each Winograd method over the faster direct one, and over each."""
    rivals = {name: taken for name, taken in samples.items() if name == "direct" or name.startswith("onednn")}
    medians = {
        name: statistics.median(one.time_s for one in quiet_or_all(taken, thresholds)[0])
        for name, taken in rivals.items()
    }
    better = min(medians, key=lambda name: medians[name])
    found = {}
    for name, taken in samples.items():
        if name not in rivals and (ratio := paired_ratio(list(taken), list(samples[better]), thresholds)):
            found[name] = ratio.value
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", default="host")
    parser.add_argument("--layers", help="comma-separated names and patterns; left out: those that the aims are about")
    parser.add_argument("--layout", default="NHWC", choices=("NHWC", "NCHW"), help="of anatune's convolutions")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--direct", type=Path, metavar="FILE", help="schedules of bench.cpu.device")
    parser.add_argument("--schedules", type=Path, metavar="FILE", help="read if it is there, extended")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    os.environ["TVM_NUM_THREADS"] = "1"
    layers = [layer for layer in choose(options.layers, LAYERS) if options.layers or judged(layer)]
    file = TunedFile.open(options.schedules, options.hw, 1, options.layout)
    direct = TunedFile.open(options.direct, options.hw, 1, options.layout) if options.direct else None
    cores = os.sched_getaffinity(0)
    tuned = {layer.name: choices(layer, options, file, direct) for layer in layers}
    os.sched_setaffinity(0, cores)  # tuning may have pinned this process
    torch: Any = None
    if not options.no_rivals:
        from bench.cpu.rivals import find_torch

        torch = find_torch(1)
    from bench.cpu.probes import Probes

    probes, known, notes = Probes(1), [], []
    rows: list[dict[str, Any]] = []
    for layer in layers:
        with torch.inference_mode() if torch is not None else nullcontext():
            methods, schedules = _methods(tuned[layer.name], 0.012)
            if torch is not None:
                from bench.cpu.rivals import best_variants, kernel_methods, rivals

                theirs = best_variants(kernel_methods(torch, rivals(torch, layer, notes), 0.012))
                methods.update({name: one for name, one in theirs.items() if name.startswith("onednn")})
            samples = interleave(methods, probes, options.rounds, known=known, label=layer.name)
        known += [sample for taken in samples.values() for sample in taken]
        thresholds = Thresholds.of(known)
        times = {
            name: statistics.median(one.time_s for one in quiet_or_all(taken, thresholds)[0])
            for name, taken in samples.items()
        }
        row = {
            "layer": layer.name,
            "text": layer.text,
            "gflop_per_s": {name: layer.flop / time_s / 1e9 for name, time_s in times.items()},
            "over_better": ratios_of(samples, thresholds),
            "schedules": {name: schedule.describe() for name, schedule in schedules.items()},
        }
        rows.append(row)
        print(_line(row), flush=True)
    for name, aim in AIMS.items():
        for method, what in ((name, f"after {options.trials} trials, aim {aim}"), (f"{name}:plan", "the plan's")):
            values = [row["over_better"][method] for row in rows if method in row["over_better"]]
            if values:
                print(f"{name}: geometric mean {geometric_mean(values):.3f} of {len(values)} layers, {what}")
    print(*notes, sep="\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def _line(row: Mapping[str, Any]) -> str:
    rates = "  ".join(f"{name} {rate:.0f}" for name, rate in row["gflop_per_s"].items())
    ratios = "  ".join(f"{name} {ratio:.2f}" for name, ratio in row["over_better"].items())
    return f"{row['layer']:4} {row['text']:22} GFLOP/s: {rates} | over the better direct one: {ratios}"


if __name__ == "__main__":
    main()
