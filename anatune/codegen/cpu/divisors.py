"""Kernels that raise an error if an integer divisor is zero, because processors end a process that divides by it."""

from __future__ import annotations

from dataclasses import dataclass

from anatune.core.sizes import symbols_of
from anatune.emit.kernels import write_loop_head
from anatune.emit.script import Script, open_function, shape_tuple, whole_region


@dataclass(frozen=True)
class DivisorKernel:
    """The divisors of an operator, which the error names; sizes may be known only at run time."""

    shape: tuple[int, ...]
    dtype: str
    operator: str
    kind: str = "divisor"


def divisor_program(kernel: DivisorKernel, name: str, threads: int, _: object) -> tuple[str, str]:
    """Return (the function in TVMScript, no LLVM IR); its parameters are the divisors and a copy of them.

    The function raises ZeroDivisionError if a divisor is zero.
    """
    tensors, text = ("data", "result"), Script()
    symbols = [(symbol, "T.int64") for symbol in sorted(symbols_of(kernel.shape))]
    open_function(text, name, [("data_", "T.handle"), *symbols, ("result_", "T.handle")])
    for tensor in tensors:
        text.line(f'{tensor} = T.match_buffer({tensor}_, {shape_tuple(kernel.shape)}, "{kernel.dtype}")')
    text.open('with T.sblock("divisors"):')
    text.line(f"T.reads(data[{whole_region(kernel.shape)}])")
    text.line(f"T.writes(result[{whole_region(kernel.shape)}])")
    variables = [f"i{axis}" for axis in range(len(kernel.shape))]
    index = ", ".join(variables) or "()"
    heads = [write_loop_head(place, size, parallel=False) for place, size in zip(variables, kernel.shape, strict=True)]
    message = f"{kernel.operator} of {kernel.dtype}: a divisor is zero"
    with text.scope(*heads):
        text.line(f'assert data[{index}] != T.{kernel.dtype}(0), ("ZeroDivisionError", ["{message}"])')
        text.line(f"result[{index}] = data[{index}]")
    return str(text), ""
