"""Whole models compiled for GPUs without one: predicted times, where they go, how long compiling takes.

    python -m bench.models_gpu [--hw rtx3090,a100] [--models resnet18,bert_base] [--accuracy standard] [--kernels 3]
                               [--json FILE]

Nothing is measured but the time of compiling: no number here was ever compared with a GPU's clock. What is left to TVM
is not in the times of products, and the transposes that an order of dimensions needs stand apart. With --json FILE a
run may be cut into pieces: what an earlier call compiled is read from it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import anatune
from anatune.network.report import model_dict
from bench.cpu.networks import NETWORKS, network
from bench.results import environment, wide_console, write_json

__all__ = ["compiled", "kernel_lines", "lines_of"]

_DEVICES = "rtx3090,a100,t4"


def compiled(torch: Any, name: str, hw: str, accuracy: str) -> dict[str, Any]:
    """Return what a compiled model says of itself, and the seconds and bytes that it took."""
    made = network(torch, name)
    began, cpu = time.perf_counter(), time.process_time()
    model = anatune.compile(made.module, made.example, hw=hw, accuracy=accuracy)
    told: dict[str, Any] = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        told["library_bytes"] = os.path.getsize(Path(folder) / "model" / "model.so")
    return {**model_dict(model.summary), **told}


def lines_of(results: Mapping[str, dict[str, Any]]) -> list[list[str]]:
    """Return a table line for each model and GPU."""
    lines = []
    for key, found in results.items():
        name, hw, accuracy = key.split()
        device, kernels = anatune.hardware(hw), found["kernels"]
        flop = sum(one["flop"] for one in kernels)
        orders = sorted({one["layout"] for one in kernels if one["layout"]})
        peak = flop / found["predicted_s"] / device.compute.fp32_peak_flop_per_s
        lines.append(
            [
                name,
                hw,
                accuracy,
                f"{1e3 * found['predicted_s']:.3f}",
                f"{1e3 * found['predicted_transposes_s']:.3f}",
                f"{flop / 1e9:.2f}",
                f"{100 * peak:.0f} %",
                "/".join(orders) or "-",
                f"{len(kernels)}, {sum(one['count'] for one in kernels)}",
                str(sum(found["left_to_tvm"].values())),
                str(sum(one["spill_bytes"] > 0 for one in kernels)),
                f"{found['cpu_s']:.1f}",
                f"{found['library_bytes'] / 2**20:.1f}",
            ]
        )
    return lines


def kernel_lines(results: Mapping[str, dict[str, Any]], num_kernels: int) -> list[str]:
    """Return a line for each of the longest kernels."""
    lines = []
    for key, found in results.items():
        for one in sorted(found["kernels"], key=lambda one: -one["predicted_s"])[:num_kernels]:
            share = f"{1e3 * one['predicted_s']:.3f} ms, {100 * one['predicted_share']:.0f} %"
            lines.append(f"{key}: {share}: {one['count']} x {one['workload']} ({one['template']}, {one['bound_by']})")
    return lines


def print_tables(results: Mapping[str, dict[str, Any]], num_kernels: int) -> None:
    """Print the table and the longest kernels."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    heads = [
        "model", "GPU", "accuracy", "products ms", "transposes ms", "GFLOP", "of fp32 peak", "order",
        "kernels, calls", "others", "spill", "CPU s", "MiB",
    ]  # fmt: skip
    made = Table(title="Predicted, not measured", box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for number, head in enumerate(heads):
        made.add_column(head, justify="right" if number > 2 else "left", no_wrap=True)
    for line in lines_of(results):
        made.add_row(*line)
    console = wide_console(150)
    console.print(made)
    for text in kernel_lines(results, num_kernels):
        console.print(text, highlight=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", default=_DEVICES, help="comma-separated")
    parser.add_argument("--models", default=",".join(NETWORKS), help="comma-separated")
    parser.add_argument("--accuracy", default="standard", choices=("standard", "relaxed"))
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="the longest ones of each model, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results: read if it is there, extended")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    names = options.models.split(",")
    if unknown := [name for name in names if name not in NETWORKS]:
        raise SystemExit(f"bench.models_gpu: --models {unknown[0]}, expected some of {', '.join(NETWORKS)}")
    from bench.cpu.rivals import find_torch

    torch = find_torch(1)
    results: dict[str, dict[str, Any]] = {}
    if options.json is not None and options.json.exists():
        results = msgspec.json.decode(options.json.read_bytes())["results"]
    for name in names:
        for hw in options.hw.split(","):
            key = f"{name} {hw} {options.accuracy}"
            if key not in results:
                results[key] = compiled(torch, name, hw, options.accuracy)
                if options.json is not None:
                    write_json(
                        options.json, {"environment": environment(torch=str(torch.__version__)), "results": results}
                    )
    print_tables(results, options.kernels)


if __name__ == "__main__":
    main()
