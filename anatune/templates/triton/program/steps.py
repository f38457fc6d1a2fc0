"""The epilogue of Triton kernels: fused steps on sums, in float32 (int32 before a scale)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from anatune.core.workload.access import Access
from anatune.core.workload.nest import Workload
from anatune.emit.elementary import MIDDLE, NORMAL_TAIL
from anatune.emit.script import Script
from anatune.errors import BuildError

__all__ = ["TRITON_TYPES", "write_steps"]

TRITON_TYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float8_e4m3fn": "float8e4nv",
    "float8_e4m3fnuz": "float8e4b8",
    "float8_e5m2": "float8e5",
    "float8_e5m2fnuz": "float8e5b16",
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
}
"""Dtype -> attribute of ``triton.language``."""
_GELU_SCALE = 2.0 * math.sqrt(2.0 / math.pi)
_TAIL = functools.reduce(lambda rest, factor: f"({rest} * {{x}}_ratio + {factor})", map(str, NORMAL_TAIL))
_GELU_PARTS = (
    f"{{x}}_ratio = tl.abs({{x}}) / (tl.abs({{x}}) + {MIDDLE})",
    f"{{x}}_below = {{x}} * (1.0 - {{x}}_ratio) * tl.exp(-0.5 * {{x}} * {{x}}) * {_TAIL}",
)
"""x times the normal distribution of -\\|x\\|, as in `codegen.formulas.call_elementary`. 1 - erf would cancel."""
_FUNCTIONS = {
    "relu6": "tl.minimum(tl.maximum({x}, 0.0), 6.0)",
    "silu": "{x} / (1.0 + tl.exp(-{x}))",
    "gelu": "tl.where({x} > 10.0, {x}, tl.where({x} > 0.0, {x} - {x}_below, {x}_below))",
    "gelu_tanh": f"{{x}} / (1.0 + tl.exp(-{{x}} * ({_GELU_SCALE!r} + {0.044715 * _GELU_SCALE!r} * {{x}} * {{x}})))",
}
"""Step -> its formula, as in `core.activations`; tanh as in `emit.activations`."""


def write_steps(text: Script, workload: Workload, value: str, load: Callable[[Access], str]) -> str:
    """Write the epilogue of a workload on a value. Return the expression of the result in its own dtype.

    Parameters
    ----------
    value : str
        Name of the sums, float32 or int32. The epilogue assigns to it.
    load : callable
        Operand of a step -> expression of its elements, spread over the value.

    Raises
    ------
    BuildError
        A step has no Triton source.
    """
    operands = iter(workload.epilogue_reads)
    is_integer = workload.dtype in ("int8", "uint8")
    for step in workload.epilogue:
        if step in ("bias", "add", "scale"):
            operand = load(next(operands))
            if step == "scale":
                text.line(f"{value} = {value}.to(tl.float32) * {operand}" if is_integer else f"{value} *= {operand}")
                is_integer = False
            else:
                text.line(f"{value} += {operand}")
        elif step == "relu":
            text.line(f"{value} = tl.maximum({value}, {0 if is_integer else 0.0})")
        elif step in _FUNCTIONS:
            for part in _GELU_PARTS if step == "gelu" else ():
                text.line(part.format(x=value))
            text.line(f"{value} = {_FUNCTIONS[step].format(x=value)}")
        else:
            raise BuildError(
                f"{workload.operator}: the epilogue step {step} has no Triton source, expected bias, add, scale, relu, "
                f"{', '.join(_FUNCTIONS)}; leave it out"
            )
    sum_dtype = "int32" if is_integer else "float32"
    result_dtype = workload.write.dtype
    return value if result_dtype == sum_dtype else f"{value}.to(tl.{TRITON_TYPES[result_dtype]})"
