"""Steps of a decoder of Llama's form with weights of 8 or 4 bits: memory bandwidth of a step, and others' times.

    python -m bench.cpu.llama_steps [--bits 4] [--layers 4] [--words 32000] [--level 0] [--threads 1] [--held 128]
        [--prompts 128,512] [--rounds 15] [--llama-cpp] [--json FILE]

Layers have the sizes of Llama 3.2 with a thousand million parameters (width 2048, 32 heads of 64, 8 of keys, hidden
8192) and random weights as ONNX's MatMulNBits; there are fewer of them, whose weights exceed the last cache several
times. anatune's model keeps its caches, ONNX Runtime's takes and returns them (bound to memory once); prompts and steps
run from one model each. Both run in turns with a loop that reads as many bytes as a step has weights. With --llama-cpp
llama.cpp takes turns with them, with weights of its own of the same sizes (4.5 and 8.5 bits each, with its scales, for
5 and 9 here). Needs onnx and onnxruntime; for llama.cpp llama-cpp-python, built from its source, and gguf.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.cpu.few_bits import few_bits

__all__ = ["llama"]

WIDTH, HEADS, KEY_HEADS, HIDDEN, GROUP = 2048, 32, 8, 8192, 32


def llama(path: Path, layers: int, words: int, bits: int, level: int, sizes: Sequence[int] = ()) -> int:
    """Write a decoder and return the bytes of its packed weights and scales.

    Inputs: ids (1, tokens), past.N.key and past.N.value (1, heads of keys, past, dim); outputs: logits, present.N.key
    and present.N.value.
    """
    import onnx
    from onnx import TensorProto, helper

    width, heads, key_heads, hidden = sizes or (WIDTH, HEADS, KEY_HEADS, HIDDEN)
    dim, rng = width // heads, np.random.default_rng(0)
    nodes: list[Any] = []
    weights: list[Any] = []
    total = 0

    def known(name: str, array: Any) -> str:
        weights.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(op: str, *names: str, out: str = "", domain: str = "", **own: Any) -> str:
        out = out or f"t{len(nodes)}"
        nodes.append(helper.make_node(op, list(names), [out], domain=domain, **own))
        return out

    def product(data: str, name: str, length: int, columns: int, out: str = "") -> str:
        nonlocal total
        packed, scales = few_bits(rng, columns, length, bits, GROUP)
        total += packed.nbytes + scales.nbytes
        names = (data, known(f"{name}.w", packed), known(f"{name}.s", scales))
        own = {"K": length, "N": columns, "bits": bits, "block_size": GROUP, "accuracy_level": level}
        return node("MatMulNBits", *names, out=out, domain="com.microsoft", **own)

    def norm(data: str, name: str) -> str:
        factor = known(name, rng.uniform(0.5, 1.5, width).astype(np.float32))
        return node("RMSNormalization", data, factor, axis=-1, epsilon=1e-5)

    def whole(name: str, *numbers: int) -> str:
        return known(name, np.array(numbers, np.int64))

    table = known("table", rng.standard_normal((words, width)).astype(np.float32))
    x = node("Gather", table, "ids", axis=0)
    zero, one, two = known("zero", np.int64(0)), known("one", np.int64(1)), whole("two", 2)
    held = node("Gather", node("Shape", "past.0.key"), two, axis=0)
    held = node("Squeeze", held, whole("first", 0))
    count = node("Squeeze", node("Gather", node("Shape", "ids"), whole("second", 1), axis=0), "first")
    end = node("Add", held, count)
    places = node("Range", held, end, one)
    angles = node("Unsqueeze", node("Cast", places, to=TensorProto.FLOAT), "second")
    speeds = (5e5 ** -(np.arange(0, dim, 2) / dim)).astype(np.float32)[None]
    angles = node("Mul", angles, known("speeds", np.concatenate([speeds, speeds], axis=1)))
    cos, sin = node("Cos", angles), node("Sin", angles)
    seen = node("LessOrEqual", node("Range", zero, end, one), node("Unsqueeze", places, "second"))
    mask = node("Where", seen, known("open", np.float32(0.0)), known("shut", np.float32(-np.inf)))
    turn_axes, half, far = whole("last", 3), whole("half", dim // 2), whole("far", dim)

    def turned(data: str) -> str:
        low = node("Slice", data, "first", half, turn_axes)
        high = node("Slice", data, half, far, turn_axes)
        other = node("Concat", node("Neg", high), low, axis=3)
        return node("Add", node("Mul", data, cos), node("Mul", other, sin))

    def apart(data: str, number: int) -> str:
        shape = f"heads{number}"
        if all(weight.name != shape for weight in weights):
            whole(shape, 1, -1, number, dim)
        return node("Transpose", node("Reshape", data, shape), perm=[0, 2, 1, 3])

    group = heads // key_heads
    together, flat = whole("together", 1, heads, -1, dim), whole("flat", 1, -1, width)
    groups = whole("groups", 1, key_heads, group, 1, 1)
    scale = known("scale", np.float32(dim**-0.5))
    for layer in range(layers):
        h = norm(x, f"{layer}.norm")
        q = turned(apart(product(h, f"{layer}.q", width, width), heads))
        k = turned(apart(product(h, f"{layer}.k", width, key_heads * dim), key_heads))
        v = apart(product(h, f"{layer}.v", width, key_heads * dim), key_heads)
        k = node("Concat", f"past.{layer}.key", k, out=f"present.{layer}.key", axis=2)
        v = node("Concat", f"past.{layer}.value", v, out=f"present.{layer}.value", axis=2)
        wide = []
        for one_of in (k, v):
            expanded = node("Expand", node("Unsqueeze", one_of, two), groups)
            wide.append(node("Reshape", expanded, together))
        scores = node("Mul", node("MatMul", q, node("Transpose", wide[0], perm=[0, 1, 3, 2])), scale)
        mixed = node("MatMul", node("Softmax", node("Add", scores, mask), axis=-1), wide[1])
        mixed = node("Reshape", node("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
        x = node("Add", x, product(mixed, f"{layer}.o", width, width))
        h = norm(x, f"{layer}.norm2")
        gate = product(h, f"{layer}.gate", width, hidden)
        gate = node("Mul", gate, node("Sigmoid", gate))
        x = node(
            "Add",
            x,
            product(node("Mul", gate, product(h, f"{layer}.up", width, hidden)), f"{layer}.down", hidden, width),
        )
    product(norm(x, "norm"), "head", width, words, out="logits")
    caches = [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]

    def info(name: str, shape: Sequence[Any], kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = [info("ids", (1, "tokens"), TensorProto.INT64)]
    inputs += [info(f"past.{name}", (1, key_heads, "past", dim)) for name in caches]
    outputs = [info("logits", (1, "tokens", words))]
    outputs += [info(f"present.{name}", (1, key_heads, "all", dim)) for name in caches]
    graph = helper.make_graph(nodes, "llama", inputs, outputs, weights)
    sets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=10), str(path))
    return total


class _Other:
    """ONNX Runtime's session: caches are its inputs and outputs."""

    def __init__(self, path: Path, layers: int, threads: int) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        self.names = [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]

    def call(self, ids: Any, held: Sequence[Any]) -> Callable[[], Any]:
        """Return a call with some caches."""
        given = {"ids": ids, **{f"past.{name}": array for name, array in zip(self.names, held, strict=True)}}
        return lambda: self.session.run(None, given)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in (("bits", 4), ("layers", 4), ("words", 32000), ("level", 0), ("threads", 1), ("held", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--prompts", default="128,512")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--llama-cpp", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    import anatune
    from anatune.codegen.compat import set_pool_threads
    from bench.cpu.decode import read_probe
    from bench.cpu.llama_gguf import LlamaCpp

    set_pool_threads(options.threads)
    prompts = [int(word) for word in options.prompts.split(",") if word]
    most = max([options.held + 1, *prompts])
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="anatune-bench-") as folder:
        path = Path(folder) / "llama.onnx"
        num_bytes = llama(path, options.layers, options.words, options.bits, options.level)
        other = _Other(path, options.layers, options.threads)
        llama_cpp = None
        if options.llama_cpp:
            llama_cpp = LlamaCpp(
                path.with_suffix(".gguf"), (WIDTH, HEADS, KEY_HEADS, HIDDEN), layers=options.layers,
                words=options.words, bits=options.bits, threads=options.threads, most=most,
            )  # fmt: skip
        names = [f"{layer}.{kind}" for layer in range(options.layers) for kind in ("key", "value")]
        pairs = {f"present.{name}": f"past.{name}" for name in names}
        sizes = {"tokens": f"1..{max([2, *prompts])}", "past": f"0..{most}"}
        began = time.process_time()
        own = anatune.compile(str(path), threads=options.threads, check=False, state=pairs, sizes=sizes)
        print(f"compiled in {time.process_time() - began:.0f} CPU s; {num_bytes / 1e6:.0f} MB of weights and scales")
        loop, read_bytes = read_probe(anatune.hardware("host"), options.threads, 4 * num_bytes)
        rng = np.random.default_rng(1)
        for tokens, held in ((1, options.held), *((tokens, 0) for tokens in prompts)):
            ids = rng.integers(0, options.words, (1, tokens))
            caches = [rng.standard_normal((1, KEY_HEADS, held, WIDTH // HEADS)).astype(np.float32) for _ in names]
            beside = other.call(ids, caches)

            def step(ids: Any = ids, caches: Any = caches, held: int = held) -> Any:
                own.reset()
                if held:
                    own.state = {f"past.{name}": array for name, array in zip(names, caches, strict=True)}
                began = time.perf_counter()
                result = own(ids)
                return time.perf_counter() - began, result

            wanted, (_, got) = beside()[0], step()
            first = np.asarray(got[0] if isinstance(got, (list, tuple)) else got)
            error = float(np.abs(first - wanted).max() / np.abs(wanted).max())
            times: list[list[float]] = [[], [], [], []]
            third = llama_cpp.call(ids, held) if llama_cpp is not None else lambda: None
            third()
            for _ in range(options.rounds if tokens == 1 else max(3, options.rounds // 4)):
                times[0].append(step()[0])
                for call, own_times in ((beside, times[1]), (loop, times[2]), (third, times[3])):
                    began = time.perf_counter()
                    call()
                    own_times.append(time.perf_counter() - began)
            reads = [one * num_bytes / read_bytes for one in times[2]]
            share = statistics.median(read / mine for read, mine in zip(reads, times[0], strict=True))
            ratio = statistics.median(theirs / mine for theirs, mine in zip(times[1], times[0], strict=True))
            word = f"step with {held} held" if tokens == 1 else f"prompt of {tokens}"
            faster = statistics.median(theirs / mine for theirs, mine in zip(times[3], times[0], strict=True))
            more = f", {faster:.2f} as llama.cpp" if llama_cpp is not None else ""
            print(f"{word}: {100 * share:.0f} % of the reading rate, {ratio:.2f} times as fast as ONNX Runtime{more} "
                  f"(error {error:.1e} beside it)", flush=True)  # fmt: skip
            found.append({"what": word, "share": share, "ratio": ratio, "times_s": times, "error": error})
    if options.json:
        from bench.results import environment, write_json

        settings = {name: str(value) for name, value in vars(options).items()}
        write_json(options.json, {"environment": environment(**settings), "lines": found})


if __name__ == "__main__":
    main()
