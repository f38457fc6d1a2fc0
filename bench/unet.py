"""A block of a diffusion model's UNet, as SDXL has one where its images have 32 x 32 places: random weights.

A residual pair of convolutions with the time step added, ten transformer layers on the image's places that look at each
other and at the prompt, and a convolution of stride 2. Source: Podell et al., SDXL (arXiv:2307.01952), section 2.1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Block", "inputs"]

_GROUPS = 32


class Residual(nn.Module):
    """Two convolutions behind norms of groups, with the time step between them."""

    def __init__(self, before: int, channels: int, time: int) -> None:
        super().__init__()
        self.first_norm, self.first = nn.GroupNorm(_GROUPS, before), nn.Conv2d(before, channels, 3, padding=1)
        self.time = nn.Linear(time, channels)
        self.second_norm, self.second = nn.GroupNorm(_GROUPS, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.beside = nn.Conv2d(before, channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        made = self.first(functional.silu(self.first_norm(x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.beside(x) + self.second(functional.silu(self.second_norm(made)))


class Attention(nn.Module):
    """Queries of an image's places on keys of what they look at."""

    def __init__(self, dim: int, heads: int, seen: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)
        self.key, self.value = nn.Linear(seen, dim, bias=False), nn.Linear(seen, dim, bias=False)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        def apart(made: Tensor) -> Tensor:
            return made.view(len(x), -1, self.heads, made.shape[-1] // self.heads).transpose(1, 2)

        found = functional.scaled_dot_product_attention(
            apart(self.query(x)), apart(self.key(seen)), apart(self.value(seen))
        )
        return self.out(found.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """Attention to the image, to the prompt, and a gated product."""

    def __init__(self, dim: int, heads: int, prompt: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.image, self.prompt = Attention(dim, heads, dim), Attention(dim, heads, prompt)
        self.wide, self.narrow = nn.Linear(dim, 8 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor, prompt: Tensor) -> Tensor:
        normed = self.norms[0](x)
        x = x + self.image(normed, normed)
        x = x + self.prompt(self.norms[1](x), prompt)
        value, gate = self.wide(self.norms[2](x)).chunk(2, -1)
        return x + self.narrow(value * functional.gelu(gate))


class Block(nn.Module):
    """The whole of it: images (batch, before, h, w), time steps (batch, time), prompts (batch, words, prompt)."""

    def __init__(
        self, before: int = 640, channels: int = 1280, heads: int = 20, prompt: int = 2048, layers: int = 10
    ) -> None:
        super().__init__()
        self.residual, self.norm = Residual(before, channels, 1280), nn.GroupNorm(_GROUPS, channels)
        self.into, self.out = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.layers = nn.ModuleList(Layer(channels, heads, prompt) for _ in range(layers))
        self.smaller = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor, time: Tensor, prompt: Tensor) -> Tensor:
        """Return images (batch, channels, h / 2, w / 2)."""
        x = self.residual(x, time)
        batch, channels, height, width = x.shape
        places = self.into(self.norm(x).permute(0, 2, 3, 1).reshape(batch, height * width, channels))
        for layer in self.layers:
            places = layer(places, prompt)
        made = self.out(places).reshape(batch, height, width, channels).permute(0, 3, 1, 2)
        return self.smaller(x + made)


def inputs(batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Return what it takes: an image of 1,024 x 1,024 has 32 x 32 places here, a prompt 77 words."""
    return torch.zeros(batch, 640, 32, 32), torch.zeros(batch, 1280), torch.zeros(batch, 77, 2048)
