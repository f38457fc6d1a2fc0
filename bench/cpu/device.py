"""anatune against oneDNN, MKL, PyTorch and MetaSchedule on this CPU: BERT, ResNet-18 and Yolo-9000 layers.

    python -m bench.cpu.device [--threads 1] [--layers R1,M*] [--rounds 9] [--schedules FILE] [--json FILE]
                               [--metaschedule 192] [--processes 10] [--layout NHWC] [--hw host]
                               [--dtype uint8xint8]

Everything that is compared takes turns in this one process, between an FMA probe and a GEMM tile fed from L2; only
samples that both probes call quiet count, and ratios are taken within a round (docs/bench/cpu.device.md). Needs TVM and
a C compiler; without PyTorch (--no-rivals) anatune is compared with itself only. Constants are packed beforehand on all
sides.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cpu.comparison import OURS, LayerResult, bandwidth_bound_s, print_tables, ratio_text, row_of, targets
from bench.cpu.layers import LAYERS
from bench.cpu.narrow_rivals import DTYPES
from bench.cpu.quiet import Method, Sample, Thresholds, interleave, loop
from bench.layers import Layer, choose

if TYPE_CHECKING:
    from anatune.core.schedule import Schedule
    from bench.cpu.probes import Reading
    from bench.cpu.tuned import Tuned


def say(text: str) -> None:
    """Show progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def _our_methods(
    tuned: Tuned, threads: int, sample_s: float, notes: list[str]
) -> tuple[dict[str, Method], dict[str, str]]:
    """Return anatune's methods, each schedule once, and which names run the same one."""
    import anatune
    from anatune.errors import AnatuneError

    methods: dict[str, Method] = {}
    same: dict[str, str] = {}
    names: dict[str, str] = {}
    for name, schedule in tuned.schedules.items():
        label = f"anatune:{name}"
        if schedule.key in names:
            same[label] = names[schedule.key]
            continue
        try:
            kernel = anatune.build(schedule, threads=threads)
            methods[label] = loop(kernel.random_call(), sample_s)
            names[schedule.key] = label
        except AnatuneError as error:
            notes.append(f"{tuned.layer} {label}: {error}")
    return methods, same


def measure_layer(
    layer: Layer,
    tuned: Tuned | None,
    torch: Any,
    probes: Callable[[], Reading],
    options: argparse.Namespace,
    known: Sequence[Sample],
    notes: list[str],
) -> LayerResult:
    """Let everything take turns on one layer."""
    sample_s = options.sample_ms / 1000
    methods: dict[str, Method] = {}
    same: dict[str, str] = {}
    meta_s = math.nan
    with torch.inference_mode() if torch is not None else nullcontext():
        if tuned is not None:
            methods, same = _our_methods(tuned, options.threads, sample_s, notes)
            notes += tuned.notes
            if options.dtype != "float32":
                import anatune

                plan = anatune.plan(layer.workload(options.layout), anatune.hardware(options.hw)).schedules[0]
                call = anatune.build(plan, threads=options.threads).random_call()
                methods["float32:plan"] = loop(call, sample_s)
        if torch is not None:
            from bench.cpu.rivals import best_variants, kernel_methods, rivals

            calls = rivals(torch, layer, notes, options.dtype)
            theirs = best_variants(kernel_methods(torch, calls, sample_s))
            methods.update({name: method for name, method in theirs.items() if not name.startswith("plain:")})
        if options.metaschedule:
            from bench.cpu import metaschedule

            found = metaschedule.search(layer, options.metaschedule, options.threads, options.metaschedule_folder)
            methods["metaschedule:best"] = loop(metaschedule.timed_call(layer, found), sample_s)
            meta_s = float(found["wall_s"])
        samples = interleave(
            methods,
            probes,
            options.rounds,
            most_rounds=options.most_rounds,
            known=known,
            patience_s=options.patience,
            label=layer.name,
        )
    result = LayerResult(layer, samples, same, metaschedule_s=meta_s)
    if tuned is not None and tuned.plan is not None and options.processes:
        result.process_spread = _process_spread(layer.name, tuned.plan, options)
    if tuned is not None:
        result.tune_s, result.num_trials, result.num_failed = tuned.tune_s, tuned.num_trials, tuned.num_failed
    return result


def _process_spread(layer: str, plan: Schedule, options: argparse.Namespace) -> float:
    """Return the slowest over the fastest of `options.processes` processes that run `plan`, less 1."""
    from bench.cpu.spread import build_all, luck_of, processes_say

    with tempfile.TemporaryDirectory(prefix="anatune-bench-") as folder:
        build_all({layer: plan}, Path(folder), threads=options.threads)
        return luck_of(list(processes_say(Path(folder), [layer], options.processes)))[layer].spread


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--hw", default="host", help="hardware spec that is planned and tuned for (calibrated: its file)"
    )
    parser.add_argument("--threads", type=int, default=1, choices=range(1, 129), metavar="N")
    parser.add_argument("--layers", help="comma-separated names, patterns (R*) and groups (bert, resnet18, yolo9000)")
    parser.add_argument("--layout", default="NHWC", choices=("NHWC", "NCHW"), help="of anatune's convolutions")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="of the operands")
    parser.add_argument("--trials", type=int, default=64, help="of anatune; 0: the plan alone")
    parser.add_argument("--judged", default="32", choices=OURS, help="whose ratios are shown")
    parser.add_argument(
        "--schedules", type=Path, metavar="FILE", help="JSON of schedules: read if it is there, extended"
    )
    parser.add_argument("--records", type=Path, metavar="FILE", help="record file of the tuning runs")
    parser.add_argument("--tune-only", action="store_true", help="fill the file of schedules and stop")
    parser.add_argument("--seed", type=int, default=0, help="of tuning")
    parser.add_argument("--rounds", type=int, default=9, help="quiet samples wanted of each method")
    parser.add_argument("--most-rounds", type=int, help="rounds at most (3 x --rounds)")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds a layer to wait for a quiet machine")
    parser.add_argument("--sample-ms", type=float, default=12.0, help="length of a sample")
    parser.add_argument("--cores", help="comma-separated CPUs to stay on while timing (as many as --threads or more)")
    parser.add_argument("--no-rivals", action="store_true", help="without PyTorch, oneDNN and MKL")
    parser.add_argument("--metaschedule", type=int, default=0, metavar="N", help="also MetaSchedule with N trials")
    parser.add_argument("--metaschedule-folder", type=Path, default=Path("metaschedule"), help="where its results stay")
    parser.add_argument("--processes", type=int, default=0, metavar="N", help="also run the plan in N processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, all samples too")
    return parser


def _tune(layers: Sequence[Layer], hardware: Any, options: argparse.Namespace) -> dict[str, Tuned]:
    """Return the schedules of `layers`: from the file, or planned and tuned now."""
    from bench.cpu.tuned import TunedFile, tune_layer

    file = TunedFile.open(options.schedules, hardware.name, options.threads, options.layout, options.dtype)
    folder = Path(tempfile.mkdtemp(prefix="anatune-bench-")) if options.records is None else None
    records = options.records if folder is None else folder / "tuning.sqlite"
    for index, layer in enumerate(layers):
        there = file.layers.get(layer.name)
        if there is not None and (options.trials == 0 or there.num_trials > 0):
            continue
        say(f"tuning {layer.name} ({index + 1} of {len(layers)}), {options.trials} trials")
        tuned = tune_layer(
            layer,
            hardware,
            threads=options.threads,
            layout=options.layout,
            dtype=options.dtype,
            trials=options.trials,
            records=records,
            seed=options.seed,
        )
        say(
            f"  plan {tuned.plan_s:.2f} s, {tuned.num_trials} trials in {tuned.tune_s:.1f} s, {tuned.num_failed} failed"
        )
        file.layers[layer.name] = tuned
        file.save(options.schedules)
    return {layer.name: file.layers[layer.name] for layer in layers}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    layers = choose(options.layers, LAYERS)
    # Both thread pools live in this process: TVM's workers must sleep soon after a call, and must not pin this thread
    # (PyTorch's workers would inherit its core). Read when TVM starts its pool.
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    if options.threads > 1:
        os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "10000")
        os.environ.setdefault("TVM_BIND_THREADS", "0")
    import anatune

    hardware = anatune.hardware(options.hw)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    schedules = _tune(layers, hardware, options)
    if options.tune_only:
        return
    if options.cores:
        cores = {int(core) for core in options.cores.split(",")}
    if cores:  # tuning may have pinned this process
        os.sched_setaffinity(0, cores)
    torch = None
    if not options.no_rivals:
        from bench.cpu.rivals import find_torch

        torch = find_torch(options.threads)
    from bench.cpu.probes import Probes

    probes = Probes(options.threads)
    rate = hardware.peak_flop_per_s(options.dtype.partition("x")[0]) / hardware.peak_flop_per_s("float32")
    results: list[LayerResult] = []
    notes: list[str] = []
    known: list[Sample] = []
    started = time.perf_counter()
    for index, layer in enumerate(layers):
        result = measure_layer(layer, schedules.get(layer.name), torch, probes, options, known, notes)
        result.bandwidth_s = bandwidth_bound_s(layer, hardware, options.threads, options.dtype)
        result.rate = rate
        known += [sample for samples in result.samples.values() for sample in samples]
        results.append(result)
        row = row_of(result, Thresholds.of(known), options.judged)
        rates = ", ".join(f"{name} {rate / 1e9:.1f}" for name, rate in row.rates.items())
        ratio = ratio_text(row.ratios.get("better")) or "-"
        seconds = time.perf_counter() - started
        say(f"{layer.name} ({index + 1} of {len(layers)}, {seconds:.0f} s): {rates}; /better {ratio}")
    thresholds = Thresholds.of(known)
    rows = [row_of(result, thresholds, options.judged) for result in results]
    peak = rate * thresholds.fma / 0.93
    found = targets(results, rows, peak, options.judged)
    print_tables(rows, found, options.judged)
    quiet = sum(map(thresholds.quiet, known)) / max(len(known), 1)
    print(
        f"{options.threads} thread(s), {hardware.name}: probed peak {peak / 1e9:.1f} GFLOP/s, tile from L2 "
        f"{thresholds.gemm / 0.93 / 1e9:.1f}; {100 * quiet:.0f} % of {len(known)} samples were quiet"
    )
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > options.threads + 0.5:
        notes.append(f"the machine is busy (load {os.getloadavg()[0]:.1f}): results of several threads mean little")
    print(*notes, sep="\n")
    if options.json:
        from bench.results import environment, write_json

        settings = {name: str(value) for name, value in vars(options).items()}
        content = {
            "environment": environment(**settings, torch=str(torch.__version__) if torch is not None else None),
            "hardware": hardware.name,
            "thresholds": thresholds,
            "rows": rows,
            "targets": found,
            "layers": {result.layer.name: result for result in results},
            "notes": notes,
        }
        write_json(options.json, content)


if __name__ == "__main__":
    main()
