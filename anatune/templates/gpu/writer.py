"""The base class that writes the kernels of GPU templates: function, memory, and the conversion of sums to results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from anatune.core.workload.nest import Access
from anatune.core.workload.number_formats import STEP_OPERANDS
from anatune.emit.activations import write_activation
from anatune.emit.script import Script, buffer_type, open_function, shape_tuple
from anatune.templates.gpu.kernel import STATIC_SHARED_BYTES, KernelProgram
from anatune.templates.gpu.layout import KernelLayout
from anatune.templates.gpu.splitting import SplitReduction, StepRange

__all__ = ["ROLLED", "KernelWriter", "cast", "neutral"]

ROLLED = "rolled_"
"""Prefix of loops that the compiler must not unroll either. `lower` writes ``#pragma unroll 1`` before them."""
_LOWEST_BITS = -(1 << 23)
"""The bits of ``-inf`` in float32."""

Layout = TypeVar("Layout", bound=KernelLayout)


class KernelWriter(ABC, Generic[Layout]):
    """Writes the kernel of one schedule as TVMScript, and the kernels around it if its reduction is split.

    Subclasses write the bodies: `_principal` of the kernel that computes, `_sum_of_parts` of the kernel that sums
    parts.

    Attributes
    ----------
    finish : callable
        Function that edits the body of TVM's CUDA C.
    resident_blocks : int
        Blocks of an SM that the compiler is told to aim at. 0: it is told nothing.

    Raises
    ------
    BuildError
        The device lacks something that the schedule needs.
    """

    def __init__(self, layout: Layout) -> None:
        layout.check_limits()
        self.layout, self.workload = layout, layout.workload
        self.text = Script()
        self.reduction = SplitReduction(layout)
        self.resident_blocks = 0
        self.finish: Callable[[str], str] = str

    @abstractmethod
    def _principal(self, part: StepRange) -> None:
        """Write the body of the principal kernel, given the steps of a block."""

    @abstractmethod
    def _sum_of_parts(self) -> None:
        """Write the body of the kernel that sums parts and stores the results."""

    def program(self) -> KernelProgram:
        """Write the kernel and return it with its launches."""
        layout, reduction = self.layout, self.reduction
        return KernelProgram(
            self._script(),
            layout.num_blocks,
            layout.num_threads,
            layout.shared_bytes,
            self.resident_blocks,
            self.finish,
            reduction.before,
            reduction.after,
            reduction.workspace,
            layout.ranged,
            reduction.growth,
        )

    def _script(self) -> str:
        """Return the text of ``main``. Its parameters are the operands, the epilogue's operands and the result."""
        text, ranged = self.text, self.layout.ranged
        parameters, matched = [], []
        for access in self.workload.tensors:
            shape = self.layout.shape(access)
            if shape == access.shape:
                parameters.append((access.tensor, buffer_type(shape, access.dtype)))
                continue
            name = f"{access.tensor}_argument"  # a buffer's type cannot name an argument
            parameters.append((name, "T.handle"))
            matched.append(f'{access.tensor} = T.match_buffer({name}, {shape_tuple(shape)}, "{access.dtype}")')
        open_function(text, "main", parameters + ([] if ranged is None else [(ranged.parameter, "T.int32")]))
        for line in matched:
            text.line(line)
        self.reduction.write(text, "kernel", self._principal, self._sum_of_parts)
        return str(text)

    def _allocate(self, name: str, size: int, dtype: str, scope: str = "local") -> None:
        self.text.line(f'{name} = T.sblock_alloc_buffer(({size},), "{dtype}", scope="{scope}")')

    def _allocate_shared(self, size: int, dtype: str, num_bytes: int) -> None:
        """Allocate ``smem``: with a declared size, or with the size that the launch asks for."""
        self._allocate("smem", size, dtype, "shared.dyn" if num_bytes > STATIC_SHARED_BYTES else "shared")

    def _combine(self, first: str, second: str) -> str:
        """Return the expression that combines two sums, or two maxima, of the accumulator's dtype."""
        return f"T.max({first}, {second})" if self.workload.body == "max" else f"{first} + {second}"

    def _finish_result(self, value: str, element: Callable[[Access], str]) -> str:
        """Return the expression of a result from a complete sum: its mean, its epilogue, its conversion.

        `element` returns the element of an operand of the epilogue.
        """
        accumulator, terms = self.layout.accumulator, self.layout.num_terms
        if self.workload.body == "average":
            if accumulator == "int32":
                value = f"T.truncdiv({value}, {terms})"
            elif isinstance(terms, str):
                value = f'{value} / T.Cast("float32", {terms})'
            else:
                value = f"{value} * T.float32({1.0 / terms!r})"
        operands = iter(self.workload.epilogue_reads)
        for step in self.workload.epilogue:
            if STEP_OPERANDS[step] is None:
                value = write_activation(step, value, accumulator)
            else:
                access = next(operands)
                value = f"{value} + {cast(element(access), access.dtype, accumulator)}"
        return cast(f"({value})", accumulator, self.workload.write.dtype)


def cast(value: str, dtype: str, target: str) -> str:
    """Return the expression of a value of `dtype` converted to another dtype."""
    return value if dtype == target else f'T.Cast("{target}", {value})'


def neutral(body: str, dtype: str) -> str:
    """Return the neutral element of a body: combined with it, a result stays as it is."""
    if body != "max":
        return f'T.Cast("{dtype}", 0)' if dtype in ("float16", "bfloat16") else f"T.{dtype}(0)"
    if "float" not in dtype:
        return f'T.min_value("{dtype}")'
    lowest = f'T.call_pure_extern("float32", "__int_as_float", T.int32({_LOWEST_BITS}))'  # CUDA C has no literal -inf
    return lowest if dtype == "float32" else f'T.Cast("{dtype}", {lowest})'
