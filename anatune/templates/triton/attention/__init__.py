"""Attention as kernels of Triton: a running softmax between two products on matrix units."""

from __future__ import annotations

from anatune.templates.triton.attention.rules import LEVELS, check_attention, check_supported
from anatune.templates.triton.family import KernelFamily

__all__ = ["AttentionFamily"]


class AttentionFamily(KernelFamily):
    """Attention (forward): prefill and decoding, with keys in order or in pages."""

    bodies = frozenset(("attention",))
    factors = LEVELS
    model_name, program_name = "attention.model:AttentionModel", "attention.program:attention_program"
    supports = staticmethod(check_supported)
    check = staticmethod(check_attention)
