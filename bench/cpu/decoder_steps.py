"""A decoder of Llama's form from one compiled model, prompt and steps, beside each step compiled alone.

    python -m bench.cpu.decoder_steps [--layers 4] [--width 512] [--heads 8] [--kv-heads 8] [--prompt 32] [--steps 64]
        [--places 5] [--rounds 40] [--hw host] [--json FILE]

The one model holds its caches, which grow: it is compiled once, with the tokens of a call and those that are held as
sizes that vary. Alone, the prompt and some of the steps are compiled for exactly their sizes, with caches as inputs and
outputs. Both run in turns in one process on one thread, and the medians of the ratios are printed: a busy machine slows
both. Needs TVM, PyTorch and a C compiler.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import anatune
from bench.results import environment, write_json

__all__ = ["decoder", "ratio_of"]

WORDS, HIDDEN = 1000, 4
"""Words that there are; the hidden layer is so many times 2/3 as wide as the model."""


def decoder(layers: int, width: int, heads: int, kv_heads: int) -> Any:
    """Return a module: (ids, the caches of all layers) -> (logits, caches)."""
    import torch
    from torch import nn

    dim, hidden = width // heads, width * HIDDEN * 2 // 3 // 16 * 16

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
            self.k, self.v = (nn.Linear(width, kv_heads * dim, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
            self.down = nn.Linear(hidden, width, bias=False)
            self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))

        def forward(self, x: Any, around: Any, past: Any) -> Any:
            cos, sin, mask = around
            h = self.norms[0](x)
            q, k, v = (
                linear(h).unflatten(-1, (-1, dim)).transpose(1, 2) for linear in (self.q, self.k, self.v)
            )  # fmt: skip
            k, v = torch.cat([past[0], turned(k, cos, sin)], 2), torch.cat([past[1], v], 2)
            all_k, all_v = (
                one[:, :, None].expand(-1, -1, heads // kv_heads, -1, -1).flatten(1, 2) for one in (k, v)
            )  # fmt: skip
            mixed = nn.functional.scaled_dot_product_attention(turned(q, cos, sin), all_k, all_v, attn_mask=mask)
            x = x + self.o(mixed.transpose(1, 2).flatten(2))
            h = self.norms[1](x)
            return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h)), k, v

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(WORDS, width), nn.RMSNorm(width, eps=1e-6)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.head = nn.Linear(width, WORDS, bias=False)
            self.register_buffer("steps", 1e4 ** -(torch.arange(0, dim, 2) / dim))

        def forward(self, ids: Any, *past: Any) -> Any:
            held, count = past[0].shape[2], ids.shape[1]
            places = torch.arange(held, held + count)
            angles = (places[:, None] * self.steps).repeat(1, 2)
            mask = torch.where(torch.arange(held + count) <= places[:, None], 0.0, float("-inf"))
            x, caches = self.table(ids), []
            for number, layer in enumerate(self.layers):
                x, k, v = layer(x, (angles.cos(), angles.sin(), mask), past[2 * number : 2 * number + 2])
                caches += [k, v]
            return self.head(self.norm(x)), *caches

    torch.manual_seed(0)
    return Decoder().eval()


def ratio_of(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """Return the median ratio of the times of two calls in turns, and the least time of each, s."""
    times: list[tuple[float, float]] = []
    for turn in range(rounds + 2):
        both = {}
        for call in (first, second) if turn % 2 else (second, first):
            began = time.perf_counter()
            call()
            both[call] = time.perf_counter() - began
        times.append((both[first], both[second]))
    kept = times[2:]
    return (statistics.median(one / other for one, other in kept), *(min(column) for column in zip(*kept, strict=True)))


def main() -> None:
    """Compile, time, print."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (
        ("layers", 4), ("width", 512), ("heads", 8), ("kv-heads", 8), ("prompt", 32), ("steps", 64), ("places", 5),
        ("rounds", 40),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value, metavar="N")
    parser.add_argument("--hw", default="host", help="the CPU that kernels are for; this one must run them")
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    module = decoder(asked.layers, asked.width, asked.heads, asked.kv_heads)
    most, dim, count = asked.prompt + asked.steps, asked.width // asked.heads, 2 * asked.layers

    def inputs(tokens: int, held: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(tokens + held)
        caches = [torch.randn(1, asked.kv_heads, held, dim, generator=generator) for _ in range(count)]
        return torch.randint(0, WORDS, (1, tokens), generator=generator), *caches

    tokens, held = torch.export.Dim("tokens", min=1, max=most), torch.export.Dim("held", min=0, max=most)
    shapes = ({1: tokens}, tuple({2: held} for _ in range(count)))
    pairs = {f"output{number + 1}": f"past_{number}" for number in range(count)}
    began = time.process_time()
    ranged = anatune.compile(module, inputs(7, 9), dynamic_shapes=shapes, hw=asked.hw, threads=1, state=pairs)
    print(f"one model: {time.process_time() - began:.0f} CPU s to compile")
    places = [(asked.prompt, 0)]
    places += [(1, int(at)) for at in np.linspace(asked.prompt, most - 1, asked.places)]
    found = []
    for count_now, at in places:
        given = inputs(count_now, at)
        if at:
            began = time.process_time()
            alone = anatune.compile(module, given, hw=asked.hw, threads=1)
            single = alone.prepared(*given)
        else:  # nothing is held: a model without caches as inputs
            began = time.process_time()
            single = _prompt_alone(module, given, asked.hw)
        compile_s = time.process_time() - began
        ranged.reset()
        ranged.state = {name: array.numpy() for name, array in zip(pairs.values(), given[1:], strict=True)}
        ratio, own_s, other_s = ratio_of(ranged.prepared(given[0]), single, asked.rounds)
        what = f"step with {at} held" if at else f"prompt of {count_now}"
        print(f"{what}: {ratio:.3f} of the time alone (least {own_s * 1e3:.2f}, {other_s * 1e3:.2f} ms); "
              f"alone {compile_s:.0f} CPU s to compile")  # fmt: skip
        found.append({"tokens": count_now, "held": at, "ratio": ratio, "own_s": own_s, "alone_s": other_s})
    if asked.json:
        write_json(asked.json, {"environment": environment(), "settings": vars(asked) | {"json": None}, "steps": found})


def _prompt_alone(module: Any, given: tuple[Any, ...], hw: str) -> Callable[[], object]:
    """Return a call of the prompt alone."""
    import torch

    class Prompt(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.empty = module, [one.clone() for one in given[1:]]

        def forward(self, ids: Any) -> Any:
            return self.module(ids, *self.empty)

    compiled = anatune.compile(Prompt().eval(), (given[0],), hw=hw, threads=1)
    return compiled.prepared(given[0])


if __name__ == "__main__":
    main()
