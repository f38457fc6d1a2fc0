"""Models of products with weights of 8 and 4 bits beside ONNX Runtime, and beside a loop that reads as many bytes.

    python -m bench.cpu.few_bits [--bits 4,8] [--rows 1,512] [--widths 2048x8192] [--group 32] [--levels 0,4]
        [--threads 1] [--rounds 15] [--json FILE]

Each model is a chain of ONNX's MatMulNBits from the first width to the second and back, with more weights than twice
the last cache, so that all of them come from memory. anatune's model, ONNX Runtime's of the same file and the loop run
in turns in one process; shares and ratios are medians over rounds, of bytes of weights and scales as they are packed.
Needs onnx and onnxruntime.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Line", "chain", "few_bits"]


class Line(NamedTuple):
    """One model: seconds of each round, of anatune, ONNX Runtime, and reading as many bytes."""

    text: str
    own_s: tuple[float, ...]
    other_s: tuple[float, ...]
    read_s: tuple[float, ...]
    error: float

    @property
    def share(self) -> float:
        """Median of the loop's time over anatune's."""
        return statistics.median(read / own for read, own in zip(self.read_s, self.own_s, strict=True))

    @property
    def ratio(self) -> float:
        """Median of ONNX Runtime's time over anatune's."""
        return statistics.median(other / own for other, own in zip(self.other_s, self.own_s, strict=True))


def few_bits(rng: Any, columns: int, length: int, bits: int, group: int) -> tuple[Any, Any]:
    """Return random weights as MatMulNBits has them, and scales that keep activations' size."""
    packed = rng.integers(0, 256, (columns, length // group, group * bits // 8), dtype=np.uint8)
    typical = (4.6 if bits == 4 else 74.0) * length**0.5
    return packed, (rng.uniform(0.5, 1.5, (columns, length // group)) / typical).astype(np.float32)


def chain(path: Path, widths: tuple[int, int], pairs: int, bits: int, group: int, level: int) -> None:
    """Write a chain of products from the first width to the second and back."""
    import onnx
    from onnx import TensorProto, helper

    rng, nodes, weights, at = np.random.default_rng(0), [], [], "x"
    for number in range(2 * pairs):
        length, columns = widths if number % 2 == 0 else widths[::-1]
        for name, array in zip((f"w{number}", f"s{number}"), few_bits(rng, columns, length, bits, group), strict=True):
            weights.append(onnx.numpy_helper.from_array(array, name))
        own = {"K": length, "N": columns, "bits": bits, "block_size": group, "accuracy_level": level}
        names = [at, f"w{number}", f"s{number}"]
        nodes.append(helper.make_node("MatMulNBits", names, [f"y{number}"], domain="com.microsoft", **own))
        at = f"y{number}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", widths[0]]) for name in ("x", at)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=9), str(path))


def measure(path: Path, rows: int, width: int, num_bytes: int, options: argparse.Namespace, read: Any) -> Line:
    """Return what a model takes."""
    import onnxruntime

    import anatune

    x = np.random.default_rng(1).standard_normal((rows, width)).astype(np.float32)
    own = anatune.compile(str(path), [x], threads=options.threads, check=False).prepared(x)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    first, second = np.from_dlpack(own()), session.run(None, {"x": x})[0]
    error = float(np.abs(first - second).max() / np.abs(second).max())
    loop, read_bytes = read
    calls = [own, lambda: session.run(None, {"x": x}), loop]
    taken: list[list[float]] = [[], [], []]
    for _ in range(options.rounds):
        for call, times in zip(calls, taken, strict=True):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
    reads = tuple(one * num_bytes / read_bytes for one in taken[2])
    return Line(f"{path.stem}, {rows} rows", tuple(taken[0]), tuple(taken[1]), reads, error)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bits", default="4,8")
    parser.add_argument("--rows", default="1,512")
    parser.add_argument("--widths", default="2048x2048,2048x8192")
    parser.add_argument("--group", type=int, default=32)
    parser.add_argument("--levels", default="0,4")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    import anatune
    from anatune.codegen.compat import set_pool_threads
    from bench.cpu.decode import read_probe

    set_pool_threads(options.threads)
    hardware = anatune.hardware("host")
    least = 2 * (hardware.l3 or hardware.l2).size_bytes
    read = read_probe(hardware, options.threads, 2 * least)
    lines = []
    print("| model | share of reading | times as fast as ONNX Runtime | error beside it |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="anatune-bench-") as folder:
        for bits in map(int, options.bits.split(",")):
            for widths in (tuple(map(int, word.split("x"))) for word in options.widths.split(",")):
                each = 2 * widths[0] * widths[1] * bits // 8 + 2 * widths[0] * widths[1] // options.group * 4
                pairs = -(-least // each)
                for level in map(int, options.levels.split(",")):
                    path = Path(folder) / f"{bits} bits {options.group} {widths[0]}x{widths[1]} level {level}.onnx"
                    chain(path, (widths[0], widths[1]), pairs, bits, options.group, level)
                    for rows in map(int, options.rows.split(",")):
                        lines.append(measure(path, rows, widths[0], pairs * each, options, read))
                        line = lines[-1]
                        print(
                            f"| {line.text} | {100 * line.share:.0f} % | {line.ratio:.2f} | {line.error:.1e} |",
                            flush=True,
                        )
                    path.unlink()
    if options.json:
        from bench.results import environment, write_json

        settings = {name: str(value) for name, value in vars(options).items()}
        write_json(options.json, {"environment": environment(**settings), "lines": [line._asdict() for line in lines]})


if __name__ == "__main__":
    main()
