"""Models for matrix units, how they are compiled, and a GPU that Triton's interpreter stands for."""

import functools
import math
from unittest import mock

import numpy as np
import torch

import anatune
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.core.compiler_facts import CompilerFacts
from anatune.measure.cuda.apart import compiled_kernels
from anatune.measure.emulate.triton_interpreter import interpret
from anatune.measure.run.correctness import array_dtype
from anatune.network.compiling.targets.launched import LaunchedModel
from anatune.tuning.machine import usable_cores
from tests.unit.measure.false_driver import Kernel, false_device

nn, functional = torch.nn, torch.nn.functional


class Block(nn.Module):
    """A layer of a transformer on tokens."""

    def __init__(self, causal=False, dim=64, heads=2, groups=2):
        super().__init__()
        self.heads, self.groups, self.causal = heads, groups, causal
        inner = dim * groups // heads
        self.table, self.first, self.second = nn.Embedding(100, dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.last = nn.LayerNorm(dim)
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, inner), nn.Linear(dim, inner)
        self.out, self.up, self.down = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, tokens):
        x = self.table(tokens)
        batch, count, dim = x.shape
        normed = self.first(x)

        def heads(made, number):
            return made.view(batch, count, number, dim // self.heads).transpose(1, 2)

        query = heads(self.query(normed), self.heads)
        key, value = (heads(one(normed), self.groups) for one in (self.key, self.value))
        shared = self.heads // self.groups
        key, value = (
            one[:, :, None].expand(-1, -1, shared, -1, -1).reshape(batch, self.heads, count, -1) for one in (key, value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, count, dim))
        return self.last(x + self.down(functional.gelu(self.up(self.second(x)))))


class LlamaLayers(nn.Module):
    """A decoder as Llama is: RMS norms, rotary embeddings, heads of keys that several of queries share, SwiGLU."""

    def __init__(self, layers=2, dim=64, heads=4, groups=2, inner=96, window=99, scale=None):
        super().__init__()
        self.window, self.scale = window, scale
        self.heads, self.groups, self.size = heads, groups, dim // heads
        self.norms = nn.ModuleList(nn.RMSNorm(dim, eps=1e-6) for _ in range(2 * layers))
        sizes = {"q": (dim, dim), "k": (dim, dim // heads * groups), "v": (dim, dim // heads * groups)}
        sizes |= {"o": (dim, dim), "gate": (dim, inner), "up": (dim, inner), "down": (inner, dim)}
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()}) for _ in range(layers)
        )

    def turned(self, x, held=0):
        places, parts = (torch.arange(size, device=x.device) for size in (held + x.shape[2], self.size // 2))
        angles = places[held:][:, None] / 100 ** (2 * parts / self.size)
        angles = torch.cat([angles, angles], -1)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

    def forward(self, x, *past):
        """Past: keys, then values of each layer; what is held then is returned, too."""
        batch, count, _ = x.shape
        held, kept = past[0].shape[2] if past else 0, []
        for number, own in enumerate(self.layers):
            normed = self.norms[2 * number](x)
            q, k, v = (own[name](normed).view(batch, count, -1, self.size).transpose(1, 2) for name in "qkv")
            q, k = self.turned(q, held), self.turned(k, held)
            if past:
                k, v = torch.cat([past[2 * number], k], 2), torch.cat([past[2 * number + 1], v], 2)
                kept += [k, v]
            keys = torch.arange(held + count, device=x.device)
            last = keys[held:, None]
            mask = (keys <= last) & (keys > last - self.window)
            seen = functional.scaled_dot_product_attention(q, k, v, mask, scale=self.scale, enable_gqa=True)
            x = x + own["o"](seen.transpose(1, 2).reshape(batch, count, -1))
            normed = self.norms[2 * number + 1](x)
            x = x + own["down"](functional.silu(own["gate"](normed)) * own["up"](normed))
        return (x, *kept) if past else x


_SCHEMA = "(Tensor input, Tensor weight, Tensor offs) -> Tensor"


@torch.library.custom_op("anatune_tests::grouped_mm_fallback", mutates_args=(), schema=_SCHEMA)
def grouped_mm(x, weight, offs):
    """Return rows, each group's before its end, times matrices (groups, inner, columns), as transformers' operator."""
    ends = [0, *offs.tolist()]
    return torch.cat([x[first:end] @ own for own, first, end in zip(weight, ends, ends[1:], strict=False)])


@grouped_mm.register_fake
def _(x, weight, offs):
    return x.new_empty(x.shape[0], weight.shape[2])


class Experts(nn.Module):
    """Experts that tokens choose, as transformers exports them: rows are sorted by expert, and brought back."""

    def __init__(self, experts=4, top_k=2, dim=64, inner=40, biased=False):
        super().__init__()
        self.top_k, self.biased = top_k, biased
        self.norm, self.router, self.last = nn.RMSNorm(dim, eps=1e-6), nn.Linear(dim, experts), nn.Linear(dim, 48)
        self.up = nn.Parameter(torch.randn(experts, 2 * inner, dim) / dim**0.5)
        self.down = nn.Parameter(torch.randn(experts, dim, inner) / inner**0.5)
        self.bias = nn.Parameter(torch.randn(experts, 2 * inner))

    def forward(self, x):
        normed, experts = self.norm(x), len(self.up)
        weights, chosen = self.router(normed).softmax(-1).topk(self.top_k)
        weights, chosen = (weights / weights.sum(-1, keepdim=True)).reshape(-1), chosen.reshape(-1)
        experts_of, order = chosen.sort()
        ends = torch.histc(experts_of.float(), experts, 0, experts - 1).cumsum(0, dtype=torch.int32)
        made = grouped_mm(normed[order // self.top_k], self.up.transpose(1, 2), ends)
        if self.biased:
            made = made + self.bias[experts_of]
        gate, up = made.chunk(2, -1)
        made = grouped_mm(functional.silu(gate) * up, self.down.transpose(1, 2), ends) * weights[order][:, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return self.last(x + made[back].view(len(x), self.top_k, -1).sum(1))


def experts(tokens=24, **options):
    """Return a layer of experts and tokens whose choices 16 bits do not change."""
    torch.manual_seed(0)
    model, x = Experts(**options).eval(), torch.randn(8 * tokens, 64)
    best = model.router(model.norm(x)).topk(model.top_k + 1).values
    return model, (x[torch.argsort(best[:, -2] - best[:, -1])[-tokens:]],)


def block(**options):
    torch.manual_seed(0)
    return Block(**options).eval(), (torch.randint(0, 100, (2, 24)),)


def compiled(model, inputs, hw="h100", **more):
    return anatune.compile(model, inputs, hw=hw, **{"precision": "bfloat16", **more})


def without_code():
    """Let models have no machine code: plans, launches and texts, which the interpreter runs, are what they are.

    Compiling takes most of the time; `machine_code` compiles the texts of many models at once.
    """
    return mock.patch("anatune.network.compiling.targets.triton.compiled_kernels", _stand_ins)


def _stand_ins(wanted, hardware, workers, progress=None):
    """Return images of which each is different, with a launch that asks for memory."""
    facts = CompilerFacts(registers=32)
    return [
        Cubin(kernel.name, "", b"\x7fELF%d" % number, facts, threads=128, dynamic_shared_bytes=64, scratch_bytes=16)
        for number, (_, kernel) in enumerate(wanted)
    ]


def written(model, inputs, hw="h100", **more):
    """Return a model as `compiled` does, without machine code."""
    with without_code():
        return compiled(model, inputs, hw, **more)


def machine_code(models):
    """Return what Triton makes of each different text of `written` models, by the name of its kernel."""
    texts = {}
    for own in models:
        texts.setdefault(own.summary.hardware, {}).update({text.source: text for text in own.program.programs})
    assert texts
    images = []
    for hw, programs in texts.items():
        wanted = [(text, kernel) for text in programs.values() for kernel in text.kernels]
        images += compiled_kernels(wanted, anatune.hardware(hw), usable_cores())
    return images


def error(model, own, inputs):
    own.interprets = True
    got = own(*(one.numpy() for one in inputs))
    want = model(*inputs).detach().numpy()
    return np.abs(got - want).max() / np.abs(want).max()


def interpreted_device(program, arch="sm_90", **more):
    """Return a GPU whose kernels are run by Triton's interpreter, and the driver that it stands on."""
    kernels = {}
    for one in program.kernels:
        image, text = program.image[one.first : one.first + one.num_bytes], program.programs[one.program]
        assert image[:4] == b"\x7fELF"
        assert image not in kernels
        (kernel,) = text.kernels
        sizes = tuple(array_dtype(buffer.dtype).itemsize * math.prod(buffer.shape) for buffer in kernel.parameters)
        run = functools.partial(interpret_bytes, text, kernel.parameters)
        memory = one.dynamic_shared_bytes, one.scratch_bytes
        kernels[image] = Kernel(one.function, one.grid, one.block, sizes, run, *memory)
    return false_device(kernels, arch, **more)


def interpret_bytes(text, parameters, views):
    arrays = {
        buffer.tensor: view.view(array_dtype(buffer.dtype)) for buffer, view in zip(parameters, views, strict=True)
    }
    for name, array in interpret(text, arrays).items():  # what is not written stays what it was
        arrays[name][:] = array.reshape(-1)


@functools.cache
def _decoder(tokens, most, hw, window):
    torch.manual_seed(0)
    model = LlamaLayers(window=window).eval()
    count, held = torch.export.Dim("count", min=1, max=64), torch.export.Dim("held", min=0, max=most)
    past = [torch.zeros(2, 2, 9, 16) for _ in range(4)]
    own = written(
        model, (torch.zeros(2, 7, 64), *past), hw,
        dynamic_shapes=({1: count}, tuple({2: held} for _ in past)), sizes={"x_1": tokens},
        state={f"output{number + 1}": f"past_{number}" for number in range(4)},
    )  # fmt: skip
    return model, own


def decoder(tokens=1, most=20, hw="h100", window=99):
    """Return a decoder with caches, and it written for steps of so many tokens: a model of its own, nothing held."""
    model, own = _decoder(tokens, most, hw, window)
    new = LaunchedModel.from_program(own.summary, own.program, own.memory)
    new.interprets = True
    return model, new
