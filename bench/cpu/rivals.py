"""What to beat: oneDNN's and MKL's own kernel times, and PyTorch end to end with prepacked weights, layer by layer.

    python -m bench.cpu.rivals [--threads 1] [--layers R1,M*] [--dtype float32] [--rounds 7] [--json FILE]
                               [--markdown FILE]

Needs PyTorch for CPUs (pip install torch) and a C compiler for the probes. oneDNN and MKL say themselves how long a
call took (their verbose modes): that is the kernel without PyTorch's dispatch of 5 to 100 us a call. Both are reported.
Each method's result is compared with an unpacked convolution or product first; one that differs is left out and named.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from bench.cpu.layers import LAYERS
from bench.cpu.narrow_rivals import DTYPES, REQUANTISED, narrow_calls
from bench.cpu.quiet import Method, Sample, Thresholds, interleave, loop, quiet_or_all, share_of_peak, spread
from bench.layers import Convolution, Layer, Matmul, choose

__all__ = ["KINDS", "best_variants", "find_torch", "kernel_methods", "kernel_times_s", "rivals"]

KINDS = {
    "onednn": "oneDNN kernel",
    "mkl": "MKL kernel",
    "torch": "PyTorch end to end",
    "ort": "ONNX Runtime end to end",
    "plain": "PyTorch, not packed",
}
"""A method's name is one of these and a variant: "onednn:nhwc"."""

_ONEDNN = re.compile(
    r"^onednn_verbose,(?:v1,)?primitive,exec,cpu,(convolution|inner_product|matmul),([^,]*),.*,([\d.e+-]+)$"
)
_MKL = re.compile(r"^MKL_VERBOSE SGEMM(?:_COMPUTE)?\(.*\) ([\d.]+)(ns|us|ms|s) ")
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def find_torch(threads: int) -> Any:
    """Return PyTorch, set to `threads` threads, its workers started.

    They start here, before TVM's thread pool can pin this thread to a core: they would inherit that.

    Raises
    ------
    SystemExit
        It is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise SystemExit(f"bench.cpu.rivals: the rivals need PyTorch for CPUs (pip install torch): {error}") from error
    _keep_freed_memory()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch.mm(torch.ones(512, 512), torch.ones(512, 512))
    return torch


def _keep_freed_memory() -> None:
    """Tell glibc to keep freed memory: PyTorch allocates each result anew; above 32 MiB every call would fault it in.

    Without this, Y0 (37 MiB) takes four times as long; anatune's kernels write to memory that is there already.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        m_trim_threshold, m_mmap_max = -1, -4
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


@contextmanager
def _standard_output() -> Iterator[Callable[[], str]]:
    """Catch what C code prints: yields a function that returns it, to be called afterwards."""
    sys.stdout.flush()
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        text: list[str] = []
        os.dup2(file.fileno(), 1)
        try:
            yield lambda: text[0]
        finally:
            libc.fflush(None)
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            text.append(file.read().decode(errors="replace"))


def kernel_times_s(printed: str) -> list[tuple[str, float]]:
    """Return the implementation and the seconds of every kernel run in what oneDNN's or MKL's verbose mode printed.

    Reorders and anything else that is no convolution, inner product or matrix product are left out.
    """
    times = []
    for line in printed.splitlines():
        if found := _ONEDNN.match(line):
            times.append((found[2], 1e-3 * float(found[3])))
        elif found := _MKL.match(line):
            times.append(("mkl", float(found[1]) * _UNIT_S[found[2]]))
    return times


class LibraryKernel:
    """Time of `call` by the library's own clock: the median over calls in a row that take `sample_s` seconds."""

    def __init__(
        self, call: Callable[[], object], verbose: Callable[[], AbstractContextManager[Any]], sample_s: float
    ) -> None:
        self._call, self._verbose = call, verbose
        call()
        started = time.perf_counter()
        call()
        self._number = min(200, max(3, round(sample_s / (time.perf_counter() - started))))
        self.implementation = ""

    def __call__(self) -> float:
        """Take one sample.

        Raises
        ------
        RuntimeError
            The library named no time, or not one a call.
        """
        self._call()
        with _standard_output() as printed, self._verbose():
            for _ in range(self._number):
                self._call()
        times = kernel_times_s(printed())
        if len(times) != self._number:
            raise RuntimeError(f"{len(times)} kernel times for {self._number} calls")
        self.implementation = times[0][0]
        return statistics.median(seconds for _, seconds in times)


Calls = dict[str, Callable[[], Any]]


def _convolution_calls(torch: Any, layer: Convolution) -> tuple[Calls, Any]:
    """Return the ways to run a convolution in PyTorch, and the right result."""
    c, h, k, r = layer.channels, layer.size, layer.filters, layer.kernel
    x, w = torch.rand(1, c, h, h) - 0.5, torch.rand(k, c, r, r) - 0.5
    last = torch.channels_last
    x_last, w_last = x.to(memory_format=last), w.to(memory_format=last)
    pad, stride, one, shape = [layer.padding] * 2, [layer.stride] * 2, [1, 1], list(x.shape)
    functional, ops, internal = torch.nn.functional.conv2d, torch.ops.mkldnn, torch._C._nn
    point = ops._convolution_pointwise.default
    packed = ops._reorder_convolution_weight(w, pad, stride, one, 1, shape)
    packed_last = ops._reorder_convolution_weight(w_last, pad, stride, one, 1, shape)
    blocked_w = internal.mkldnn_reorder_conv2d_weight(w.to_mkldnn(), pad, stride, one, 1, shape)
    blocked_x = x.to_mkldnn()
    if c >= 16:  # nChw16c activations: what an identity 1x1 convolution of oneDNN returns
        identity = torch.eye(c).reshape(c, c, 1, 1).to_mkldnn()
        identity = internal.mkldnn_reorder_conv2d_weight(identity, [0, 0], one, one, 1, shape)
        blocked_x = torch.mkldnn_convolution(blocked_x, identity, None, [0, 0], one, one, 1)
    calls: Calls = {
        "plain:nchw": lambda: functional(x, w, None, layer.stride, layer.padding),
        "plain:nhwc": lambda: functional(x_last, w_last, None, layer.stride, layer.padding),
        "torch:nchw": lambda: point(x, packed, None, pad, stride, one, 1, "none", [], ""),
        "torch:nhwc": lambda: point(x_last, packed_last, None, pad, stride, one, 1, "none", [], ""),
        "torch:blocked": lambda: torch.mkldnn_convolution(blocked_x, blocked_w, None, pad, stride, one, 1),
    }
    if r == 1 and layer.stride == 1:
        pixels = h * h
        calls.update(_linear_calls(torch, x_last.permute(0, 2, 3, 1).reshape(pixels, c), w.reshape(k, c).contiguous()))
    return calls, functional(x, w, None, layer.stride, layer.padding)


def _linear_calls(torch: Any, a: Any, w: Any) -> Calls:
    """Return the ways to compute ``a @ w.T`` with packed `w`."""
    rows = a.shape[0]
    onednn = torch.ops.mkldnn._reorder_linear_weight(w, rows)
    mkl = torch.ops.mkl._mkl_reorder_linear_weight(w, rows)
    by_onednn, by_mkl = torch.ops.mkldnn._linear_pointwise.default, torch.ops.mkl._mkl_linear.default
    return {
        "torch:linear": lambda: by_onednn(a, onednn, None, "none", [], ""),
        "torch:mkl": lambda: by_mkl(a, mkl, w, None, rows),
    }


def _matmul_calls(torch: Any, layer: Matmul) -> tuple[Calls, Any]:
    """Return the ways to run a matrix product in PyTorch, and the right result."""
    a, w = torch.rand(layer.m, layer.k) - 0.5, torch.rand(layer.n, layer.k) - 0.5
    b, c = w.t().contiguous(), torch.empty(layer.m, layer.n)
    image = a.reshape(1, 32, layer.m // 32, layer.k).permute(0, 3, 1, 2)  # as a 1x1 convolution of 32 x m/32 pixels
    none, one = [0, 0], [1, 1]
    ops = torch.ops.mkldnn
    packed = ops._reorder_convolution_weight(w.reshape(layer.n, layer.k, 1, 1), none, one, one, 1, list(image.shape))
    point = ops._convolution_pointwise.default
    calls: Calls = {
        "plain:mm": lambda: torch.mm(a, b, out=c),
        "plain:linear": lambda: torch.nn.functional.linear(a, w),
        **_linear_calls(torch, a, w),
        "torch:conv": lambda: point(image, packed, None, none, one, one, 1, "none", [], ""),
    }
    return calls, a @ b


def rivals(torch: Any, layer: Layer, notes: list[str], dtype: str = "float32") -> Calls:
    """Return the ways to run `layer` in PyTorch, each checked; those that fail or differ are named in `notes`."""
    with torch.inference_mode():
        is_matmul = isinstance(layer, Matmul)
        if dtype != "float32":
            try:
                calls, expected = narrow_calls(torch, layer, dtype)
            except RuntimeError as error:  # oneDNN packs no weights for a processor without the instructions
                notes.append(f"{layer.name} {dtype}: {str(error).splitlines()[0]}")
                return {}
        elif isinstance(layer, Matmul):
            calls, expected = _matmul_calls(torch, layer)
        else:
            calls, expected = _convolution_calls(torch, layer)
        largest = float(expected.abs().max())
        for name, call in list(calls.items()):
            tolerance = (1e-2 if dtype == "bfloat16" or name in REQUANTISED else 2e-3) * largest
            try:
                result = call()
                result = (result if result.layout == torch.strided else result.to_dense()).float()
                if result.dim() == 4 and is_matmul:
                    result = result.permute(0, 2, 3, 1).reshape(expected.shape)
                elif result.dim() == 2 and not is_matmul:
                    result = result.reshape(*expected.shape[2:], -1).permute(2, 0, 1)[None]
                error = float((result - expected).abs().max())
                wrong = "" if error < tolerance else f"differs by {error:.3g} (at most {tolerance:.3g})"
            except RuntimeError as problem:
                wrong = str(problem).splitlines()[0][:200]
            if wrong:
                notes.append(f"{layer.name} {name}: {wrong}; left out")
                del calls[name]
    return calls


def kernel_methods(torch: Any, calls: Calls, sample_s: float = 0.012) -> dict[str, Method]:
    """Return every call as a method, end to end and by the library's own clock ("onednn:...", "mkl:...")."""
    backends = torch.backends
    methods: dict[str, Method] = {}
    for name, call in calls.items():
        kind, variant = name.split(":")
        methods[name] = loop(call, sample_s)
        if kind != "torch":
            continue
        if variant == "mkl":
            methods["mkl:packed"] = LibraryKernel(call, lambda: backends.mkl.verbose(1), sample_s)
        elif variant not in ("nchw", "fbgemm"):  # oneDNN runs it in NHWC: the same kernel, with reorders around it
            methods[f"onednn:{variant}"] = LibraryKernel(call, lambda: backends.mkldnn.verbose(1), sample_s)
    return methods


def best_variants(methods: Mapping[str, Method], within: float = 1.08, trials: int = 3) -> dict[str, Method]:
    """Return of each kind the fastest variant in a short trial, and those close to it."""
    best: dict[str, float] = {}
    for _ in range(trials):
        for name, method in methods.items():
            best[name] = min(best.get(name, float("inf")), method())
    fastest: dict[str, float] = {}
    for name, seconds in best.items():
        kind = name.split(":")[0]
        fastest[kind] = min(fastest.get(kind, float("inf")), seconds)
    return {name: method for name, method in methods.items() if best[name] <= within * fastest[name.split(":")[0]]}


def summary(layer: Layer, samples: Mapping[str, Sequence[Sample]], thresholds: Thresholds) -> dict[str, dict[str, Any]]:
    """Return of each kind its best variant by the median: rate, share of the probed peak, spread, samples."""
    rows: dict[str, dict[str, Any]] = {}
    for name, taken in samples.items():
        kind, variant = name.split(":")
        used, quiet = quiet_or_all(taken, thresholds)
        row = {
            "variant": variant,
            "time_s": statistics.median(sample.time_s for sample in used),
            "gflop_per_s": layer.flop / statistics.median(sample.time_s for sample in used) / 1e9,
            "share_of_peak": share_of_peak(used, layer.flop),
            "spread": spread(used),
            "samples": len(used),
            "quiet": quiet,
        }
        if kind not in rows or row["time_s"] < rows[kind]["time_s"]:
            rows[kind] = row
    return rows


def table(results: Mapping[str, Mapping[str, Mapping[str, Any]]], layers: Mapping[str, Layer]) -> str:
    """Return the results as a table in Markdown."""
    lines = ["| layer | " + " | ".join(KINDS.values()) + " |", "|---" * (1 + len(KINDS)) + "|"]
    for name, row in results.items():
        cells = [f"{name} {layers[name].text}"]
        for kind in KINDS:
            if kind in row:
                cell = row[kind]
                mark = "" if cell["quiet"] else " ?"
                rate, share = cell["gflop_per_s"], cell["share_of_peak"]
                cells.append(f"{rate:.1f} ({100 * share:.0f} %) {cell['variant']}, n {cell['samples']}{mark}")
            else:
                cells.append("")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", help="comma-separated names, patterns (R*) and groups (bert, resnet18, yolo9000)")
    parser.add_argument("--rounds", type=int, default=7, help="quiet samples wanted of each method")
    parser.add_argument("--sample-ms", type=float, default=12.0, help="length of a sample")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    torch = find_torch(options.threads)
    from bench.cpu.probes import Probes

    probes = Probes(options.threads)
    layers = {layer.name: layer for layer in choose(options.layers, LAYERS)}
    everything: dict[str, dict[str, list[Sample]]] = {}
    notes: list[str] = []
    implementations: dict[str, dict[str, str]] = {}
    with torch.inference_mode():
        for layer in layers.values():
            methods = kernel_methods(torch, rivals(torch, layer, notes, options.dtype), options.sample_ms / 1000)
            methods = best_variants(methods)
            known = [sample for taken in everything.values() for list_ in taken.values() for sample in list_]
            everything[layer.name] = interleave(
                methods, probes, options.rounds, known=known, patience_s=10.0, label=layer.name
            )
            implementations[layer.name] = {
                name: method.implementation for name, method in methods.items() if isinstance(method, LibraryKernel)
            }
            print(f"{layer.name} done", file=sys.stderr)
    thresholds = Thresholds.of(sample for taken in everything.values() for list_ in taken.values() for sample in list_)
    results = {name: summary(layers[name], taken, thresholds) for name, taken in everything.items()}
    text = table(results, layers)
    heading = (
        f"{options.threads} thread(s), GFLOP/s (share of the FMA probe beside it), {platform.processor() or ''} "
        f"torch {torch.__version__}; quiet: FMA >= {thresholds.fma / 1e9:.1f}, tile >= {thresholds.gemm / 1e9:.1f}"
    )
    print(heading, text, *notes, sep="\n")
    if options.markdown:
        options.markdown.write_text("\n\n".join([heading, text, *notes]) + "\n", encoding="utf-8")
    if options.json:
        from bench.results import environment, write_json

        content = {
            "environment": environment(threads=options.threads, torch=str(torch.__version__)),
            "thresholds": thresholds,
            "results": results,
            "implementations": implementations,
            "samples": everything,
            "notes": notes,
        }
        write_json(options.json, content)


if __name__ == "__main__":
    main()
