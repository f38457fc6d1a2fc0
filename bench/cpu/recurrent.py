"""Recurrent layers of one or two directions beside ONNX Runtime, or beside eager PyTorch, in turns.

    python -m bench.cpu.recurrent [--kinds LSTM,GRU,RNN] [--directions 1,2] [--batches 1,32] [--hidden 64,256]
        [--steps 1,200] [--source onnx] [--threads 1] [--rounds 25] [--profile] [--json FILE]

Each network is one layer with as many inputs as units. With --source torch it is compiled from PyTorch's module. The
engines take turns in one process, each called from arrays to arrays; ratios are medians over rounds. --profile adds the
time of each function of ours. Needs onnx and onnxruntime, or torch.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Case", "main"]

_ROUND_S = 1e-3
"""How long a turn is at least: short calls are repeated."""


class Case(NamedTuple):
    """A recurrent layer, its inputs, and the number of threads that run it."""

    kind: str
    directions: int
    batch: int
    hidden: int
    steps: int
    threads: int


def _write_onnx(case: Case, path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    gates, hidden = {"RNN": 1, "GRU": 3, "LSTM": 4}[case.kind], case.hidden
    shapes = {"w": (gates * hidden, hidden), "r": (gates * hidden, hidden), "b": (2 * gates * hidden,)}
    weights = [
        numpy_helper.from_array((rng.uniform(-1, 1, (case.directions, *shape)) / hidden**0.5).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    own: dict[str, Any] = {"hidden_size": hidden, "direction": ("forward", "bidirectional")[case.directions - 1]}
    if case.kind == "GRU":
        own["linear_before_reset"] = 1
    ends = {"x": [case.steps, case.batch, hidden], "y": [case.steps, case.directions, case.batch, hidden]}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends.items()]
    node = helper.make_node(case.kind, ["x", *shapes], ["y"], **own)
    graph = helper.make_graph([node], "layer", values[:1], values[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))


def _onnx_calls(case: Case, x: Any) -> tuple[Any, Callable[[], Any]]:
    """Return our compiled network, and the call of ONNX Runtime."""
    import onnxruntime

    import anatune

    with tempfile.TemporaryDirectory(prefix="anatune-bench-") as folder:
        path = Path(folder) / "layer.onnx"
        _write_onnx(case, path)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = case.threads
        session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        compiled = anatune.compile(str(path), [x], threads=case.threads, check=False)
    return compiled, lambda: session.run(None, {"x": x})[0]


def _torch_calls(case: Case, x: Any) -> tuple[Any, Callable[[], Any]]:
    """Return our compiled network, and the call of eager PyTorch."""
    import torch

    import anatune

    torch.set_num_threads(case.threads)

    class Steps(torch.nn.Module):
        """The states of all steps."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(torch.nn, case.kind)(case.hidden, case.hidden, bidirectional=case.directions == 2)

        def forward(self, x: Any) -> Any:
            return self.layer(x)[0]

    torch.manual_seed(0)
    module, tensor = Steps().eval(), torch.from_numpy(x)

    def run() -> Any:
        with torch.no_grad():
            return module(tensor).numpy()

    return anatune.compile(module, (tensor,), threads=case.threads, check=False), run


def measure(case: Case, source: str, rounds: int, *, with_profile: bool) -> dict[str, Any]:
    """Return "own_s", "other_s" of each round, "error" beside the other engine, and "profile" in seconds."""
    x = np.random.default_rng(1).standard_normal((case.steps, case.batch, case.hidden)).astype(np.float32)
    compiled, other = {"onnx": _onnx_calls, "torch": _torch_calls}[source](case, x)
    calls: list[Callable[[], Any]] = [lambda: compiled(x), other]
    results = [np.asarray(call()) for call in calls]
    repeats = []
    for call in calls:
        began = time.perf_counter()
        call()
        repeats.append(1 + int(_ROUND_S / (time.perf_counter() - began)))
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for call, count, own_times in zip(calls, repeats, times, strict=True):
            began = time.perf_counter()
            for _ in range(count):
                call()
            own_times.append((time.perf_counter() - began) / count)
    return {
        "own_s": times[0],
        "other_s": times[1],
        "error": float(np.abs(results[0] - results[1]).max() / np.abs(results[1]).max()),
        "profile": compiled.profile(x) if with_profile else {},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default="LSTM,GRU,RNN")
    parser.add_argument("--directions", default="1,2")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--hidden", default="64,256")
    parser.add_argument("--steps", default="1,200")
    parser.add_argument("--source", choices=("onnx", "torch"), default="onnx")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    from anatune.codegen.compat import set_pool_threads
    from bench.results import environment, write_json

    set_pool_threads(options.threads)
    lists = (options.directions, options.batches, options.hidden, options.steps)
    numbers = itertools.product(*([int(word) for word in words.split(",")] for words in lists))
    lines = []
    print("| layer | directions | batch | hidden | steps | ours, us | our time over the other's | error |")
    print("|---|---|---|---|---|---|---|---|")
    for (directions, batch, hidden, steps), kind in itertools.product(numbers, options.kinds.split(",")):
        case = Case(kind, directions, batch, hidden, steps, options.threads)
        line = measure(case, options.source, options.rounds, with_profile=options.profile)
        lines.append({**case._asdict(), **line})
        ratio = statistics.median(own / other for own, other in zip(line["own_s"], line["other_s"], strict=True))
        own_us = statistics.median(line["own_s"]) * 1e6
        words = (kind, directions, batch, hidden, steps, f"{own_us:.0f}", f"{ratio:.2f}", f"{line['error']:.0e}")
        print(f"| {' | '.join(map(str, words))} |", flush=True)
        for name, seconds in line["profile"].items():
            print(f"  {name}: {seconds * 1e6:.1f} us", flush=True)
    if options.json:
        settings = {name: str(value) for name, value in vars(options).items()}
        write_json(options.json, {"environment": environment(**settings), "lines": lines})


if __name__ == "__main__":
    main()
