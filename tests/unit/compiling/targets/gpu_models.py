"""Models for matrix units, how they are compiled, and a GPU that Triton's interpreter stands for."""

import functools
import math

import numpy as np
import torch

import anatune
from anatune.measure.emulate.triton_interpreter import interpret
from anatune.measure.run.correctness import array_dtype
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


def block(**options):
    torch.manual_seed(0)
    return Block(**options).eval(), (torch.randint(0, 100, (2, 24)),)


def compiled(model, inputs, hw="h100", **more):
    return anatune.compile(model, inputs, hw=hw, **{"precision": "bfloat16", **more})


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


def decoder(batch=2, tokens=1, most=20, hw="h100", model=None, **more):
    """Return a decoder with caches, and it compiled for steps of so many tokens."""
    torch.manual_seed(0)
    model = (model or LlamaLayers()).eval()
    count, held = torch.export.Dim("count", min=1, max=64), torch.export.Dim("held", min=0, max=most)
    past = [torch.zeros(batch, 2, 9, 16) for _ in range(4)]
    own = anatune.compile(
        model, (torch.zeros(batch, 7, 64), *past), hw=hw, precision="bfloat16",
        dynamic_shapes=({1: count}, tuple({2: held} for _ in past)), sizes={"x_1": tokens},
        state={f"output{number + 1}": f"past_{number}" for number in range(4)}, **more,
    )  # fmt: skip
    own.interprets = True
    return model, own
