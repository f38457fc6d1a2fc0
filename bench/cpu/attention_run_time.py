"""Attention kernels whose sizes are known at run time beside those planned for the size, interleaved, on one thread.

Prints a line a size: median microseconds of both, and the median of their ratios over copies of the tensors, since
where those lie in memory is worth some per cent for small ones.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import numpy as np
import tvm

from anatune import api
from anatune.codegen.compat import compile_module, parse_program, target_of
from anatune.core.sizes import Size
from anatune.network.compiling.attention import attention_at_run_time, plan_attention
from anatune.network.graph.nodes import Input, Node, TensorType
from anatune.network.graph.operators import ATTENTION
from anatune.network.graph.strided import HeadLayout
from anatune.network.kernels.attention import AttentionKernel, attention_program

HARDWARE = api.hardware("host").with_threads(1)
DRAWS = np.random.default_rng(0)
_COPIES, _TURNS, _AT_ONCE_S = 9, 15, 7e-4


def attention(heads: int, dim: int, queries: int, keys: int) -> Node:
    """Return an attention: of one matrix of queries, keys and values where there are as many of each."""
    width, rows = heads * dim, (queries, keys, keys)
    is_joined = queries == keys
    row = width * 3 if is_joined else width
    values = [Input("x", TensorType((count, row), "float32")) for count in rows]
    places = tuple(HeadLayout(number * width * is_joined, count * row, dim, row) for number, count in enumerate(rows))
    attributes = {
        "batch": 1, "heads": heads, "queries": queries, "keys": keys, "dim": dim, "value_dim": dim, "places": places,
        "scale": dim**-0.5, "zero_rows": False, "block": 0, "visible": (), "causal": None,
    }  # fmt: skip
    return Node(ATTENTION, tuple(values), TensorType((queries, width), "float32"), attributes)


def built(kernel: AttentionKernel) -> Callable[..., None]:
    """Return a kernel as a function of tensors and sizes."""
    function = parse_program(*attention_program(kernel, "kernel", HARDWARE.fp32_lanes, 1))
    module = tvm.IRModule({"kernel": function.with_attr("global_symbol", "kernel")})
    return compile_module(module, target_of(HARDWARE, threads=1))["kernel"]


def medians(calls: list[Callable[[], None]]) -> list[float]:
    """Return median seconds of calls in turn."""
    for call in calls:
        call()
    start = time.perf_counter()
    calls[0]()
    count = max(1, int(_AT_ONCE_S / (time.perf_counter() - start)))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(_TURNS):
        for own, call in zip(times, calls, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                call()
            own.append((time.perf_counter() - start) / count)
    return [statistics.median(own) for own in times]


def main() -> None:
    """Time both kernels for each number of tokens, or of keys of one query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens", type=int, nargs="*", default=[17, 64, 128, 333])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--decode", action="store_true", help="one query, and so many keys")
    own = parser.parse_args()
    size = Size.symbol("tokens", 128)
    planned = plan_attention(attention(own.heads, own.dim, 128, 128), HARDWARE)
    varying = built(attention_at_run_time(planned, attention(own.heads, own.dim, 1 if own.decode else size, size)))
    kept: list[object] = []
    for tokens in own.tokens:
        node = attention(own.heads, own.dim, 1 if own.decode else tokens, tokens)
        fixed, found = built(plan_attention(node, HARDWARE)), []
        for _ in range(_COPIES):
            kept.append(np.zeros(random.randint(100, 30000)))
            arrays = (DRAWS.random(one.type.shape, np.float32) for one in node.arguments)
            tensors = [tvm.runtime.tensor(array) for array in arrays]
            tensors = tensors[:1] * 3 if node.arguments[0].type == node.arguments[1].type else tensors
            result = tvm.runtime.tensor(np.zeros(node.type.shape, np.float32))
            kept += [*tensors, result]
            found.append(
                medians([lambda: fixed(*tensors, result), lambda: varying(*tensors, tokens, result)])  # noqa: B023
            )
        times = [statistics.median(one[number] for one in found) * 1e6 for number in (0, 1)]
        ratio = statistics.median(varies / planned for planned, varies in found)
        print(f"{tokens:5d}  planned {times[0]:9.1f} us  at run time {times[1]:9.1f} us  ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
