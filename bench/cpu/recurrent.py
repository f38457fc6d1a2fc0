"""Recurrent layers beside ONNX Runtime: one ONNX operator, both directions, in turns in one process.

    python -m bench.cpu.recurrent [--layers LSTM:100x8x256,GRU:100x1x256] [--threads 1] [--rounds 40]

A layer is kind:STEPSxBATCHxUNITS; the inputs are as wide as the layer. Ratios are medians over rounds. The results are
compared first. It needs onnx and onnxruntime.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main", "recurrent_model"]

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_LAYERS = (
    "LSTM:50x1x128,LSTM:100x1x256,LSTM:50x16x128,LSTM:100x8x256,LSTM:50x16x512,LSTM:50x32x512,LSTM:20x1x1024,"
    "LSTM:20x20x1024,GRU:100x1x256,GRU:100x8x256,RNN:100x1x256,RNN:50x8x256"
)


def recurrent_model(kind: str, units: int, batch: int) -> Any:
    """Return an ONNX model of one layer in both directions for any number of steps."""
    import onnx
    from onnx import helper, numpy_helper

    random, gates = np.random.default_rng(0), _GATES[kind]
    shapes = {"w": (2, gates * units, units), "r": (2, gates * units, units), "b": (2, 2 * gates * units)}
    weights = [
        numpy_helper.from_array(random.uniform(-1, 1, shape).astype(np.float32) / np.float32(units**0.5), name)
        for name, shape in shapes.items()
    ]
    node = helper.make_node(kind, ["x", *shapes], ["y"], hidden_size=units, direction="bidirectional")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["steps", batch, units])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], kind, [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def compare(layer: str, threads: int, rounds: int) -> str:
    """Return a line with the times of a layer, and the ratio of ours to ONNX Runtime's."""
    import onnx
    import onnxruntime

    import anatune

    kind, _, sizes = layer.partition(":")
    steps, batch, units = map(int, sizes.split("x"))
    x = np.random.default_rng(1).standard_normal((steps, batch, units)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "layer.onnx")
        onnx.save(recurrent_model(kind, units, batch), path)
        compiled = anatune.compile(path, x, threads=threads)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(path, options)
    run = compiled.prepared(x)
    difference = float(np.abs(np.from_dlpack(run()) - session.run(None, {"x": x})[0]).max())
    calls: list[Callable[[], object]] = [run, lambda: session.run(None, {"x": x})]
    times: list[tuple[float, ...]] = [tuple(map(_seconds, calls)) for _ in range(rounds)]
    ours, theirs = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(ours_s / theirs_s for ours_s, theirs_s in times)
    return f"| {layer} | {ours:.3f} | {theirs:.3f} | {ratio:.2f} | {difference:.1e} |"


def _seconds(call: Callable[[], object]) -> float:
    """Return the seconds of the second of two calls."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", default=_LAYERS, help="kind:STEPSxBATCHxUNITS, comma-separated")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args(arguments)
    print("| layer | ours, ms | ONNX Runtime, ms | ratio | largest difference |\n|---|---|---|---|---|")
    for layer in options.layers.split(","):
        print(compare(layer, options.threads, options.rounds), flush=True)


if __name__ == "__main__":
    main()
