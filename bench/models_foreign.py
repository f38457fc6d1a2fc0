"""Models of others, in small (`bench.cpu.foreign`): which compile, by which route, and what they compute.

    python -m bench.models_foreign [--models unet,lstm] [--routes module onnx] [--times] [--json FILE]

Each model is compiled in a process of its own from PyTorch's module and from the ONNX file that PyTorch exports of it,
run on its inputs and compared with PyTorch in float64. With --times the compiled model, eager PyTorch, TorchInductor
and ONNX Runtime (where they are installed) take turns on one thread: medians, and the best of the others over ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ROUTES", "tried"]

ROUTES = ("module", "onnx")
_CLOSE = 1e-4
"""Largest error that counts as right, over the largest magnitude of a result."""
_ROUNDS = 15
_LIMIT_S = 900


def tried(name: str, route: str, *, times: bool) -> dict[str, Any]:
    """Return what becomes of a model by a route: "state", "error" or "why", "compile_s", "kernels", "times_s"."""
    import numpy as np
    import torch

    import anatune
    from anatune.errors import AnatuneError
    from bench.cpu.foreign import foreign

    torch.set_num_threads(1)
    made = foreign(torch, name)
    inputs = [one.numpy() for one in made.example]
    wide = [one.double() if one.is_floating_point() else one for one in made.example]
    with torch.no_grad():
        try:
            torch.set_default_dtype(torch.float64)
            expected = made.module.double()(*wide).numpy()
        except RuntimeError:  # an operator that has no float64
            expected = None
        finally:
            torch.set_default_dtype(torch.float32)
            made.module.float()
        expected = made.module(*made.example).numpy().astype(np.float64) if expected is None else expected
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        try:
            source: Any = made.module
            if route == "onnx":
                source = str(Path(folder) / "model.onnx")
                try:
                    with torch.no_grad():
                        torch.onnx.export(made.module, made.example, source, external_data=False, verbose=False)
                except Exception as error:  # noqa: BLE001  of exporters
                    return {"state": "not exported", "why": _first(error)}
                began = time.process_time()
            compiled = anatune.compile(source, inputs if route == "onnx" else made.example, threads=1, check=False)
        except AnatuneError as error:
            return {"state": "refused", "why": str(error)}
        except Exception as error:  # noqa: BLE001  that there are none is what is looked for
            return {"state": "raw", "why": f"{type(error).__name__}: {_first(error)}"}
        seconds = time.process_time() - began
        found = np.asarray(compiled(*inputs)).astype(np.float64)
        error_of = float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))
        answer = {"state": "right" if error_of <= _CLOSE else "wrong", "error": error_of, "compile_s": seconds}
        answer["kernels"] = len(compiled.summary.kernels)
        if times:
            calls = {"anatune": compiled.prepared(*inputs), **_rivals(torch, made, Path(folder))}
            answer["times_s"] = _timed(calls)
        return answer


def _first(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def _rivals(torch: Any, made: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return calls of others that can run a model."""

    def eager() -> Any:
        with torch.no_grad():
            return made.module(*made.example)

    calls: dict[str, Callable[[], Any]] = {"eager": eager}
    try:
        import torch._inductor.config as settings

        settings.freezing = True
        fast = torch.compile(made.module)

        def compiled() -> Any:
            with torch.no_grad():
                return fast(*made.example)

        compiled()
        calls["inductor"] = compiled
    except Exception as error:  # noqa: BLE001  whatever a compiler raises
        print(f"{made.name}: inductor: {_first(error)}", file=sys.stderr)
    try:
        import onnxruntime

        path = folder / "rival.onnx"
        with torch.no_grad():
            torch.onnx.export(made.module, made.example, str(path), external_data=False, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]
        feeds = dict(zip(names, (one.numpy() for one in made.example), strict=True))
        session.run(None, feeds)
        calls["onnxruntime"] = lambda: session.run(None, feeds)
    except Exception as error:  # noqa: BLE001  it is not installed, or cannot
        print(f"{made.name}: onnxruntime: {_first(error)}", file=sys.stderr)
    return calls


def _timed(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median time of each of some calls, which take turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
        call()
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in taken.items()}


def _in_process(name: str, route: str, times: bool) -> dict[str, Any]:
    words = [sys.executable, "-m", "bench.models_foreign", "--one", name, route, *(["--times"] if times else [])]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"state": "raw", "why": f"not done after {_LIMIT_S} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        answer = {"state": "raw", "why": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:200]}
    return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the models and print what became of them."""
    from rich.table import Table

    from bench.cpu.foreign import FOREIGN
    from bench.results import environment, progress_bar, wide_console, write_json

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", help="names, with commas; all by default")
    parser.add_argument("--routes", nargs="+", default=ROUTES, choices=ROUTES)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="models that are in it are not tried again")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        warnings.simplefilter("ignore")
        print(json.dumps(tried(*options.one, times=options.times)))
        return 0
    known = json.loads(options.json.read_text())["models"] if options.json and options.json.exists() else {}
    wanted = options.models.split(",") if options.models else sorted(FOREIGN)
    with progress_bar() as bar:
        for name in bar.track(wanted, description="models"):
            for route in options.routes:
                if route not in known.setdefault(name, {}):
                    known[name][route] = _in_process(name, route, options.times)
            if options.json:
                write_json(options.json, {"environment": environment(), "models": known})
    table = Table(
        "model", *(f"{route}: state" for route in options.routes), "error", "compile, CPU s", "others over ours"
    )
    for name in wanted:
        rows = [known[name][route] for route in options.routes]
        right = next((row for row in rows if row["state"] == "right"), rows[0])
        times = right.get("times_s", {})
        ratios = {who: seconds / times["anatune"] for who, seconds in times.items() if who != "anatune"}
        best = min(ratios, key=ratios.__getitem__) if ratios else ""
        table.add_row(
            name, *(row["state"] for row in rows), f"{right.get('error', float('nan')):.0e}",
            f"{right.get('compile_s', float('nan')):.1f}", f"{best} {ratios[best]:.2f}" if best else "",
        )  # fmt: skip
    console = wide_console(120)
    console.print(table)
    for name in wanted:
        for route in options.routes:
            if known[name][route]["state"] != "right":
                console.print(f"{name}, {route}: {known[name][route].get('why', 'differs')}", markup=False)
    for route in options.routes:
        console.print(f"{route}: {dict(Counter(known[name][route]['state'] for name in wanted))}", markup=False)
    either = sum(any(known[name][route]["state"] == "right" for route in options.routes) for name in wanted)
    console.print(f"right by one route at least: {either} of {len(wanted)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
