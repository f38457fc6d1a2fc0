"""Which of PyTorch's core operators are drawn, and why some are not."""

from __future__ import annotations

from bench.fuzz.builder import Draw
from bench.fuzz.torch.elements import ELEMENTS
from bench.fuzz.torch.layers import LAYERS
from bench.fuzz.torch.moves import MOVES

__all__ = ["NO_GENERATOR", "OPERATORS"]

OPERATORS: dict[str, Draw] = {**ELEMENTS, **MOVES, **LAYERS}
"""Name of a core operator, words on its form -> what adds an expression of it."""

NO_GENERATOR: dict[str, str] = {}
"""Core operator that is read -> why no generator draws it."""
