"""Kernels on rows of activations: softmax, norms, rotary embeddings, gates, quantisation."""

from __future__ import annotations

from anatune.templates.triton.family import KernelFamily
from anatune.templates.triton.rows.rules import BODIES, LEVELS, check_rows, check_supported

__all__ = ["RowFamily"]


class RowFamily(KernelFamily):
    """Kernels that read and write rows of activations."""

    bodies = frozenset(BODIES)
    factors = LEVELS
    model_name, program_name = "rows.model:RowModel", "rows.program:row_program"
    supports = staticmethod(check_supported)
    check = staticmethod(check_rows)
