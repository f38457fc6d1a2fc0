"""Models of others, in small (`bench.cpu.foreign`): which compile, by which route, and what they compute.

    python -m bench.models_foreign [--models unet,lstm] [--routes module onnx] [--times] [--json FILE] [--page FILE]

Each model is compiled in a process of its own from PyTorch's module and from the ONNX file that PyTorch exports of it,
run on its inputs and compared with PyTorch in float64. With --times the compiled model of the first route that is
right, eager PyTorch, TorchInductor and ONNX Runtime (where they are installed) take turns on one thread: medians of the
process's CPU time. What FILE has is not tried again, so that a run that was ended goes on; --page writes a page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["ROUTES", "tried"]

ROUTES = ("module", "onnx")
_CLOSE = 1e-4
"""Largest error that counts as right, over the largest magnitude of a result."""
_ROUNDS, _ROUND_S = 31, 5e-4
"""Turns of each engine, and how long one is at least: short calls are repeated. Systems share cores in longer ones."""
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
            calls = {"anatune": lambda: compiled(*inputs), **_rivals(torch, made, Path(folder))}
            answer["times_s"] = _timed(calls)
        return answer


def _first(error: BaseException) -> str:
    from rich.text import Text

    said = Text.from_ansi(str(error)).plain  # without colours
    return next((line.strip() for line in said.splitlines() if line.strip()), type(error).__name__)[:200]


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
    """Return the median time of each of some calls, which take turns in a random order."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    counts = {}
    for name, call in calls.items():
        call()
        counts[name] = max(1, round(_ROUND_S / min(_seconds(call, 1) for _ in range(3))))
    order, chance = list(calls), random.Random(0)
    for _ in range(_ROUNDS):
        chance.shuffle(order)
        for name in order:
            taken[name].append(_seconds(calls[name], counts[name]))
    return {name: statistics.median(times) for name, times in taken.items()}


def _seconds(call: Callable[[], Any], count: int) -> float:
    """Return the time of a call, over a few: of the process, whose one thread computes, so that others do not count."""
    began = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - began) / count


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


def _is_tried(routes: Mapping[str, Mapping[str, Any]], route: str, times: bool) -> bool:
    """Whether nothing more is to be found out of a model by a route: one of its routes is timed, where times are."""
    right = [one for one in routes.values() if one["state"] == "right"]
    return route in routes and not (times and routes[route] in right and not any("times_s" in one for one in right))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the models and print what became of them."""
    from rich.table import Table

    from bench.cpu.foreign import FOREIGN
    from bench.cpu.foreign_table import HEADINGS, page, rows, said
    from bench.results import environment, progress_bar, wide_console, write_json

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", help="names, with commas; all by default")
    parser.add_argument("--routes", nargs="+", default=ROUTES, choices=ROUTES)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what is in it is not tried again")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page of the docs about all that --json has")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        warnings.simplefilter("ignore")
        print(json.dumps(tried(*options.one, times=options.times)))
        return 0
    known = json.loads(options.json.read_text())["models"] if options.json and options.json.exists() else {}
    wanted = options.models.split(",") if options.models else sorted(FOREIGN)
    document = {"environment": environment(processor=_processor(), libraries=_libraries()), "models": known}
    with progress_bar() as bar:
        for name in bar.track(wanted, description="models"):
            for route in options.routes:
                if not _is_tried(known.setdefault(name, {}), route, options.times):
                    times = options.times and not any("times_s" in one for one in known[name].values())
                    answer = _in_process(name, route, times)
                    if answer["state"] == "right" or known[name].get(route, {}).get("state") != "right":
                        known[name][route] = answer  # else timing failed
                    if options.json:
                        write_json(options.json, document)
    found = rows({name: known[name] for name in wanted})
    table = Table(*HEADINGS)
    for row in found:
        table.add_row(*row.cells())
    console = wide_console(120)
    console.print(table)
    for name in wanted:
        for route, answer in known[name].items():
            if answer["state"] != "right":
                console.print(f"{name}, {route}: {answer.get('why', 'differs')}", markup=False)
    console.print(*said(found), sep="\n", markup=False)
    if options.page:
        options.page.write_text(page(document))
    return 0


def _libraries() -> dict[str, str]:
    """Return the versions of what is compared, and of what models come from."""
    found = {}
    for name in ("torch", "torchvision", "transformers", "onnx", "onnxruntime"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _processor() -> str:
    """Return the processor's name, as Linux says."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown processor")


if __name__ == "__main__":
    sys.exit(main())
