"""Models of one operator each that no planned kernel computes: ours beside PyTorch's, on one thread.

    python -m bench.cpu.rest [--models 'sum|lstm'] [--eager-only] [--json FILE]

Each model is compiled from PyTorch's module, its result is compared with eager PyTorch's, and the compiled model, eager
PyTorch and TorchInductor take turns: medians of the ratios of neighbours in time. A ratio above 1 says that ours is
faster.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["MODELS", "main"]

_BUDGET_S = 1.0
"""Seconds of turns for each model, at least `_ROUNDS` turns."""
_ROUNDS = 15

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def _models(torch: Any) -> dict[str, Case]:
    """Return name -> (what is computed, its inputs)."""
    torch.manual_seed(0)
    f, nn = torch.nn.functional, torch.nn
    image = torch.randn(8, 32, 56, 56)
    matrix, tall, rows = torch.randn(1024, 1024), torch.randn(4096, 256), torch.randn(64, 4096)
    table, ids = torch.randn(30000, 256), torch.randint(0, 30000, (8, 128))
    picks = torch.randint(0, 256, (4096, 64))
    grid = torch.rand(2, 112, 112, 2) * 2 - 1
    small = torch.randn(2, 32, 112, 112)
    places = torch.randint(0, 1024, (2, 20000))
    sequence = torch.randn(4, 64, 2048)
    wide = torch.randn(1, 64, 28, 28)
    volume = torch.randn(1, 16, 16, 32, 32)
    made: dict[str, Case] = {
        "sum_first": (lambda x: x.sum(0), (tall,)),
        "sum_middle": (lambda x: x.sum(1), (image,)),
        "sum_several": (lambda x: x.sum((0, 2, 3)), (image,)),
        "sum_outer_and_last": (lambda x: x.sum((0, 3)), (image,)),
        "sum_full": (lambda x: x.sum(), (matrix,)),
        "sum_int64": (lambda x: x.sum(1), (picks,)),
        "prod_last": (lambda x: x.prod(1), (rows,)),
        "amax_several": (lambda x: x.amax((0, 2)), (image,)),
        "norm_last": (lambda x: torch.linalg.vector_norm(x, dim=-1), (tall,)),
        "any_last": (lambda x: (x > 3).any(1), (rows,)),
        "argmax_last": (lambda x: x.argmax(1), (rows,)),
        "argmax_first": (lambda x: x.argmax(0), (tall,)),
        "argmax_channels": (lambda x: x.argmax(1), (image,)),
        "logsumexp": (lambda x: x.logsumexp(1), (rows,)),
        "variance": (lambda x: x.var((2, 3)), (image,)),
        "std_last": (lambda x: x.std(-1), (tall,)),
        "cumsum_last": (lambda x: x.cumsum(1), (rows,)),
        "cumsum_first": (lambda x: x.cumsum(0), (tall,)),
        "topk": (lambda x: x.topk(8, 1)[0], (rows,)),
        "sort": (lambda x: x.sort(1)[0], (rows,)),
        "argsort": (lambda x: x.argsort(1), (rows,)),
        "embedding": (lambda i, t: f.embedding(i, t), (ids, table)),
        "gather": (lambda x, i: x.gather(1, i), (tall, picks)),
        "gather_nd": (lambda x, i: x[i[0], i[1]], (matrix, places)),
        "index_select": (lambda x, i: x.index_select(1, i), (tall, torch.randint(0, 256, (128,)))),
        "scatter_add": (lambda x, i, u: x.scatter_add(1, i, u), (tall, picks, torch.randn(4096, 64))),
        "scatter": (lambda x, i, u: x.scatter(1, i, u), (tall, picks, torch.randn(4096, 64))),
        "index_put": (
            lambda x, i, u: x.index_put((i[0], i[1]), u, accumulate=True),
            (matrix, places, torch.randn(20000)),
        ),
        "index_add": (lambda x, i, u: x.index_add(0, i, u), (tall, torch.randint(0, 4096, (2000,)), tall[:2000])),
        "slice_steps": (lambda x: x[:, :, ::2, ::2] + x[:, :, 1::2, 1::2], (image,)),
        "slice_roll": (lambda x: torch.roll(x, (3, 3), (2, 3)), (image,)),
        "pad_zeros": (lambda x: f.pad(x, (1, 2, 3, 1)), (image,)),
        "pad_reflect": (lambda x: f.pad(x, (3, 3, 3, 3), mode="reflect"), (image,)),
        "flip": (lambda x: x.flip(3), (image,)),
        "nearest": (lambda x: f.interpolate(x, scale_factor=2.0), (small,)),
        "bilinear": (
            lambda x: f.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False),
            (small[:, :16],),
        ),
        "bicubic": (
            lambda x: f.interpolate(x, scale_factor=2.0, mode="bicubic", align_corners=False),
            (small[:1, :16],),
        ),
        "grid_sample": (lambda x, g: f.grid_sample(x, g, align_corners=False), (small, grid)),
        "transpose_2d": (lambda x: x.t().contiguous(), (matrix,)),
        "permute_last": (lambda x: x.permute(0, 2, 3, 1).contiguous(), (image,)),
        "permute_int64": (lambda x: x.permute(0, 2, 1).contiguous(), (torch.randint(0, 9, (16, 256, 128)),)),
        "pixel_shuffle": (lambda x: f.pixel_shuffle(x, 2), (image,)),
        "where_broadcast": (lambda c, x, y: torch.where(c, x, y), (matrix > 0, matrix[:1], matrix[:, :1])),
        "masked_add": (lambda x, y: (x * y).masked_fill(x > y, 0.5), (matrix, matrix[:1])),
        "one_hot": (lambda i: f.one_hot(i, 256).float(), (ids % 256,)),
        "cast_int8": (lambda x: (x * 10).to(torch.int8), (matrix,)),
        "gelu_chain": (lambda x, y: f.softplus(x) * torch.sin(y) + x.abs().sqrt(), (matrix, matrix[0])),
        "group_norm": (nn.GroupNorm(8, 32).eval(), (image,)),
        "instance_norm": (nn.InstanceNorm2d(32, affine=True).eval(), (image,)),
        "rms_norm": (lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, (tall, tall[0])),
        "log_softmax_middle": (lambda x: x.log_softmax(1), (image,)),
        "softmax_middle": (lambda x: x.softmax(2), (image,)),
        "conv_transpose": (nn.ConvTranspose2d(64, 32, 4, 2, 1), (wide,)),
        "depthwise_dilated": (nn.Conv2d(64, 64, 3, padding=2, dilation=2, groups=64), (torch.randn(1, 64, 56, 56),)),
        "conv_dilated": (nn.Conv2d(64, 64, 3, padding=2, dilation=2), (wide,)),
        "conv_grouped": (nn.Conv2d(64, 64, 3, padding=1, groups=4), (wide,)),
        "conv1d": (nn.Conv1d(64, 64, 5, padding=2), (sequence[:1],)),
        "conv3d": (nn.Conv3d(16, 32, 3, padding=1), (volume,)),
        "max_pool3d": (nn.MaxPool3d(2), (volume,)),
        "avg_pool_1d": (nn.AvgPool1d(4, 2), (sequence,)),
        "max_pool_wide": (nn.MaxPool2d(5, 1, 2), (wide,)),
    }
    for kind, steps in (("LSTM", 32), ("LSTM", 128), ("LSTM", 256), ("GRU", 128), ("RNN", 128)):
        made[f"{kind.lower()}_{steps}"] = (_First(torch, getattr(nn, kind)(256, 256)), (torch.randn(steps, 1, 256),))
    made["lstm_batch"] = (_First(torch, nn.LSTM(256, 256)), (torch.randn(64, 16, 256),))
    made["bilstm"] = (_First(torch, nn.LSTM(128, 128, num_layers=2, bidirectional=True)), (torch.randn(64, 1, 128),))
    return made


MODELS = _models


class _First:
    """A recurrent layer's states of all steps."""

    def __init__(self, torch: Any, layer: Any) -> None:
        self.layer = layer.eval()

    def __call__(self, x: Any) -> Any:
        return self.layer(x)[0]


def _module(torch: Any, function: Callable[..., Any]) -> Any:
    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        """One operator."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = getattr(function, "layer", function if isinstance(function, torch.nn.Module) else None)

        def forward(self, *given: Any) -> Any:
            return function(*given)

    return Model().eval()


def measured(torch: Any, case: Case, *, inductor: bool) -> dict[str, Any]:
    """Return "compile_s", "error" (relative to the largest result), "us" and "ratios" of rivals over ours."""
    import numpy as np

    import anatune

    module, inputs = _module(torch, case[0]), case[1]
    began = time.process_time()
    compiled = anatune.compile(module, inputs, threads=1, check=False)
    found: dict[str, Any] = {"compile_s": time.process_time() - began}
    with torch.no_grad():
        expected = module(*inputs).numpy()
        got = np.asarray(compiled(*(one.numpy() for one in inputs)))
        scale = max(float(np.abs(expected).max()), 1e-30)
        found["error"] = float(np.abs(got.astype(np.float64) - expected).max()) / scale
        calls = {"anatune": compiled.prepared(*(one.numpy() for one in inputs)), "eager": lambda: module(*inputs)}
        if inductor:
            import torch._inductor.config as settings

            settings.freezing = True
            fast = torch.compile(module)
            fast(*inputs)
            calls["inductor"] = lambda: fast(*inputs)
        taken = _turns(calls)
    found["us"] = {name: statistics.median(times) * 1e6 for name, times in taken.items()}
    found["ratios"] = {
        name: statistics.median(other / own for other, own in zip(times, taken["anatune"], strict=True))
        for name, times in taken.items()
        if name != "anatune"
    }
    return found


def _turns(calls: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    for call in calls.values():
        call()
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + _BUDGET_S
    while len(taken["anatune"]) < _ROUNDS or time.perf_counter() < end:
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - began)
    return taken


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models and print a table."""
    import torch
    from rich.table import Table

    from bench.results import environment, wide_console, write_json

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="", help="a regular expression; all by default")
    parser.add_argument("--eager-only", action="store_true", help="without TorchInductor, which compiles for long")
    parser.add_argument("--json", type=Path, metavar="FILE", help="models that are in it are not measured again")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    known = json.loads(options.json.read_text())["models"] if options.json and options.json.exists() else {}
    table = Table("model", "ours, us", "eager / ours", "inductor / ours", "error", "compile, CPU s")
    for name, case in _models(torch).items():
        if not re.search(options.models, name):
            continue
        if name not in known:
            try:
                known[name] = measured(torch, case, inductor=not options.eager_only)
            except Exception as error:  # noqa: BLE001  a model that fails is a line of the table
                known[name] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:90]}
            print(name, known[name], flush=True)
            if options.json:
                write_json(options.json, {"environment": environment(), "models": known})
        row = known[name]
        if "failed" in row:
            table.add_row(name, row["failed"])
            continue
        eager, inductor = (row["ratios"].get(who, float("nan")) for who in ("eager", "inductor"))
        table.add_row(name, f"{row['us']['anatune']:.0f}", f"{eager:.2f}", f"{inductor:.2f}", f"{row['error']:.0e}",
                      f"{row['compile_s']:.1f}")  # fmt: skip
    wide_console(110).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
