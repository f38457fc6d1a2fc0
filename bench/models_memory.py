"""Memory and time that whole models cost beside their kernels: compiling, loading, running.

    python -m bench.models_memory [--models resnet50,vgg16,bert_base] [--sources onnx,module] [--folder FOLDER]
                                  [--json FILE]

Each number comes from a process of its own. What imports cost is no part of it: a small model is compiled (loaded, run)
first. Memory is what is resident, at most (Linux), and counts the file or module that is compiled; the largest live set
of activations is that of the graph in its own order.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.cpu.comparison import Target
from bench.cpu.networks import NETWORKS, network, onnx_file
from bench.results import environment, wide_console, write_json

__all__ = ["aims", "live_bytes"]

_COMPILE, _RUN, _LOAD_S = 4.0, 1.3, 0.3
"""The issue's limits: of the weights; of the weights beside the live set; seconds."""


def live_bytes(graph: Any) -> int:
    """Return the largest sum of the activations that are needed at one time, results and inputs included, bytes.

    Parameters
    ----------
    graph : anatune.network.graph.nodes.Graph
    """
    from anatune.network.graph.nodes import Constant, iterate_values

    nodes = graph.nodes()
    last = {one: place for place, node in enumerate(nodes) for one in iterate_values(node.arguments)}
    last.update((one, len(nodes)) for one in graph.outputs)
    live = {one: _bytes(one) for one in graph.inputs}
    most = sum(live.values())
    for place, node in enumerate(nodes):
        reads = [one for one in iterate_values(node.arguments) if not isinstance(one, Constant)]
        if node.op == "reshape":  # another name for the same memory
            last[reads[0]] = max(last[reads[0]], last.get(node, place))
            continue
        live[node] = _bytes(node)
        most = max(most, sum(live.values()))
        live = {key: size for key, size in live.items() if last.get(key, place) > place}
    return most


def _bytes(value: Any) -> int:
    from anatune.network.graph.nodes import TensorType

    kinds = (value.type,) if isinstance(value.type, TensorType) else value.type
    return sum(math.prod(kind.shape) * np.dtype(kind.dtype).itemsize for kind in kinds)


# ---- in processes of their own ------------------------------------------------------------------------------


def _status(name: str) -> int:
    """Return a line of this process's status, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _compile(name: str, source: str, folder: Path) -> dict[str, float]:
    """Compile and save a model; return what that cost."""
    import torch

    import anatune
    from anatune.network.graph.passes.layouts import apply_layout, choose_order
    from anatune.network.graph.passes.order import CPU, CPU_KERNELS, run_passes
    from anatune.network.relax.frontends import import_model

    torch.set_num_threads(1)
    small = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.ReLU()).eval()
    x = torch.zeros(1, 4, 8, 8)
    torch.onnx.export(small, (x,), str(folder / "small.onnx"), external_data=False, verbose=False)
    for warm in (small, folder / "small.onnx"):
        anatune.compile(warm, x if warm is small else None, threads=1)
    before = _status("VmRSS")
    if source == "module":
        made = network(torch, name)
        model, example = made.module, made.example
    else:
        model, example = folder / f"{name}.onnx", None
    _forget_peak()
    began = time.process_time()
    compiled = anatune.compile(model, example, threads=1)
    seconds, peak = time.process_time() - began, _status("VmHWM") - before
    compiled.save(folder / name)
    graph = import_model(model, example).graph()
    weights = sum(one.array.nbytes for one in graph.constants())
    whole = run_passes(CPU, graph)
    live = live_bytes(run_passes(CPU_KERNELS, apply_layout(whole, choose_order(whole))))
    return {"seconds": seconds, "peak": peak, "weights": weights, "live": live}


def _run(name: str, _: str, folder: Path) -> dict[str, float]:
    """Load and run a saved model; return what that cost."""
    import tvm  # noqa: F401 - its own import does not count

    began = time.perf_counter()
    import anatune

    model = anatune.load(folder / name)
    seconds = time.perf_counter() - began
    inputs = model.random_inputs()
    del model
    before = _status("VmRSS")
    _forget_peak()
    model = anatune.load(folder / name)
    for _ in range(3):
        assert np.isfinite(model(*inputs)).all()
    return {"seconds": seconds, "peak": _status("VmHWM") - before}


# ---- the table ----------------------------------------------------------------------------------------------


def measured(name: str, sources: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return what one model costs."""
    import torch

    if "onnx" in sources:
        with torch.no_grad():
            onnx_file(torch, network(torch, name), folder)
    found: dict[str, Any] = {source: _child("_compile", name, source, folder) for source in sources}
    return {**found, "run": _child("_run", name, "", folder)}


def _child(task: str, name: str, source: str, folder: Path) -> dict[str, float]:
    with tempfile.NamedTemporaryFile() as answer:
        program = (
            "import json, sys; from pathlib import Path; from bench import models_memory\n"
            "task, name, source, folder, answer = sys.argv[1:]\n"
            "found = getattr(models_memory, task)(name, source, Path(folder))\n"
            "Path(answer).write_text(json.dumps(found))\n"
        )
        given = [sys.executable, "-W", "ignore", "-c", program, task, name, source, str(folder), answer.name]
        subprocess.run(given, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return dict(json.loads(Path(answer.name).read_text()))


def aims(results: dict[str, dict[str, Any]]) -> list[Target]:
    """Return what became of the issue's limits, the worst model of each."""
    found = []
    for source in ("onnx", "module"):
        ratios = {name: one[source]["peak"] / one[source]["weights"] for name, one in results.items() if source in one}
        if ratios:
            worst = max(ratios, key=ratios.__getitem__)
            text = f"compiling ({source}): peak memory / weights"
            found.append(Target(text, ratios[worst], f"<= {_COMPILE:g}", ratios[worst] <= _COMPILE, worst))
    loads = {name: one["run"]["seconds"] for name, one in results.items()}
    worst = max(loads, key=loads.__getitem__)
    found.append(Target("loading, s", loads[worst], f"<= {_LOAD_S:g}", loads[worst] <= _LOAD_S, worst))
    shares = {name: one["run"]["peak"] / _allowed(one) for name, one in results.items()}
    worst = max(shares, key=shares.__getitem__)
    found.append(
        Target("running: peak memory / (1.3 weights + live set)", shares[worst], "<= 1", shares[worst] <= 1, worst)
    )
    return found


def _allowed(one: dict[str, Any]) -> float:
    told = one.get("onnx") or one["module"]
    return float(_RUN * told["weights"] + told["live"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(NETWORKS), help="comma-separated")
    parser.add_argument("--sources", default="onnx,module", help="what is compiled: an ONNX file, an nn.Module")
    parser.add_argument("--folder", type=Path, default=Path("models_memory"), help="exports and compiled models")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results: read if it is there, extended")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    known = json.loads(options.json.read_text())["results"] if options.json and options.json.exists() else {}
    results: dict[str, dict[str, Any]] = dict(known)
    for name in options.models.split(","):
        results[name] = {**results.get(name, {}), **measured(name, options.sources.split(","), options.folder)}
        if options.json:
            write_json(options.json, {"environment": environment(), "results": results})
    _print(results)


def _print(results: dict[str, dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console = wide_console(150)
    table = Table(title="MB (MB = 1e6 bytes), s", box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    heads = ["model", "weights", "live set", "source", "CPU s", "peak", "/ weights", "load s", "running", "/ allowed"]
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number in (0, 3) else "right")
    for name, one in results.items():
        for source in ("onnx", "module"):
            if source not in one:
                continue
            told, run = one[source], one["run"]
            cells = [
                f"{told['weights'] / 1e6:.1f}", f"{told['live'] / 1e6:.1f}", source, f"{told['seconds']:.1f}",
                f"{told['peak'] / 1e6:.1f}", f"{told['peak'] / told['weights']:.2f}", f"{run['seconds']:.2f}",
                f"{run['peak'] / 1e6:.1f}", f"{run['peak'] / _allowed(one):.2f}",
            ]  # fmt: skip
            table.add_row(name, *cells)
    console.print(table)
    for aim in aims(results):
        console.print(f"{aim.text}: {aim.value:.2f} ({aim.note}), wanted {aim.aim}: {'met' if aim.met else 'MISSED'}")


if __name__ == "__main__":
    main()
