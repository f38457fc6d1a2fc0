"""Activations as expressions of TVMScript, for kernels whose arithmetic TVM writes."""

from __future__ import annotations

import math


def write_activation(step: str, value: str, dtype: str) -> str:
    """Return the expression of a fused activation of a value of `dtype`; all except relu need float32."""
    if step == "relu":
        return f"T.max({value}, T.{dtype}(0))"
    if step == "relu6":
        return f"T.min(T.max({value}, T.float32(0)), T.float32(6))"
    if step == "gelu":
        tail = f'T.call_pure_extern("float32", "erfcf", ({value}) * T.float32({-math.sqrt(0.5)!r}))'
        return f"({value}) * T.float32(0.5) * {tail}"
    exponent = value
    if step == "gelu_tanh":
        scale = 2.0 * math.sqrt(2.0 / math.pi)
        inner = f"T.float32({scale!r}) + T.float32({0.044715 * scale!r}) * ({value}) * ({value})"
        exponent = f"({inner}) * ({value})"
    return f"({value}) / (T.float32(1) + T.exp(T.float32(0) - ({exponent})))"
